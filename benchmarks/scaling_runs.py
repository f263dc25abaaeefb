"""How does the loss depend on the size of a model and on its tokens? Runs behind ``hornbook train auto``.

::

    python benchmarks/scaling_runs.py results --corpus py books owt --widths 1 2 3 4 6 8
    python benchmarks/scaling_runs.py results --corpus small --widths 2 --also model.residual_dropout=0.1

Each run trains the decoder of a width (`hornbook.plan.dial`) on 2^18 tokens or more, up to the affordable number, and
measures its loss on the held-out split. The shortest runs come first. Each is one file ``*.json``; a second call skips
the runs that are there. ``scaling_runs.json`` has the results for the dial's present shapes and batches.
"""

import argparse
import json
import math
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from commands import hornbook
from hornbook.corpora.store import open_store
from hornbook.plan.dial import BASE, num_flops, options_of

_LEAST_TOKENS = 2**18
_VOCABULARY = 8192
_FLOPS_PER_SECOND = 1.2e11  # of a thread, only to put the runs in order
_WINDOWS = 512


@dataclass(frozen=True)
class Trial:
    """A corpus, a size, and a length.

    ``windows`` are those of a batch, None for those of `options_of`; ``also`` are further options, by spaces.
    """

    corpus: Path
    width: int
    tokens: int
    seed: int = 0
    windows: int | None = None
    also: str = ""

    @property
    def name(self) -> str:
        """Of the file."""
        batch = f"-batch{self.windows}" if self.windows else ""
        also = "".join(f"-{word}" for word in self.also.split())
        return f"{self.corpus.name}-width{self.width}-tokens{self.tokens}{batch}{also}-seed{self.seed}"

    @property
    def seconds(self) -> float:
        """Rough duration on one thread."""
        return 15 + self.tokens * num_flops(self.width, _VOCABULARY) / _FLOPS_PER_SECOND


def run(trial: Trial, folder: Path) -> None:
    """Train and write the result, unless it is there."""
    file = folder / f"{trial.name}.json"
    if file.exists():
        return
    options = options_of(trial.width, trial.tokens, windows=trial.windows)
    steps = int(options["training.steps"])
    words = [f"--{key}={value}" for key, value in options.items()]
    words += [
        *(f"--{word}" for word in trial.also.split()),
        f"--training.seed={trial.seed}",
        f"--evaluation.every-steps={steps}",
        f"--evaluation.max-windows={_WINDOWS}",
        f"--checkpoint.every-steps={steps}",
        "--tracking.sample-every-steps=none",
    ]
    with tempfile.TemporaryDirectory() as scratch:
        output = ["--threads", "1", "--output", str(Path(scratch) / "run")]
        found = hornbook("train", BASE, "--data.train", str(trial.corpus), *words, *output)
    held_out, train = open_store(trial.corpus, "validation"), open_store(trial.corpus, "train")
    assert held_out.num_bytes, "hornbook's own stores count the bytes of the text"
    result = {
        **asdict(trial),
        "corpus": trial.corpus.name,
        "options": options,
        "unique_tokens": train.num_tokens,
        "nats_per_token": found["validation_loss"],
        "bits_per_byte": found["validation_loss"] / math.log(2) * held_out.num_tokens / held_out.num_bytes,
        "seconds": found["seconds"],
    }
    file.with_suffix(".partial").write_text(json.dumps(result, indent=1))
    file.with_suffix(".partial").rename(file)
    print(f"{trial.name}: {result['bits_per_byte']:.4f} in {found['seconds']:.0f} s", flush=True)


def main() -> None:
    """Run what is missing and affordable."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="of the results")
    parser.add_argument("--corpus", type=Path, nargs="+", required=True, help="output folders of hornbook corpus build")
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 2, 3, 4, 6, 8])
    parser.add_argument("--seconds", type=float, default=400, help="of the longest run (default: 400)")
    parser.add_argument("--windows", type=int, nargs="+", default=[None], help="of a batch (default: by tokens)")
    parser.add_argument("--also", default=[""], nargs="+", metavar="'KEY=VALUE ...'", help="further options of runs")
    parser.add_argument("--tokens", type=int, nargs="+", help="(default: 2^18, doubled while affordable)")
    parser.add_argument("--workers", type=int, default=1, help="runs at the same time (default: 1)")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    lengths = given.tokens or [_LEAST_TOKENS << number for number in range(12)]
    trials = [
        Trial(corpus, width, tokens, windows=windows, also=also)
        for corpus in given.corpus
        for width in given.widths
        for tokens in lengths
        for windows in given.windows
        for also in given.also
    ]
    todo = sorted((each for each in trials if each.seconds <= given.seconds), key=lambda each: each.seconds)
    with ProcessPoolExecutor(given.workers) as pool:
        list(pool.map(partial(run, folder=given.folder), todo))


if __name__ == "__main__":
    main()
