"""Start or resume a run: everything that happens once, before and after the loop.

What few runs need, and what only their end needs, is imported there: a tenth of a second before the first step.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch

from hornbook.config import LabelledConfig, Recipe, Resolved, recipe_to_dict
from hornbook.config.recipe import flatten
from hornbook.config.recipe_files import run_of
from hornbook.engine.build_training import build_samples, build_training, needs_files, num_steps
from hornbook.engine.parallelize import compiles_blocks
from hornbook.errors import DivergedError, HornbookError, UserError
from hornbook.model.sparse_layers import describe_blocks
from hornbook.ops.native.kernels import in_use
from hornbook.parallel.device import dtype_name, prepare, synchronize
from hornbook.parallel.launched import num_ranks, report_once
from hornbook.parallel.world import World
from hornbook.run.callbacks import Callback
from hornbook.run.initial_weights import InitFrom, Origin, agree, inspect
from hornbook.run.loop import train_until_done
from hornbook.run.preflight import (
    checks_of_data,
    checks_of_recipe,
    checks_of_state,
    find_mistakes,
    find_unused_vocabulary,
    scratch_base,
)
from hornbook.run.reached import measure_final, reached, told
from hornbook.run.resume import find_tokenizer, restore
from hornbook.run.run_folder import RunFolder
from hornbook.run.training_run import TrainingRun
from hornbook.run.utilization import measure_utilization
from hornbook.samples.sources import Sources, complete, open_sources
from hornbook.storage import lock_folder, make_directory
from hornbook.track.console import Console
from hornbook.track.environment import record_end, record_session
from hornbook.track.metrics import MetricsLog, cut_back
from hornbook.track.trackers.delivery import Trackers
from hornbook.track.trackers.tracker import TrackedRun
from hornbook.track.units import flop_rate
from hornbook.wording import counted


def train(
    resolved: Resolved,
    *,
    output: Path | None,
    device: str,
    threads: int | None,
    init_from: InitFrom | None = None,
    allow_rate_change: bool = False,
    callbacks: Sequence[Callback] = (),
) -> dict[str, Any]:
    """Train a recipe to its end, from the start or, if its folder has a checkpoint, from there.

    Args:
        resolved: the recipe and the sources of its values.
        output: the run's folder; None for the recipe's own.
        device: auto, cpu, cuda or mps.
        threads: threads of this process on a CPU; None for ``OMP_NUM_THREADS``, or its share of the cores.
        init_from: weights to start a new run from; None for random ones from the seed.
        allow_rate_change: resume although the length of the run, and so the learning rate, was changed.
        callbacks: called after each step and each validation, in each process.

    Returns:
        A summary: run, step, last and best losses, tokens, seconds.

    Raises:
        HornbookError: see `hornbook.errors` and `hornbook.run.loop`.
    """
    folder = output or resolved.output
    init_from = init_from or not_yet_loaded(resolved, folder)
    with report_once():
        chosen = prepare(device, threads)
        for _, check in checks_of_recipe(resolved.recipe, num_ranks()):
            check()
        world = World.join(chosen, resolved.recipe.parallel, recipe_to_dict(resolved.recipe))
    opened = open_run(resolved.recipe, folder, world, init_from, allow_rate_change=allow_rate_change)
    with world.session(), opened as run:
        run.callbacks = callbacks
        for note in resolved.notes:
            run.console.note(note)
        if run.is_finished:
            run.console.note(
                f"{run.folder.path} is finished: {counted(run.state.progress.step, 'step')}; nothing to do"
            )
            if run.world.is_first:
                run.prune()  # the last process may have been killed while pruning
        else:
            try:
                train_until_done(run)
            except DivergedError:
                _note_end(run, "diverged")
                raise
        measure_final(run)
        _note_end(run, "finished")
        return _finish(run)


def not_yet_loaded(resolved: Resolved, folder: Path) -> InitFrom | None:
    """Return the initial weights that a run still has to load, if its folder was named as the recipe."""
    return RunFolder(path=folder).not_yet_loaded if run_of(resolved.path) == folder else None


@contextmanager
def open_run(
    recipe: Recipe, output: Path, world: World, init_from: InitFrom | None = None, *, allow_rate_change: bool = False
) -> Iterator[TrainingRun]:
    """Create a run, resumed from its newest intact checkpoint if it has one; its folder is locked meanwhile.

    A start that is rejected leaves the disk unchanged.
    """
    folder = RunFolder(path=output)
    recipe, sources = open_data(recipe, folder, init_from)
    if world.size > 1:
        world.refuse_difference("the data", str(sorted(sources.fingerprints.items())))
    samples = build_samples(recipe, sources, on_cpu=world.device.type == "cpu")
    for _, check in checks_of_data(recipe, samples, world, output):
        check()
    first = world.is_first
    with ExitStack() as stack:
        console = stack.enter_context(Console() if first else Console(quiet=True, stream=io.StringIO()))
        require_folder = stack.enter_context(lock_folder(output) if first else nullcontext(lambda: None))
        accepted = stack.enter_context(ExitStack())
        before = folder.last_recipe if first else None
        if first:
            accepted.callback(folder.enter(recipe, sources.fingerprints, origin_of(folder, init_from, recipe, sources)))
        steps = num_steps(recipe, samples)
        scratch = scratch_base(recipe, output) if needs_files(recipe, world.device) else None
        if scratch is not None:
            make_directory(scratch)
        state, step_config = build_training(recipe, steps, world, folder.forms, scratch)
        if world.from_first(first and folder.has_begun) or folder.origin:
            restore(state, recipe, folder, world, console)
        refused = None
        try:
            before = None if allow_rate_change else before
            for _, check in checks_of_state(before, recipe, samples, state, output if first else None):
                check()
        except HornbookError as error:
            refused = error
        if tellers := world.ranks_where(refused is not None):  # the first alone knows the earlier recipe and the space
            raise world.reported_by(tellers[0], refused or UserError(f"rank {tellers[0]} rejected this start"))
        run = TrainingRun(
            recipe=recipe,
            num_steps=steps,
            folder=folder,
            device=world.device,
            world=world,
            state=state,
            step_config=step_config,
            samples=samples,
            tokenizer=sources.tokenizer,
            console=console,
            require_folder=require_folder,
        )
        if not run.is_finished:
            _measure_and_check(run)
        accepted.pop_all()
        if first:
            _open_logs(run, stack)
        _announce(run, sources)
        yield run


def _measure_and_check(run: TrainingRun) -> None:
    """Measure the device's peak rate, or take that of earlier sessions, say if it changes, and check the tasks."""
    earlier = run.folder.peaks if run.world.is_first else []
    dtype = run.state.model.compute_dtype
    run.utilization = measure_utilization(run.recipe, run.samples, run.world, dtype, earlier)
    if run.utilization and earlier and (last := earlier[0]) != (now := run.utilization.peak):
        run.console.warn(
            f"the peak rate, of which MFU is a share, is {flop_rate(now.rate)} ({now.device}) for each rank, and was "
            f"{flop_rate(last.rate)} ({last.device}): compare MFU from here on with earlier steps by tflops"
        )
    if run.recipe.evaluation.tasks:
        from hornbook.run.scheduled_tasks import check_tasks_of

        check_tasks_of(run)


