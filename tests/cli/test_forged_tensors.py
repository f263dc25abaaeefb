"""Sparse checkpoints whose hashes match and whose positions of blocks are wrong: every reader refuses them."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_runs
import torch
from cases import mostly_slow
from tiny_text import build_tiny

import hornbook
from hornbook import checkpoint
from hornbook.cli.main import main
from hornbook.errors import CheckpointError
from hornbook.model.sparse_layers import TABLE

UP = "blocks.0.feed_forward.up"
Change = Callable[[torch.Tensor], torch.Tensor]


def with_first(value: int) -> Change:
    """Replace the first entry."""
    return lambda tensor: torch.cat((torch.tensor([value], dtype=tensor.dtype), tensor[1:]))


FORGED: dict[str, tuple[str, Change, str]] = {
    "a huge column": (f"{UP}.columns", with_first(2**31 - 1), "a block is in block column 2147483647, expected 0 to 3"),
    "a huge negative column": (f"{UP}.columns", with_first(-(2**31)), "a block is in block column -2147483648"),
    "a column outside": (f"{UP}.columns", with_first(10**6), "a block is in block column 1000000, expected 0 to 3"),
    "row -1": (f"{UP}.rows", with_first(-1), "a block is in block row -1, expected 0 to 15"),
    "a row outside": (f"{UP}.rows", lambda rows: rows + 16, "a block is in block row 31, expected 0 to 15"),
    "duplicates": (
        f"{UP}.columns",
        torch.zeros_like,
        "blocks are not ordered by row, then column, or two",
    ),
    "unsorted": (f"{UP}.rows", lambda rows: rows.flip(0), "blocks are not ordered by row, then column"),
    "int64": (f"{UP}.rows", lambda rows: rows.long(), f"{UP}.rows is stored as I64, expected I32"),
    "float": (f"{UP}.columns", lambda columns: columns.float(), f"{UP}.columns is stored as F32, expected I32"),
    "too few": (f"{UP}.rows", lambda rows: rows[1:], f"{UP}.rows is ["),
    "a negative age": (f"{UP}.grown_at", with_first(-3), "a block grew after update -3, expected 0 to "),
    "the table": (f"{TABLE}.columns", with_first(2**31 - 1), "a block is in block column 2147483647, expected 0 to 3"),
    "stacked parts": (
        "blocks.0.attention.qkv.rows",
        lambda rows: rows.index_fill(1, torch.tensor([0]), 9),
        "a block is in block row 9, expected 0 to 3",
    ),
    "weights that are integers": (f"{UP}.values", lambda values: values.int(), f"{UP}.values is stored as I32"),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and a run of two steps with sparse layers and a sparse table."""
    folder = tmp_path_factory.mktemp("home")
    build_tiny(folder / "corpus")
    assert main(train(folder, folder / "run")) == 0
    return folder


def train(home: Path, run: Path, *more: str) -> list[str]:
    """The command that trains the run, or goes on with it."""
    tiny_runs.tiny_recipe(home)
    data = f"--data.synthetic false --data.train {home}/corpus --model.vocab-size none --training.steps 2"
    sparsity = "--sparsity.linears blocks.* --sparsity.block-size 8 --sparsity.density 0.3 --sparsity.update rigl"
    table = "--sparsity.update-interval 1 --sparsity.embedding-block-size 8"
    device = "--device cpu --threads 1"
    words = f"train {home}/tiny.toml --output {run} {data} {sparsity} {table} {device}".split()
    return [*words, "--tracking.sample-every-steps", "none", *more]


def forged(home: Path, target: Path, name: str, change: Change) -> Path:
    """A copy of the run whose newest checkpoint has another tensor, with hashes that match."""
    shutil.copytree(home / "run", target)
    path = checkpoint.folder_of(target / "checkpoints", 2)
    contents = checkpoint.load(path)
    tensors = {group: dict(held) for group, held in contents.tensors.items()}
    tensors["model"][name] = change(tensors["model"][name])
    shutil.rmtree(path)
    checkpoint.save(target / "checkpoints", replace(contents, tensors=tensors))
    return target


@pytest.mark.parametrize("kind", mostly_slow(FORGED, 5))
def test_no_command_takes_wrong_positions(
    kind: str, home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    name, change, message = FORGED[kind]
    run = forged(home, tmp_path / "run", name, change)
    short = ("--device", "cpu", "--threads", "1")
    commands = {
        "resume": train(home, run, "--training.steps", "3", "--allow-learning-rate-change"),
        "start": train(home, tmp_path / "new", "--init-from", str(run)),
        "evaluate": ["evaluate", str(run), "--data", str(home / "corpus"), *short],
        "generate": ["generate", str(run), "--prompt", "The", "--output-length", "3", *short],
        "export": ["checkpoint", "export", str(run), "--output", str(tmp_path / "out")],
        "verify": ["checkpoint", "verify", str(run)],
    }
    for words in commands.values():
        capfd.readouterr()
        assert main(words) == 2, words
        (line,) = (line for line in capfd.readouterr().err.splitlines() if line.startswith("hornbook: error: "))
        assert message in line, words
    with pytest.raises(CheckpointError) as caught:
        hornbook.load(run, device="cpu")
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists() and not (tmp_path / "new/run.json").exists()
    assert main(["checkpoint", "list", str(run)]) == 0
    assert f"damaged: {run}" in capfd.readouterr().out


def test_a_block_that_grew_in_the_future_stops_a_resume(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its age would be negative, and the bias correction of its moments NaN."""
    run = forged(home, tmp_path / "run", f"{UP}.grown_at", with_first(3))
    starts = ("--init-from", str(run), "--init-optimizer", "keep")
    for words in (train(home, run, "--training.steps", "3"), train(home, tmp_path / "new", *starts)):
        capfd.readouterr()
        assert main([*words, "--allow-learning-rate-change"]) == 2
        assert "a block grew after update 3, expected 0 to 2" in capfd.readouterr().err
    assert main(["checkpoint", "verify", str(run)]) == 0, "only a training uses ages"


def test_a_sound_sparse_checkpoint_passes(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "verify", str(home / "run")]) == 0
    assert "step-00000002: sound" in capfd.readouterr().out
