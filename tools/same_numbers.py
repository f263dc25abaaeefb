"""Run a fixed set of small trainings and print a fingerprint of what each of them learned.

A change that must not change a number, such as a move between packages, is held to it by a run before and one after::

    python tools/same_numbers.py --write before.json        # on the old commit
    python tools/same_numbers.py --against before.json      # on the new one: exit status 1 if a bit differs

Each run goes through the command line in processes of its own, with one thread. A fingerprint is a hash of every step's
loss and of the bytes of every tensor in the last checkpoint, whatever tensors and files are called and however a tensor
is shaped. Fingerprints hold for one machine, one PyTorch and one precision; they are compared, never kept.
"""

import argparse
import email
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors import safe_open

STEPS = 6
GPT = (
    "demo --model.num-layers 2 --model.hidden-size 48 --model.num-heads 4 --model.max-positions 32 "
    "--data.sequence-length 32 --training.global-batch-size 8 --schedule.warmup-steps 2 --evaluation.max-windows 16 "
    "--optimizer.learning-rate 3e-3 --optimizer.clip-norm 0.5"
)
GPT_DROPOUT = "--model.embedding-dropout 0.1 --model.residual-dropout 0.1 --model.attention-dropout 0.1"
ENCODER = (
    "--data.synthetic --model.num-layers 2 --model.hidden-size 64 --model.num-heads 4 --model.max-positions 48 "
    "--model.vocab-size 300 --data.sequence-length 48 --training.global-batch-size 8 --training.micro-batch-size 4 "
    "--optimizer.learning-rate 1e-3 --schedule.warmup-steps 2 --optimizer.clip-norm 0.5"
)
RUNS = {
    "gpt": f"{GPT} --training.micro-batch-size 8",
    "gpt-dropout-accumulation": f"{GPT} {GPT_DROPOUT} --training.micro-batch-size 2",
    "gpt-documents": f"{GPT} {GPT_DROPOUT} --data.document-mask --training.micro-batch-size 4",
    "gpt-bf16": f"{GPT} --training.micro-batch-size 4 --precision.compute bf16",
    "gpt-sgd": f"{GPT} --training.micro-batch-size 4 --optimizer.name momentum",
    "gpt-2-ranks": f"{GPT} {GPT_DROPOUT} --training.micro-batch-size 2",
    "gpt-resumed": f"{GPT} {GPT_DROPOUT} --training.micro-batch-size 2 --checkpoint.every-steps 3",
    "bert": f"bert-tiny {ENCODER}",
    "bert-2-ranks": f"bert-tiny {ENCODER}",
    "bert-packed": f"bert-tiny {ENCODER} --data.layout packed --model.attention-dropout 0.1",
    "bert-resumed": f"bert-tiny {ENCODER} --checkpoint.every-steps 3",
    "roberta": f"roberta-base-wikitext2 {ENCODER}",
    "groupbert": f"groupbert-base-phase1 {ENCODER} --model.convolution-group-size 16",
}


def main() -> int:
    """Run everything, print the fingerprints, and compare or write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the fingerprints as JSON")
    parser.add_argument("--against", type=Path, metavar="FILE", help="compare with fingerprints written before")
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS), help="runs to make (default: all)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        corpus = build_corpus(Path(scratch))
        found = {name: fingerprint(name, Path(scratch) / name, corpus) for name in arguments.only}
    if arguments.write:
        arguments.write.write_text(json.dumps(found, indent=1) + "\n")
    before = json.loads(arguments.against.read_text()) if arguments.against else {}
    differing = [name for name in found if name in before and before[name] != found[name]]
    for name, value in found.items():
        print(f"{name:28} {value[:16]}{'  DIFFERS' if name in differing else ''}")
    for name in differing:
        print(f"{name} differs from {arguments.against}", file=sys.stderr)
    return 1 if differing else 0


def build_corpus(scratch: Path) -> Path:
    """Train a tokenizer on modules of the standard library and build a store of them."""
    texts = sorted(str(module) for module in Path(email.__file__).parent.glob("*.py"))
    hornbook("tokenizer", "train", *texts, "--vocab-size", "384", "--output", str(scratch / "tokenizer"))
    tokenizer = ("--tokenizer", str(scratch / "tokenizer"))
    hornbook("corpus", "build", *texts, *tokenizer, "--validation", "0.2", "--output", str(scratch / "corpus"))
    return scratch / "corpus"


def fingerprint(name: str, output: Path, corpus: Path) -> str:
    """Make one of ``RUNS`` and return the hash of its losses and weights."""
    options = RUNS[name].split()
    if "--data.synthetic" not in options:
        options += ["--data.train", str(corpus)]
    if "--precision.compute" not in options:
        options += ["--precision.compute", "fp32"]
    options += ["--precision.kernels", "torch"]  # what `auto` chooses is measured on the machine
    options += ["--training.steps", str(STEPS), "--training.epochs", "none", "--tracking.log-every-steps", "1"]
    options += ["--evaluation.every-steps", "3", "--tracking.sample-every-steps", "none", "--output", str(output)]
    command = ["train", *options, "--device", "cpu", "--threads", "1"]
    hornbook(*command, ranks=2 if name.endswith("2-ranks") else 1)
    if name.endswith("resumed"):
        shutil.rmtree(output / "checkpoints" / f"step-{STEPS:08d}")
        hornbook(*command)
    return hash_of(output)


def hornbook(*arguments: str, ranks: int = 1) -> None:
    """Run a command of hornbook, under torchrun for several ranks; its output is shown if it fails."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    command = [sys.executable, *launcher, "-m", "hornbook", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    finished = subprocess.run(command, capture_output=True, text=True, env=environment)
    if finished.returncode:
        raise SystemExit(f"{' '.join(command)}\n{finished.stdout}{finished.stderr}")


def hash_of(run: Path) -> str:
    """Return the SHA-256 of a run's losses and of the tensors in its last checkpoint."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [(row["kind"], row["step"], row.get("last_loss", row["loss"]), row.get("gradient_norm")) for row in rows]
    tensors = []
    for file in sorted((run / "checkpoints" / f"step-{STEPS:08d}").glob("*.safetensors")):
        with safe_open(file, framework="np") as opened:
            tensors += [hashlib.sha256(opened.get_tensor(name).tobytes()).hexdigest() for name in opened.keys()]  # noqa: SIM118
    return hashlib.sha256(json.dumps([losses, sorted(tensors)]).encode()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
