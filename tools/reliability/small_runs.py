"""Twelve kinds of training runs of a few seconds, and the state that they end in."""

from pathlib import Path

import pytest
import tiny_runs

from hornbook import checkpoint
from hornbook.errors import StoppedBySignal

STEPS = 20
SAVED_EVERY = 5
_LENGTH = (f"--training.steps={STEPS}", f"--checkpoint.every-steps={SAVED_EVERY}", "--checkpoint.keep-last=2")
_SENTENCES = ("--model.max-positions=32", "--objective.mask-probability=0.3")
_SPARSE = ("linears=blocks.*", "density=0.25", "block-size=8", "update=rigl", "update-interval=3", "prune-ratio=0.3")
KINDS: dict[str, tuple[str, ...]] = {
    "GPT fp32": (),
    "GPT bf16": ("--precision.compute=bf16",),
    "GPT fp16": ("--precision.compute=fp16",),
    "GPT accumulation": ("--training.micro-batch-size=1", "--model.attention-dropout=0.2"),
    "decoder Muon": (
        "--model.family=decoder",
        "--optimizer.name=muon",
        "--optimizer.learning-rate=0.02",
    ),
    "GPT stored in 16 bits": ("--precision.weights=bf16", "--precision.gradients=bf16"),
    "GPT phased": ("--memory.execution=phased",),
    "GPT saved behind": ("--checkpoint.background",),
    "sparse, rewired": tuple(f"--sparsity.{option}" for option in _SPARSE),
    "BERT": ("--model.family=bert", "--objective.name=mlm_nsp", *_SENTENCES),
    "RoBERTa": ("--model.family=roberta", "--objective.name=mlm", *_SENTENCES),
    "GroupBERT": ("--model.family=groupbert", "--objective.name=mlm_nsp", *_SENTENCES),
}


def train_small(kind: str, folder: Path, *overrides: str) -> None:
    """Start or resume a run of ``kind`` in ``folder``, which is called "run", on one thread."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    tiny_runs.run_tiny(folder.parent, *_LENGTH, *KINDS[kind], *overrides)


def train_small_until(kind: str, folder: Path, step: int, *overrides: str) -> bool:
    """Train with a SIGTERM after a step, in a process for it alone; return whether that step was saved."""
    tiny_runs.stop_after(pytest.MonkeyPatch(), step)
    try:
        train_small(kind, folder, *overrides)
    except StoppedBySignal as stopped:
        return f"step {step} of {STEPS} is saved" in str(stopped)
    return False


def digest(run: Path) -> dict[str, str]:
    """Return the hashes of the last checkpoint's files without what a clock decides."""
    found: dict[str, str] = tiny_runs.digest(run.parent, STEPS)
    return found


def newest_step(run: Path, *, at_least: int = 0) -> int:
    """Return the step of the newest checkpoint, 0 for none; fail if one is damaged or that of ``at_least`` is lost."""
    damaged: list[str] = []
    newest = checkpoint.newest_sound(run / "checkpoints", damaged.append)
    step = int(newest.name.removeprefix("step-")) if newest else 0
    assert not damaged, f"a committed checkpoint is damaged: {damaged}"
    assert step >= at_least, f"the committed checkpoint of step {at_least} was lost; the newest is {step}"
    return step


def merged(words: list[str], *changes: str) -> list[str]:
    """Return a recipe and its options, some replaced by ``changes``, such as "training.steps=9"."""
    name, *options = words
    found = {option.removeprefix("--").partition("=")[0].replace("-", "_"): option for option in options}
    found |= {change.partition("=")[0].replace("-", "_"): f"--{change}" for change in changes}
    return [name, *found.values()]
