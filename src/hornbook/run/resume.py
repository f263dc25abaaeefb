"""Resume a run from its newest intact checkpoint, or else start from the given weights.

::

    step-00000300  damaged: a warning       step-00000200  intact on every rank: resumes here
"""

from pathlib import Path

import hornbook.checkpoint as checkpoint
from hornbook.config import Recipe
from hornbook.engine.state import Progress, TrainState
from hornbook.errors import CheckpointError, UserError
from hornbook.exchange.contents import (
    refuse_mismatch,
    refuse_misplaced_blocks,
    refuse_other_dtypes,
    tokenizer_of,
    upgrade,
)
from hornbook.exchange.restore import read_source
from hornbook.parallel.world import World
from hornbook.run.initial_weights import InitFrom, load_origin
from hornbook.run.run_folder import RunFolder
from hornbook.text.tokenizer import Tokenizer
from hornbook.track.console import Console
from hornbook.wording import counted


def restore(state: TrainState, recipe: Recipe, folder: RunFolder, world: World, console: Console) -> None:
    """Load the newest intact checkpoint, or else the weights to start from, if any.

    Raises:
        CheckpointError: there are checkpoints but none is intact: a new start could overwrite restorable files.
    """
    step = _newest_sound(folder.checkpoints, world, console)
    if not step:
        if (origin := folder.origin) and (note := load_origin(origin, state, recipe)):
            console.note(note)
        return
    path = checkpoint.folder_of(folder.checkpoints, step)
    own = state.home.tensors()
    contents = upgrade(checkpoint.load(path, verified=True), own)
    refuse_mismatch(own, contents.tensors, what=str(folder.checkpoints))
    refuse_other_dtypes(own, contents.tensors, what=str(folder.checkpoints))
    progress = Progress.from_json(contents.documents.get("state"), f"{path}/state.json")
    if progress.step != step:
        raise CheckpointError(f"{path}/state.json has step {progress.step}; use another checkpoint")
    num_updates = progress.num_updates + progress.inherited_updates
    refuse_misplaced_blocks(state.model, contents.tensors["model"], what=str(path), num_updates=num_updates)
    state.load_tensors(contents.tensors)
    state.progress = progress


def _newest_sound(checkpoints: Path, world: World, console: Console) -> int | None:
    """Return the step of the newest intact checkpoint, the same on all ranks; each rank verifies a share of it.

    The first rank chooses the candidates. A checkpoint that is intact for it may be damaged as seen by another rank.
    Raises CheckpointError if there are checkpoints but none is intact.
    """
    steps = checkpoint.steps_in(checkpoints) if world.is_first else []
    num_steps = world.from_first(len(steps))
    for number in reversed(range(num_steps)):
        step = world.from_first(steps[number] if world.is_first else 0)
        path = checkpoint.folder_of(checkpoints, step)
        problems = checkpoint.verify(path, share=(world.rank, world.size))
        world.barrier()  # reading a whole checkpoint takes time
        ranks = world.ranks_where(bool(problems))
        if not ranks:
            return step
        if world.is_first:
            found = "; ".join(problems or checkpoint.verify(path)) or f"on rank {ranks[0]} alone"
            console.warn(f"checkpoint {path} is damaged and skipped: {found}")
    if num_steps:
        raise CheckpointError(
            f"{checkpoints} has {counted(num_steps, 'checkpoint')}, but none is intact: restore one to "
            "resume; to start over, remove that folder or choose another `output`"
        )
    return None


def find_tokenizer(recipe: Recipe, folder: RunFolder, init_from: InitFrom | None) -> Tokenizer:
    """Return the tokenizer of a fine-tuning: the named one, or that of the initial weights.

    Args:
        recipe: may name one.
        folder: the run's folder; its checkpoint, if any, comes first, since the source may be gone.
        init_from: source of a new run's weights.

    Raises:
        UserError: none is named, and the run starts from random weights.
        CheckpointError: the source has no tokenizer, or is damaged.
        DataError: the named file is not a tokenizer.
    """
    if recipe.data.tokenizer is not None:
        return Tokenizer.load(recipe.data.tokenizer)
    origin, own = folder.origin, checkpoint.newest_sound(folder.checkpoints, lambda _: None)
    source = own or (origin.path if origin else init_from.source if init_from else None)
    if source is None:
        raise UserError(
            "labeled texts need a tokenizer: start from a pre-trained model with `init_from=RUN`, or from scratch with "
            "`data.tokenizer=FOLDER`"
        )
    path, contents = read_source(source, only=(), warn=lambda _: None)  # `inspect` and `restore` warn
    tokenizer = tokenizer_of(contents, path)
    if tokenizer is None:
        raise CheckpointError(f"{path} has no tokenizer that hornbook can read: add `data.tokenizer=FOLDER`")
    return tokenizer
