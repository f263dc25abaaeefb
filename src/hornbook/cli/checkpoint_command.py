"""``hornbook checkpoint``: list, verify, import and export checkpoints.

hornbook checkpoint list runs/demo
      step        size  state
       400     9.1 MiB  sound
       800     9.1 MiB  damaged: model-00000.safetensors has 512 bytes, expected 3145904
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hornbook.cli import checkpoint_exchange
from hornbook.cli.table import say
from hornbook.storage.system import format_bytes

if TYPE_CHECKING:
    from hornbook.checkpoint import Info


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare ``list`` and ``verify``, ``import`` and ``export``."""
    commands = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
    shown = commands.add_parser(
        "list", help="list the checkpoints of a run", description="List the checkpoints of a run."
    )
    shown.add_argument("path", type=Path, metavar="RUN", help="run folder, or its checkpoints folder")
    shown.set_defaults(handler=lambda arguments: list_command(arguments.path))
    checked = commands.add_parser(
        "verify",
        help="verify the checksums of all files",
        description="Verify the checksums of all files of checkpoints, and the positions of blocks of sparse models.",
    )
    checked.add_argument(
        "path", type=Path, metavar="CHECKPOINT", help="checkpoint, or run folder to verify all of its checkpoints"
    )
    checked.set_defaults(handler=lambda arguments: verify_command(arguments.path))
    checkpoint_exchange.add_arguments(commands)


def list_command(folder: Path) -> dict[str, Any]:
    """Return and print the checkpoints of a run, or of a folder of checkpoints, oldest first.

    Raises CheckpointError if the folder does not exist.
    """
    from hornbook.checkpoint.listing import checkpoints_of, list_checkpoints
    from hornbook.config.suggest import did_you_mean_path
    from hornbook.errors import CheckpointError

    if not folder.is_dir():
        raise CheckpointError(
            f"{folder}: no such folder{did_you_mean_path(folder)}; expected a run folder or a folder of checkpoints"
        )
    found = [_examined(info) for info in list_checkpoints(checkpoints_of(folder))]
    if not found:
        _refuse_foreign(folder)
    say(f"{'step':>10}  {'size':>10}  state" if found else f"no checkpoints in {folder}")
    for info in found:
        state = f"damaged: {'; '.join(info.problems)}" if info.problems else "sound"
        say(f"{info.step!s:>10}  {format_bytes(info.size):>10}  {state}")
    return {"folder": str(checkpoints_of(folder)), "checkpoints": [_as_json(info) for info in found]}


def verify_command(path: Path) -> dict[str, Any]:
    """Verify one checkpoint, or all of a run, with the positions of blocks, and print a line for each undamaged one.

    Raises CheckpointError, with all problems in one line, if a checkpoint is damaged, or if there is none.
    """
    from hornbook.errors import CheckpointError

    found = _found(path)
    damaged = [f"{info.path}: {'; '.join(info.problems)}" for info in found if info.problems]
    say(*(f"{info.path}: sound, {format_bytes(info.size)}" for info in found if not info.problems))
    if damaged:
        raise CheckpointError(f"{len(damaged)} of {len(found)} checkpoints damaged: {' | '.join(damaged)}")
    return {"path": str(path), "checkpoints": [_as_json(info) for info in found]}


def _found(path: Path) -> "list[Info]":
    """Return the checkpoint ``path``, or all checkpoints in it."""
    from hornbook.checkpoint.listing import checkpoints_of, describe, is_checkpoint, list_checkpoints
    from hornbook.errors import CheckpointError

    found = [describe(path)] if is_checkpoint(path) else list_checkpoints(checkpoints_of(path))
    if not found:
        _refuse_foreign(path)
        raise CheckpointError(f"{path} contains no checkpoint; expected a run folder or a checkpoint")
    return [_examined(info) for info in found]


def _examined(info: "Info") -> "Info":
    """Return a checkpoint with the problem, if any, of the positions of its blocks, which no checksum can find."""
    if info.problems or not _has_blocks(info.path):
        return info
    from hornbook.exchange.fit import misfit

    problem = misfit(info.path)
    return replace(info, problems=[problem] if problem else [])


def _has_blocks(path: Path) -> bool:
    """Return whether a checkpoint is of a block-sparse model, judging by its recipe, which is read without torch."""
    from hornbook.errors import HornbookError
    from hornbook.storage.json_files import read_json

    try:
        recipe = read_json(path / "recipe.json", "the recipe")
    except HornbookError:  # without a recipe, the tensors have no meaning to check
        return False
    section = recipe.get("sparsity") if isinstance(recipe, dict) else None
    return isinstance(section, dict) and bool(section.get("linears") or section.get("embedding_block_size"))


def _refuse_foreign(path: Path) -> None:
    """Raise CheckpointError for a Hugging Face or TensorFlow model, which has no manifest to check."""
    from hornbook.errors import CheckpointError
    from hornbook.exchange.huggingface import is_folder

    if is_folder(path):
        raise CheckpointError(
            f"{path} is a Hugging Face folder or a TensorFlow checkpoint, which has no checksums: "
            "import it with `hornbook checkpoint import`, which reads and checks every tensor"
        )


def _as_json(info: "Info") -> dict[str, Any]:
    return {
        "step": info.step,
        "path": str(info.path),
        "size": info.size,
        "sound": not info.problems,
        "problems": info.problems,
    }
