"""Train a tiny GPT in each precision, with several seeds, and print a table of bytes and validation losses.

::

    python tools/precision_table.py --steps 3000 --seeds 3

The text is a package of the standard library. Each run goes through the command line, with one thread; learning rate,
order and initial weights of a seed are the same in all precisions, so losses are compared seed by seed. With the steps
of recipe ``demo``, the default, the table takes some 20 minutes of one core.
"""

import argparse
import contextlib
import email
import io
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from hornbook.cli.main import main as hornbook
from hornbook.config import PrecisionConfig
from hornbook.config.sections import DTYPE_BYTES

MODEL = (
    "--model.vocab-size none --model.num-layers 1 --model.hidden-size 64 --model.num-heads 4 --model.max-positions 32 "
    "--data.sequence-length 32 --training.global-batch-size 16 --training.micro-batch-size 8 --schedule.name cosine "
    "--schedule.warmup-steps 100 --optimizer.learning-rate 3e-3 --evaluation.max-windows 64 --device cpu --threads 1"
)
STATES = ("exp_avg", "exp_avg_sq")
PRECISIONS: dict[str, dict[str, str]] = {
    "all fp32": {"compute": "fp32"},
    "bf16 activations": {"compute": "bf16"},
    "fp16 activations, dynamic scale": {"compute": "fp16"},
    "fp16 activations, histogram scale": {"compute": "fp16", "loss_scaling": "histogram"},
    "bf16 activations and moments": {"compute": "bf16", "first_moment": "bf16", "second_moment": "bf16"},
    "bf16 weights and gradients": {"compute": "bf16", "weights": "bf16", "gradients": "bf16"},
    "all bf16": dict.fromkeys(("compute", "weights", "gradients", "first_moment", "second_moment"), "bf16"),
    "all fp16, dynamic scale": dict.fromkeys(
        ("compute", "weights", "gradients", "first_moment", "second_moment"), "fp16"
    ),
}


def main() -> None:
    """Build the corpus, make the runs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000, metavar="N", help="length of each run (default: 3000)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="runs of each precision (default: 3)")
    arguments = parser.parse_args()
    print("| precision | bytes a parameter | validation loss, each seed | mean | above fp32, each seed |")
    print("|---|---|---|---|---|", flush=True)
    baseline: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        texts = sorted(str(module) for module in Path(email.__file__).parent.glob("*.py"))
        run("tokenizer", "train", *texts, "--vocab-size", "384", "--output", str(folder / "tokenizer"))
        given = ("--tokenizer", str(folder / "tokenizer"), "--output", str(folder / "corpus"))
        run("corpus", "build", *texts, *given, "--validation", "0.2")
        for number, (name, options) in enumerate(PRECISIONS.items()):
            losses = [
                train(folder, f"{number}-{seed}", options, seed, arguments.steps) for seed in range(arguments.seeds)
            ]
            precision = PrecisionConfig(**options)  # type: ignore[arg-type]
            num_bytes = precision.bytes_per_parameter + sum(
                DTYPE_BYTES[precision.dtype_of_state(key)] for key in STATES
            )
            baseline = baseline or losses
            above = [loss - exact for loss, exact in zip(losses, baseline, strict=True)]
            told, differences = (
                ", ".join(f"{value:{sign}.4f}" for value in values) for values, sign in ((losses, ""), (above, "+"))
            )
            print(f"| {name} | {num_bytes} | {told} | {statistics.mean(losses):.4f} | {differences} |", flush=True)


def train(folder: Path, name: str, options: dict[str, str], seed: int, steps: int) -> float:
    """Return the validation loss after ``steps`` steps."""
    words = [f"--precision.{key.replace('_', '-')}={value}" for key, value in options.items()]
    words += [f"--data.train={folder / 'corpus'}", f"--training.seed={seed}", f"--training.steps={steps}"]
    result = run("train", "gpt2-small", *MODEL.split(), *words, "--output", str(folder / name))
    loss: float = result["validation_loss"]
    return loss


def run(*words: str) -> dict[str, Any]:
    """Run a command of hornbook in this process and return its result."""
    told, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(said):
        status = hornbook([*words, "--json"])
    if status:
        raise SystemExit(f"hornbook {words[0]} failed: {told.getvalue()}{said.getvalue()}")
    result: dict[str, Any] = json.loads(told.getvalue().strip().splitlines()[-1])
    return result


if __name__ == "__main__":
    main()
