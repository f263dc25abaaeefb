"""How many files and functions a reader opens to follow a command, as ``tools/trace_path.py`` counts them."""

import re
import sys
from pathlib import Path

import pytest
from pages import ROOT, Shell, write_texts
from tiny_text import build_tiny

TRAIN = (
    "train demo --model.num-layers=2 --model.hidden-size=48 --model.num-heads=4 --model.max-positions=32 "
    "--data.sequence-length=32 --training.global-batch-size=8 --training.micro-batch-size=4 --training.steps=4 "
    "--schedule.warmup-steps=2 --precision.compute=fp32 --precision.kernels=torch --data.train=corpus --output=run"
)
BUILD = "corpus build texts --from blank-lines --tokenizer corpus/train --validation 0.3 --output built"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "most_files", "most_functions"),
    [
        (f"--between hornbook.engine.step:train_step {TRAIN}", 22, 75),
        (f"--until hornbook.optim.updates:adamw {TRAIN}", 58, 451),
        (BUILD, 26, 208),
    ],
    ids=["one step", "until the first update", "corpus build"],
)
def test_a_reader_opens_few_files(tmp_path: Path, command: str, most_files: int, most_functions: int) -> None:
    write_texts(tmp_path / "texts")
    build_tiny(tmp_path / "corpus")
    printed = Shell(tmp_path).run(f"{sys.executable} {ROOT / 'tools' / 'trace_path.py'} {command}")
    counted = re.search(r"^(\d+) files of [\d,]+ lines, (\d+) functions$", printed, re.MULTILINE)
    assert counted is not None, printed
    files, functions = map(int, counted.groups())
    assert files <= most_files, printed
    assert functions <= most_functions, printed
    assert files > most_files // 2, "hardly anything was traced"