def _open_logs(run: TrainingRun, stack: ExitStack) -> None:
    """Record this start, truncate and open the logs, and open the trackers; for the rank that writes.

    Rows of later steps, or of a measurement that a signal interrupted, are removed: they will be written again.

    Args:
        run: receives its logs and trackers.
        stack: closes them.
    """
    folder, progress = run.folder, run.state.progress
    try:
        facts = {"kernels": {"forms": in_use().record, "why": in_use().why}}
        facts |= {"peak": asdict(run.utilization.peak)} if run.utilization else {}
        record_session(folder.environment, progress.step, run.num_steps, facts)
    except HornbookError as error:  # the file is damaged or not writable; not needed to train
        run.why_unrecorded = str(error)
        run.console.warn(f"cannot record this start: {error}")
    measured = {"validation": progress.validated_step, "task": progress.evaluated_step}
    for path, step in ((folder.metrics, progress.step), (folder.samples, progress.sampled_step)):
        if path.exists():
            cut_back(path, step, measured)
    metrics, samples = MetricsLog(folder.metrics, run.console.warn), MetricsLog(folder.samples, run.console.warn)
    if run.recipe.tracking.trackers and not run.is_finished:
        config = {key: list(value) if isinstance(value, tuple) else value for key, value in flatten(run.recipe).items()}
        tracked = TrackedRun(
            name=run.recipe.name,
            project=run.recipe.tracking.project,
            folder=folder.path,
            config=config,
            step=progress.step,
            run_id=None,
        )
        run.trackers = stack.enter_context(Trackers(run.recipe.tracking.trackers, tracked, run.console.warn))
        metrics.also, samples.also = run.trackers.row, run.trackers.sample
    run.metrics, run.samples_log = stack.enter_context(metrics), stack.enter_context(samples)


def _announce(run: TrainingRun, sources: Sources) -> None:
    """Print the facts of the run, and warnings about likely mistakes in the recipe."""
    run.console.start(run.recipe.name, facts(run))
    if run.is_finished:
        return
    for mistake in find_mistakes(run.recipe, run.samples, sources, run.num_steps):
        run.console.warn(mistake)
    is_new = run.state.progress.step == 0 and run.folder.origin is None  # with --init-from, the vocabulary is given
    if is_new and (note := find_unused_vocabulary(run.recipe, sources)):
        run.console.note(note)


