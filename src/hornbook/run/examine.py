"""Find everything that `hornbook train` would reject, without training: the same checks, but all rather than the first.

::

    ranks -> data -> folder -> memory -> weights -> checkpoints -> schedule -> disk -> tasks -> warnings
                |        a check that fails is a finding, and the next check uses what is available
                +-> unreadable: each store is opened alone, so that each has its own finding

Nothing is written, and the model is built on the meta device. Costly checks are left to the training: every byte of a
checkpoint, all samples except those of one micro-batch, the memory of activations.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch

from hornbook import checkpoint
from hornbook.config import Recipe
from hornbook.corpora.store import open_store
from hornbook.engine.build_training import build_samples, num_steps, refuse_layout
from hornbook.engine.state import Progress, TrainState
from hornbook.errors import CheckpointError, HornbookError, RecipeError, UserError
from hornbook.evaluate import tasks
from hornbook.evaluate.tasks import TaskInput
from hornbook.exchange.contents import refuse_mismatch, refuse_misplaced_blocks, upgrade
from hornbook.exchange.restore import LoadedModel
from hornbook.parallel.device import choose_device
from hornbook.parallel.ranks import Ranks
from hornbook.parallel.world import World, axes_of
from hornbook.run.initial_weights import InitFrom, outline
from hornbook.run.launch import open_data, origin_of
from hornbook.run.planning import scarce_memory
from hornbook.run.preflight import (
    Check,
    Finding,
    checks_of_data,
    checks_of_recipe,
    checks_of_state,
    find_mistakes,
    find_unused_vocabulary,
    refuse_large_model,
)
from hornbook.run.run_folder import RunFolder
from hornbook.run.scheduled_tasks import TASK_DATA, refuse_unknown_metric
from hornbook.samples.batches import Loader, Samples
from hornbook.samples.sources import Sources
from hornbook.storage import refuse_file
from hornbook.storage.system import is_locked
from hornbook.wording import counted

P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class Findings:
    """The findings so far."""

    found: list[Finding] = field(default_factory=list)

    def check(self, about: str, call: Callable[P, R], *arguments: P.args, **options: P.kwargs) -> R | None:
        """Return the result of a call; if it raises a HornbookError, add a finding and return None."""
        try:
            return call(*arguments, **options)
        except HornbookError as error:
            for problem in error.problems if isinstance(error, RecipeError) else [str(error)]:
                self._add(Finding("error", about, problem))
            return None

    def check_all(self, checks: Iterable[Check]) -> None:
        """Make the checks in their order."""
        for about, call in checks:
            self.check(about, call)

    def warn(self, about: str, message: str | None) -> None:
        """Add a warning unless ``message`` is None."""
        if message is not None:
            self._add(Finding("warning", about, message))

    def _add(self, finding: Finding) -> None:
        if finding not in self.found:
            self.found.append(finding)


def choose_devices(name: str, processes: int, findings: Findings) -> torch.device:
    """Return the first process's device, or the CPU if the machine lacks it; each process needs its own.

    Args:
        name: see `choose_device`.
        processes: processes on this machine.
        findings: receive an error for a missing device.
    """
    device = findings.check("device", choose_device, name) or torch.device("cpu")
    if device.type == "cuda" and processes > 1:
        findings.check("device", choose_device, f"cuda:{processes - 1}")
    return device


def examine(
    recipe: Recipe,
    output: Path,
    device: torch.device,
    processes: int = 1,
    init_from: InitFrom | None = None,
    *,
    allow_rate_change: bool = False,
) -> list[Finding]:
    """Return the errors that would prevent training, and warnings about likely mistakes.

    Args:
        recipe: the loaded recipe; values from its data are added here.
        output: the run's folder.
        device: the first process's device.
        processes: processes that share each global batch.
        init_from: initial weights of a new run.
        allow_rate_change: see `hornbook.run.launch.train`.
    """
    findings, folder, everyone = Findings(), RunFolder(path=output), Ranks(0, processes)
    axes = Findings().check("ranks", axes_of, recipe.parallel, everyone, device, None)
    world = World(everyone, axes, device) if axes else World(device=device)  # the sizes are an error below
    findings.check_all(checks_of_recipe(recipe, processes))
    if axes:
        findings.check("ranks", refuse_layout, recipe, world)
    recipe, sources = _open(recipe, folder, init_from, findings) or (recipe, None)
    findings.check("output", _refuse_folder, folder.path)
    if sources is None:
        findings.check("memory", refuse_large_model, recipe, world)
    else:
        _examine_run(recipe, sources, folder, world, init_from, allow_rate_change, findings)
    if not any(finding.about == "memory" for finding in findings.found):
        findings.warn("memory", Findings().check("memory", scarce_memory, recipe, world.size, device))
    return findings.found


def _open(
    recipe: Recipe, folder: RunFolder, init_from: InitFrom | None, findings: Findings
) -> tuple[Recipe, Sources] | None:
    """Open the data; if that fails, open each store alone, since the first error hides the others.

    If the recipe's vocabulary is too small, continue with the data's.
    """
    together, alone = Findings(), Findings()
    opened = together.check("data", open_data, recipe, folder, init_from)
    if opened is None and recipe.model.vocab_size is not None:
        own_vocabulary = replace(recipe, model=replace(recipe.model, vocab_size=None))
        opened = alone.check("data", open_data, own_vocabulary, folder, init_from)
        alone = Findings()
        findings.found += together.found if opened else []
    if opened is None:
        for path in recipe.data.train:
            data = replace(recipe.data, train=(path,), validation=None, weights=())
            alone.check("data", open_data, replace(recipe, data=data), folder, init_from)
        if recipe.data.validation and not recipe.data.tokenizer:  # else it is not a store
            alone.check("data", open_store, recipe.data.validation, split="validation")
        findings.found += alone.found or together.found
    return opened


def _refuse_folder(path: Path) -> None:
    refuse_file(path, writes=True)
    if is_locked(path):
        raise UserError(f"{path} is in use by another process; wait until it ends, stop it, or choose another folder")


def _examine_run(
    recipe: Recipe,
    sources: Sources,
    folder: RunFolder,
    world: World,
    init_from: InitFrom | None,
    allow_rate_change: bool,
    findings: Findings,
) -> None:
    """Make the checks that need the data."""
    if recipe.tracking.sample_every_steps is not None and sources.tokenizer is not None:
        findings.check("tokenizer", sources.tokenizer.require_end_of_text)
    samples = findings.check("data", build_samples, recipe, sources, on_cpu=world.device.type == "cpu")
    if samples is None:
        findings.check("memory", refuse_large_model, recipe, world)
    else:
        findings.check("data", _read_one, recipe, samples)
        findings.check_all(checks_of_data(recipe, samples, world, folder.path))
    findings.check("output", folder.refuse_other_run, recipe, sources.fingerprints)
    findings.check("weights", origin_of, folder, init_from, recipe, sources)
    if samples is None:
        return
    steps, state = num_steps(recipe, samples), outline(recipe)
    findings.check("checkpoints", _resume, folder, state, findings)
    before = None if allow_rate_change else findings.check("output", lambda: folder.last_recipe)
    findings.check_all(checks_of_state(before, recipe, samples, state, folder.path))
    if state.progress.step >= steps:
        done = counted(state.progress.step, "step")
        mend = "raise training.steps, or choose another `output`"
        findings.warn("output", f"{folder.path} is finished: {done}; nothing to do; {mend}")
        return
    findings.check("evaluation", _check_tasks, recipe, sources, state, folder)
    for mistake in find_mistakes(recipe, samples, sources, steps):
        findings.warn("recipe", mistake)
    if state.progress.step == 0 and init_from is None:
        findings.warn("vocabulary", find_unused_vocabulary(recipe, sources))


def _read_one(recipe: Recipe, samples: Samples) -> None:
    """Read a micro-batch, which raises an error for tokens outside the vocabulary.

    Raises:
        DataError: there are such tokens, or samples that cannot be read.
    """
    size = recipe.training.micro_batch_size
    with Loader(
        samples.maker,
        global_batch_size=size,
        micro_batch_size=size,
        rank=0,
        world_size=1,
        start_sample=0,
        vocab_size=None if getattr(recipe.model, "clamp_tokens", False) else recipe.model.vocab_size,
        prefetch=0,
    ) as loader:
        next(loader)


def _resume(folder: RunFolder, state: TrainState, findings: Findings) -> None:
    """Read the progress of the newest checkpoint with a valid one, without the weights.

    Raises:
        CheckpointError: there are checkpoints, but none can be read.
    """
    own = state.home.tensors()
    steps = checkpoint.steps_in(folder.checkpoints)
    for step in reversed(steps):
        path = checkpoint.folder_of(folder.checkpoints, step)
        try:
            contents = upgrade(checkpoint.load(path, verified=True), own)
            refuse_mismatch(own, contents.tensors, what=str(path))
            refuse_misplaced_blocks(state.model, contents.tensors["model"], what=str(path))
            state.progress = Progress.from_json(contents.documents.get("state"), f"{path}/state.json")
        except HornbookError as error:
            findings.warn(
                "checkpoints", (f"checkpoint {path} is damaged and will be skipped unless you restore it: {error}")
            )
        else:
            return
    if steps:
        raise CheckpointError(
            f"{folder.checkpoints} has {counted(len(steps), 'checkpoint')}, but none can be read: "
            "restore one to resume; to start over, remove that folder or choose another `output`"
        )


def _check_tasks(recipe: Recipe, sources: Sources, state: TrainState, folder: RunFolder) -> None:
    evaluation = recipe.evaluation
    if not evaluation.tasks:
        return
    refuse_unknown_metric(recipe)
    loaded = LoadedModel(model=state.model, recipe=recipe, tokenizer=sources.tokenizer, step=0, path=folder.path)
    batch = recipe.training.micro_batch_size
    given = TaskInput(loaded=loaded, data_option=TASK_DATA, micro_batch_size=batch, overlap=0)
    tasks.check_tasks(evaluation.tasks, given, tasks.assign_data(evaluation.task_data, evaluation.tasks, TASK_DATA))
