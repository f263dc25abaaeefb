"""Every layout of ranks, precision and family of models against one process: a matrix of what they differ by.

    trial 0   data 2, GPT in fp32        five steps on two ranks, and on one process        losses differ by 1e-07
    trial 1   shard 2, decoder in fp32   ...

A cell is the largest relative difference of the losses. What is compared, and how, is what hornbook promises and its
tests demand:

- Initial weights are equal bit for bit; so are the steps that fp16 skips, and its loss scales.
- fp32: each gradient of the first step to 1e-6 of the norm of all; losses, norms and terms, accuracies too, to 1e-6
  (docs/parallel.md, "Equal results on every layout"; tests/parallel/test_layouts.py).
- Pipelines without other axes, phased execution and recomputation: bit for bit, in each precision, with PyTorch's
  operators (docs/parallel.md, docs/memory-and-precision.md; tests/parallel/test_pipelines.py,
  tests/engine/test_phased.py).
- Activations in bf16: gradients to 1e-2, losses to 2e-3 (tests/parallel/test_narrow_gathers.py: bf16 rounds what it did
  not round). Norms are those of gradients, so they may differ as much as these. fp16 has three more bits: an eighth.
- Weights, gradients and moments stored in bf16: gradients, and norms, to 5e-3, losses to 1e-3
  (tests/parallel/test_layouts.py, whose layouts keep norms to 1e-3, too). In 16 bits, a token may be predicted
  otherwise, so accuracies are not compared.

Combinations that the documentation excludes must be refused, in one line a reason and with exit code 2, and no other
ones may be.
Block-sparse layers are rewired in fp32 alone: where scores of blocks agree to rounding, ranks may choose other blocks,
and 16 bits round more; nor with micro-batches of another size, on which scores depend (docs/sparse.md).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from small_runs import merged
from tiny_layouts import begin, words_of
from trials import Outcome, Part, Trial, in_child
from worlds import HYBRID, PHASED, PIPELINE, SCHEDULE, SEQUENCE, SHARD, TENSOR, ends_of, fork_ranks

from hornbook.cli.main import main
from hornbook.config import ParallelConfig, Recipe, load_recipe
from hornbook.config.sections import MemoryConfig
from hornbook.engine.step import train_step
from hornbook.measure.verification import keeping_gradients, whole_tensors
from hornbook.parallel.world import World


class Tolerances(NamedTuple):
    """Largest differences: of a gradient relative to the norm of all, and relative ones of losses and of norms."""

    gradients: float
    losses: float
    norms: float


_EXACT = Tolerances(0.0, 0.0, 0.0)
_STEPS = 5
_SMALLER = "accumulation"
LAYOUTS: dict[str, tuple[int, str]] = {
    "data 2": (2, ""),
    "shard 2": (2, SHARD),
    "tensor 2": (2, f"{TENSOR}2"),
    "1f1b 2": (2, f"{PIPELINE}2"),
    "hybrid 2x2": (4, f"{HYBRID}2"),
    _SMALLER: (1, "training.micro_batch_size=1"),
    "recomputed": (1, "memory.recompute=all"),
    "phased": (1, PHASED),
    "shard 2, phased": (2, f"{SHARD} {PHASED}"),
    "sequence 2": (2, f"{TENSOR}2 {SEQUENCE}"),
    "gpipe 2": (2, f"{PIPELINE}2 {SCHEDULE}gpipe"),
    "interleaved 2": (2, f"{PIPELINE}2 {SCHEDULE}interleaved"),
    "zero-bubble 2": (2, f"{PIPELINE}2 {SCHEDULE}zero-bubble"),
    "v-shaped 2": (2, f"{PIPELINE}2 {SCHEDULE}v-shaped"),
    "data 4": (4, ""),
    "shard 4": (4, SHARD),
    "tensor 4": (4, f"{TENSOR}4"),
    "1f1b 4": (4, f"{PIPELINE}4"),
    "tensor 2 x shard 2": (4, f"{TENSOR}2 {SHARD}"),
    "1f1b 2 x data 2": (4, f"{PIPELINE}2"),
    "1f1b 2 x shard 2": (4, f"{PIPELINE}2 {SHARD}"),
    "1f1b 2 x tensor 2": (4, f"{PIPELINE}2 {TENSOR}2"),
    "1f1b 2 x tensor 2 x shard 2": (8, f"{PIPELINE}2 {TENSOR}2 {SHARD}"),
}
"""The number of ranks, and the options."""
_SPARSE = "sparsity.linears=blocks.* sparsity.density=0.25 sparsity.block_size=8"
FAMILIES: dict[str, tuple[str, str]] = {
    "GPT": ("gpt", ""),
    "decoder": ("decoder", ""),
    "sparse GPT": ("gpt", _SPARSE),
    "BERT": ("bert packed", ""),
    "GroupBERT": ("groupbert", ""),
    "ModernBERT": ("modernbert", ""),
}
"""The model of ``tiny_layouts``, and more options."""
_REWIRED = "sparsity.update=rigl sparsity.update_interval=3"
_STORED = ("weights", "gradients", "first_moment", "second_moment")
PRECISIONS: dict[str, tuple[str, Tolerances]] = {
    "fp32": ("precision.compute=fp32", Tolerances(1e-6, 1e-6, 1e-6)),
    "bf16": ("precision.compute=bf16", Tolerances(1e-2, 2e-3, 1e-2)),
    "fp16": ("precision.compute=fp16", Tolerances(1e-2 / 8, 2e-3 / 8, 1e-2 / 8)),
    "16-bit storage": (" ".join(f"precision.{name}=bf16" for name in _STORED), Tolerances(5e-3, 1e-3, 5e-3)),
}


def cell_of(number: int) -> tuple[str, str, str]:
    """Return layout, family and precision of a trial: one precision after the other, each time all layouts in turn."""
    turn, row = divmod(number, len(LAYOUTS))
    precision, column = divmod(turn, len(FAMILIES))
    return list(LAYOUTS)[row], list(FAMILIES)[(row + column) % len(FAMILIES)], list(PRECISIONS)[precision]


def why_refused(layout: str, family: str) -> str:
    """Return where the documentation excludes a combination; "" if it does not."""
    options = LAYOUTS[layout][1]
    if family == "sparse GPT" and (TENSOR in options or "data_parallel" in options):
        return "docs/sparse.md, Limits"
    if family == "sparse GPT" and "phased" in options:
        return "docs/memory-and-precision.md, Phased execution"
    if family == "decoder" and f"{TENSOR}4" in options:
        return "docs/parallel.md, Limits: 2 key-value heads"
    return ""


def is_exact(layout: str) -> bool:
    """Return whether the layout computes the same numbers as one process, in the same order."""
    options = LAYOUTS[layout][1].split()
    return (
        bool(options)
        and all(option.startswith((PIPELINE, SCHEDULE, "memory.")) for option in options)
        and (" x " not in layout)
    )


def words_in(layout: str, family: str, precision: str) -> list[str]:
    """Return a recipe and its options; the optimizer goes with family and precision."""
    model, more = FAMILIES[family]
    words = words_of(
        model, ("adamw", "lamb", "muon")[(list(FAMILIES).index(family) + list(PRECISIONS).index(precision)) % 3]
    )
    if family == "sparse GPT" and precision == "fp32" and layout != _SMALLER:
        more = f"{more} {_REWIRED}"
    chosen = f"{PRECISIONS[precision][0]} precision.kernels=torch training.steps={_STEPS}"
    return merged(words, *f"{chosen} {more} {LAYOUTS[layout][1]}".split())


def _train(recipe: Recipe, world: World, path: Path) -> None:
    """Train some steps; the first rank writes what is compared."""
    state, config, loader = begin(recipe, world)
    held = {name: value for name, value in state.model.own_parameters() if not value.is_meta}
    initial = whole_tensors(state.model, held, world)
    observed, gradients = keeping_gradients(config)
    results = [train_step(state, next(loader), observed) for _ in range(_STEPS)]
    if world.is_first:
        kept = {
            "losses": [result.loss for result in results],
            "norms": [result.gradient_norm for result in results],
            **{name: [result.terms[name] for result in results] for name in results[0].terms},
            "skipped": [result.skipped for result in results],
            "scales": [result.loss_scale for result in results],
        }
        torch.save({"initial": initial, "gradients": gradients, "kept": json.dumps(kept)}, path)


def _train_rank(recipe: Recipe, path: Path) -> int:
    torch.set_num_threads(1)
    world = World.join(torch.device("cpu"), recipe.parallel)
    with world.session():
        _train(recipe, world, path)
    return 0


def _run(trial: Trial) -> str:
    layout, family, precision = cell_of(trial.number)
    size, words = LAYOUTS[layout][0], words_in(layout, family, precision)
    if reason := why_refused(layout, family):
        _expect_refusal(
            [*words, f"--output={trial.folder / 'run'}", "--device=cpu", f"--processes={size}"], trial, reason
        )
        return f"{layout}, {family} in {precision}: refused"
    recipe = load_recipe(words[0], words[1:]).recipe
    name, path = f"{family} {precision}{' by 1' * (layout == _SMALLER)}", trial.folder / "ranks.pt"
    reference = _alone(trial, recipe, name)
    codes = ends_of(fork_ranks(size, partial(_train_rank, recipe, path), trial.log))
    assert codes == [0] * size, f"exit codes {codes}"
    found, expected = (torch.load(each, weights_only=True) for each in (path, reference))
    tolerances = _EXACT if is_exact(layout) else PRECISIONS[precision][1]
    largest = _deviation(found, expected, tolerances, with_accuracies=is_exact(layout) or precision == "fp32")
    return f"{layout}, {family} in {precision}: {largest:.0e}"


def _alone(trial: Trial, recipe: Recipe, name: str) -> Path:
    """Return the file of what one process does, which is kept for later trials."""
    path = trial.shared / f"{name}.pt"
    if not path.exists():
        training = replace(recipe.training, micro_batch_size=2)  # those of accumulation have one sequence
        plain = replace(recipe, parallel=ParallelConfig(), memory=MemoryConfig(), training=training)
        own = trial.folder / "alone.pt"
        _, problem = in_child(lambda: _train(plain, World(), own), trial.log)
        assert problem is None, f"one process: {problem}"
        own.rename(path)
    return path


def _expect_refusal(words: Sequence[str], trial: Trial, reason: str) -> None:
    said = trial.folder / "said"
    code, problem = in_child(lambda: main(["train", *words]), said)
    lines = said.read_text().splitlines()
    assert (code, problem) == (2, None), f"{reason}: exit code {code}, {problem}, {lines}"
    assert lines and all(line.startswith("hornbook: error: ") for line in lines), lines
    assert not (trial.folder / "run").exists(), "it left a folder"


def _deviation(
    found: Mapping[str, Any], expected: Mapping[str, Any], tolerances: Tolerances, *, with_accuracies: bool
) -> float:
    """Compare two trainings, and return the largest relative difference of their losses."""
    for group in ("initial", "gradients"):
        assert found[group].keys() == expected[group].keys(), f"other names of {group}"
    for name, tensor in expected["initial"].items():
        assert torch.equal(found["initial"][name], tensor), f"{name} begins otherwise"
    ours, theirs = (json.loads(side["kept"]) for side in (found, expected))
    for name in ("skipped", "scales"):
        assert ours[name] == theirs[name], f"{name} {ours[name]} instead of {theirs[name]}"
    norm = torch.cat([tensor.double().flatten() for tensor in expected["gradients"].values()]).norm()
    for name, gradient in expected["gradients"].items():
        off = float((found["gradients"][name].double() - gradient.double()).norm() / norm)
        assert off <= tolerances.gradients, f"the gradient of {name} is {off:.1e} of the norm off"
    pairs = {
        name: list(zip(ours[name], theirs[name], strict=True))
        for name in ("losses", "norms", *(name for name in theirs if with_accuracies or not name.endswith("accuracy")))
        if name not in ("skipped", "scales")
    }
    off_by: dict[str, float] = {
        name: max(abs(a - b) / abs(b or 1.0) for a, b in values) for name, values in pairs.items()
    }
    for name, off in off_by.items():
        allowed = tolerances.norms if name == "norms" else tolerances.losses
        assert off <= allowed, f"{name} are off by {off:.1e}, not at most {allowed:.1e}"
    return off_by["losses"]


def matrix(outcomes: Sequence[Outcome]) -> str:
    """Return a table for each precision in Markdown: layouts by families, a cell for each trial."""
    cells = {
        cell_of(outcome.number): outcome.kind.rpartition(": ")[2] if outcome.error is None else "**broken**"
        for outcome in outcomes
    }
    lines = []
    for precision in (each for each in PRECISIONS if each in {precision for _, _, precision in cells}):
        lines += [f"| {precision} | {' | '.join(FAMILIES)} |", "|---" * (1 + len(FAMILIES)) + "|"]
        for layout in LAYOUTS:
            row = [cells.get((layout, family, precision), "") for family in FAMILIES]
            lines += [f"| {layout} | {' | '.join(row)} |"] * any(row)
        lines.append("")
    return "\n".join(lines)


LAYOUTS_PART = Part(
    name="layouts",
    promise="every layout of ranks, precision and family learns what one process learns: in fp32 to 1e-6, pipelines "
    "alone bit for bit; what is not supported is refused in one line",
    run=_run,
    trials=len(LAYOUTS) * len(FAMILIES) * len(PRECISIONS),
    short=4,
    details=matrix,
)