def facts(run: TrainingRun) -> dict[str, str]:
    """Return the facts to print before the first step."""
    recipe, model, origin = run.recipe, run.state.model, run.folder.origin
    batch, noun = recipe.training.global_batch_size, run.samples.noun
    tokens = batch * run.samples.tokens_per_sample
    if run.device.type == "cuda":
        device = f"{run.world.size} × {torch.cuda.get_device_name(run.device)}"
    else:
        ranks = f"{run.world.size} ranks, " if run.world.size > 1 else ""
        device = f"{run.device.type}, {ranks}{counted(torch.get_num_threads(), 'thread')}"
    return {
        "model": f"{recipe.model.family}, {model.num_parameters:,} parameters, vocabulary {model.vocab_size:,}",
        **({"blocks": describe_blocks(model)} if recipe.sparsity.is_sparse else {}),
        "data": f"{counted(run.samples.num_samples, noun)} of {recipe.sequence_length} tokens",
        "step": f"{counted(batch, noun)}, {tokens:,.0f} tokens; {counted(run.num_steps, 'step')}",
        **run.samples.facts,
        "device": f"{device}, {dtype_name(model.compute_dtype)} on {recipe.precision.weights} weights",
        "kernels": f"{in_use()}{'; compiled blocks' if compiles_blocks(recipe, run.device) else ''}",
        **({"peak": run.utilization.describe()} if run.utilization else {}),
        "output": str(run.folder.path),
        **({"weights": f"initialized from {origin.path}"} if origin else {}),
        **({"resumed": f"after step {run.state.progress.step:,}"} if run.state.progress.step else {}),
    }


def open_data(recipe: Recipe, folder: RunFolder, init_from: InitFrom | None) -> tuple[Recipe, Sources]:
    """Open the recipe's data, and complete the recipe from it; see `open_sources` for the errors."""
    sources: Sources
    if isinstance(recipe.objective, LabelledConfig):
        from hornbook.samples.labelled_samples import open_labelled

        recipe, sources = open_labelled(recipe, find_tokenizer(recipe, folder, init_from))
    else:
        sources = open_sources(recipe)
    if recipe.tracking.sample_every_steps is not None and sources.tokenizer is not None:
        sources.tokenizer.require_end_of_text()  # samples start with it; fail now rather than at the first one
    return complete(recipe, sources), sources


def _note_end(run: TrainingRun, ended: Literal["finished", "diverged"]) -> None:
    """Record how the run ended, for `hornbook runs list`; warn if that fails."""
    if run.world.is_first:
        try:
            record_end(run.folder.environment, ended)
        except HornbookError as error:
            if str(error) != run.why_unrecorded:
                run.console.warn(f"cannot record the end of the run: {error}")


def origin_of(folder: RunFolder, asked: InitFrom | None, recipe: Recipe, sources: Sources) -> Origin | None:
    """Return the origin of the weights, from the run's folder if it has started; see `inspect` for the errors."""
    if folder.has_begun:
        return agree(asked, folder.origin, recipe, sources.tokenizer) if asked else folder.origin
    return inspect(asked, recipe, sources.tokenizer) if asked else None


def _finish(run: TrainingRun) -> dict[str, Any]:
    synchronize(run.device)
    progress = run.state.progress
    summary: dict[str, Any] = {
        "run": str(run.folder.path),
        "step": progress.step,
        "tokens": progress.tokens,
        "seconds": round(progress.seconds, 3),
        "skipped_steps": progress.skipped_steps,
        "best_by": progress.best_by,
        "best_value": progress.best_value,
        "best_step": progress.best_step,
        "stopped_early": run.why_stopped is not None,
    }
    if run.why_stopped:
        run.console.note(run.why_stopped)
    if run.world.is_first:
        from hornbook.track.report import write_report
        from hornbook.track.runs import read_run, summary_of

        try:
            files = read_run(run.folder.path)
            found = summary_of(files)
            summary |= {
                "loss": found.loss,
                "validation_loss": found.validation_loss,
                "best_validation_loss": found.best_validation_loss,
                "best_validation_step": found.best_step,
            }  # the last and the best in the log, None if not measured
            if end := reached(run, files.rows):
                summary["reached"] = end
                run.console.note(told(end))
            summary["report"] = str(write_report(run.folder.path, files))
            for problem in files.damaged:
                if problem != run.why_unrecorded:
                    run.console.warn(problem)
        except HornbookError as error:
            run.console.warn(f"cannot write the report: {error}")
        else:
            run.console.finish({"report": summary["report"]})
    return summary
