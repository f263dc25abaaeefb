"""A run that corrects its own length is the run of the corrected recipe."""

import json
import time
from pathlib import Path

import torch
from tiny_text import build_tiny

from hornbook.checkpoint import steps_in
from hornbook.config import load_recipe
from hornbook.run.launch import train


def weights(folder: Path) -> bytes:
    (newest,) = steps_in(folder / "checkpoints")[-1:]
    return b"".join(path.read_bytes() for path in sorted((folder / "checkpoints").glob(f"*{newest}/*.safetensors")))


def test_the_corrected_run_is_that_of_its_recipe(tmp_path: Path) -> None:
    build_tiny(tmp_path / "corpus")
    words = ["--data.train", str(tmp_path / "corpus"), "--data.sequence-length=8", "--model.hidden-size=64"]
    words += ["--model.num-layers=1", "--training.steps=400", "--schedule.warmup-steps=10", "--precision.compute=fp32"]
    words += ["--evaluation.every-steps=1000", "--checkpoint.every-steps=1000", "--tracking.sample-every-steps=none"]
    resolved = load_recipe("decoder-demo", words)
    short, again = tmp_path / "short", tmp_path / "again"
    found = train(resolved, output=short, device="cpu", threads=1, ends_at=time.time() + 1)
    assert found["step"] == 289  # 101 / (1 - 0.65): the decay must not have begun
    assert json.loads((short / "run.json").read_text())["recipe"]["training"]["steps"] == 289
    repeated = train(load_recipe(str(short)), output=again, device="cpu", threads=1)
    assert repeated["step"] == 289
    assert weights(short) == weights(again) != b""
    assert torch.get_num_threads() == 1
