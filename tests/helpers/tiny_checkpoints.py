"""Checkpoints of a few hundred bytes for the tests of this folder, and how to compare them."""

from pathlib import Path

import torch

from hornbook.checkpoint import Contents, list_checkpoints, load, save
from hornbook.errors import HornbookError


def contents(step: int) -> Contents:
    """Contents that differ from step to step in every file."""
    values = torch.arange(12, dtype=torch.float32).reshape(3, 4) + step
    return Contents(
        step=step,
        tensors={
            "model": {"weight": values, "half": values[0].bfloat16(), "bias": torch.tensor(float(step))},
            "optimizer": {"weight.mean": -values, "weight.variance": values.square(), "count": torch.tensor(step)},
        },
        documents={"state": {"step": step, "samples": 8 * step, "best_loss": None}, "recipe": {"name": f"at {step}"}},
        files={"tokenizer.json": f'{{"model": "of step {step}"}}'.encode()},
    )


def saved(folder: Path, *steps: int) -> list[Path]:
    return [save(folder, contents(step)) for step in steps]


def assert_equal(found: Contents, expected: Contents) -> None:
    assert found.step == expected.step
    assert found.documents == expected.documents
    assert found.files == expected.files
    assert {group: set(tensors) for group, tensors in found.tensors.items()} == {
        group: set(tensors) for group, tensors in expected.tensors.items()
    }
    for group, tensors in expected.tensors.items():
        for name, tensor in tensors.items():
            other = found.tensors[group][name]
            assert other.dtype == tensor.dtype and other.shape == tensor.shape
            assert bool((other == tensor).all())


def assert_sound(folder: Path, *steps: int) -> None:
    """All that looks like a checkpoint in ``folder`` is whole, holds what was saved, and is of just these steps."""
    found = list_checkpoints(folder)
    assert [(info.step, info.problems) for info in found] == [(step, []) for step in steps]
    for info in found:
        assert_equal(load(info.path), contents(info.step))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def one_line(error: HornbookError) -> str:
    assert "\n" not in str(error)
    return str(error)
