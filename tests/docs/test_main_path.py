"""How many files and functions a reader opens to follow a command, as ``tools/trace_path.py`` counts them."""

import re
import sys
from pathlib import Path

import pytest
from pages import ROOT, Shell, write_texts
from tiny_text import build_tiny

SMALL = "--training.steps=4 --training.global-batch-size=8 --training.micro-batch-size=4 --precision.compute=fp32"
TRAIN = (
    "train demo --model.num-layers=2 --model.hidden-size=48 --model.num-heads=4 --model.max-positions=32 "
    f"--data.sequence-length=32 --schedule.warmup-steps=2 --data.train=corpus --output=run {SMALL}"
)
BERT = f"train bert-tiny --data.synthetic --model.vocab-size=300 --training.epochs=none --output=run {SMALL}"
NATIVE = "--precision.kernels=native"
"""The default where native operators are faster; what ``auto`` chooses is measured on the machine."""
BUILD = "corpus build texts --from blank-lines --tokenizer corpus/train --validation 0.3 --output built"
STEP = "--between hornbook.engine.step:train_step"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "most_files", "most_functions"),
    [
        (f"{STEP} {TRAIN} {NATIVE}", 30, 107),
        (f"{STEP} {TRAIN} --precision.kernels=torch", 28, 99),
        (f"{STEP} {BERT} {NATIVE}", 31, 119),
        (f"--until hornbook.optim.adam:adamw {TRAIN} {NATIVE}", 77, 559),
        ("generate run --prompt a --output-length 8", 55, 351),
        (BUILD, 37, 266),
    ],
    ids=["one step", "one step by PyTorch", "one BERT step", "until the first update", "generation", "corpus build"],
)
def test_a_reader_opens_few_files(tmp_path: Path, command: str, most_files: int, most_functions: int) -> None:
    write_texts(tmp_path / "texts")
    build_tiny(tmp_path / "corpus")
    if command.startswith("generate"):
        Shell(tmp_path).run(f"hornbook {TRAIN}")
        Shell(tmp_path).run(f"hornbook {command}")  # the first one on a machine also times native forms
    printed = Shell(tmp_path).run(f"{sys.executable} {ROOT / 'tools' / 'trace_path.py'} {command}")
    counted = re.search(r"^(\d+) files of [\d,]+ lines, (\d+) functions$", printed, re.MULTILINE)
    assert counted is not None, printed
    files, functions = map(int, counted.groups())
    assert files <= most_files, printed
    assert functions <= most_functions, printed
    assert files > most_files // 2, "hardly anything was traced"
