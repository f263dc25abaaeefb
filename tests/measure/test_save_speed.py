"""``hornbook bench save``: real saves of a tiny training, which leave nothing behind."""

import json
from pathlib import Path

import pytest

from hornbook.__main__ import main

SIZES = (
    "--model.num-layers=1", "--model.hidden-size=32", "--model.num-heads=2", "--model.max-positions=16",
    "--sequence-length=16", "--batch-size=2", "--micro-batch-size=2",
)  # fmt: skip


def test_a_save_costs_more_than_a_write_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "save", "demo", *SIZES, "--rounds", "2", "--threads", "1", "--folder", str(tmp_path), "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["num_bytes"] > 8 * found["num_parameters"], "weights and at least one moment"
    assert 0 < found["plain_seconds"] < found["save_seconds"]
    assert found["overhead"] == pytest.approx(found["save_seconds"] / found["synced_seconds"] - 1)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "save", "demo", *SIZES, "--threads", "1", "--folder", str(tmp_path / "missing")]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "missing" in line and "Traceback" not in line
