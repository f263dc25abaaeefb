"""``hornbook checkpoint``: list, verify, import and export checkpoints.

hornbook checkpoint list runs/demo
      step        size  state
       400     9.1 MiB  sound
       800     9.1 MiB  damaged: model-00000.safetensors has 512 bytes, expected 3145904

hornbook checkpoint import openai-community/gpt2 --output runs/gpt2
hornbook checkpoint import uncased_L-12_H-768_A-12/bert_model.ckpt --output runs/bert
hornbook checkpoint export runs/mine --output gpt2-mine --dtype bf16 --license apache-2.0
hornbook checkpoint export runs/mine --output mine.gguf --format gguf
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hornbook.cli.arguments import read_size
from hornbook.cli.table import say
from hornbook.storage.system import format_bytes
from hornbook.wording import counted

if TYPE_CHECKING:
    from hornbook.checkpoint import Info
    from hornbook.config import TransformerConfig
    from hornbook.errors import CheckpointError


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
    add_exchange_arguments(commands)


def list_command(folder: Path) -> dict[str, Any]:
    """Return and print the checkpoints of a run or of a folder of checkpoints, oldest first, or a single one.

    A run that has not saved yet has none, which is an answer; verifying none would not be, so `verify_command` refuses.

    Raises CheckpointError if the folder does not exist, or has no checkpoint and is no run's.
    """
    from hornbook.checkpoint.load import checkpoints_of
    from hornbook.config.suggest import did_you_mean_path
    from hornbook.errors import CheckpointError
    from hornbook.track.run_state import is_run

    if not folder.is_dir():
        raise CheckpointError(
            f"{folder}: no such folder{did_you_mean_path(folder)}; expected a run folder or a folder of checkpoints"
        )
    found = _found(folder)
    if not found and not is_run(folder) and not is_run(folder.absolute().parent):
        raise _without_checkpoint(folder)
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
    if not found:
        raise _without_checkpoint(path)
    damaged = [f"{info.path}: {'; '.join(info.problems)}" for info in found if info.problems]
    say(*(f"{info.path}: sound, {format_bytes(info.size)}" for info in found if not info.problems))
    if damaged:
        raise CheckpointError(f"{len(damaged)} of {len(found)} checkpoints damaged: {' | '.join(damaged)}")
    return {"path": str(path), "checkpoints": [_as_json(info) for info in found]}


def _found(path: Path) -> "list[Info]":
    """Return the checkpoint ``path``, or all checkpoints in it."""
    from hornbook.checkpoint.load import checkpoints_of, describe, is_checkpoint, list_checkpoints

    found = [describe(path)] if is_checkpoint(path) else list_checkpoints(checkpoints_of(path))
    return [_examined(info) for info in found]


def _examined(info: "Info") -> "Info":
    """Return a checkpoint with the problem, if any, of the positions of its blocks, which no checksum can find."""
    if info.problems or not _has_blocks(info.path):
        return info
    from hornbook.exchange.contents import misfit

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


def _without_checkpoint(path: Path) -> "CheckpointError":
    """Return the error of a path without checkpoints; a Hugging Face or TensorFlow model has no manifest to check."""
    from hornbook.errors import CheckpointError
    from hornbook.exchange.huggingface import is_folder

    if is_folder(path):
        return CheckpointError(
            f"{path} is a Hugging Face folder or a TensorFlow checkpoint, which has no checksums: "
            "import it with `hornbook checkpoint import`, which reads and checks every tensor"
        )
    return CheckpointError(f"{path} contains no checkpoint; expected a run folder or a checkpoint")


def _as_json(info: "Info") -> dict[str, Any]:
    return {
        "step": info.step,
        "path": str(info.path),
        "size": info.size,
        "sound": not info.problems,
        "problems": info.problems,
    }


def add_exchange_arguments(commands: "argparse._SubParsersAction[Any]") -> None:
    """Declare ``import`` and ``export``."""
    taken = commands.add_parser(
        "import",
        help="import a model",
        description="Import a model of transformers as a checkpoint: a GPT-2, Llama, Qwen3, OLMo 2, "
        "Gemma 2 or 3, NanoChat, BERT, RoBERTa or ModernBERT.",
    )
    taken.add_argument(
        "source",
        metavar="SOURCE",
        help="Hugging Face folder, owner/name on the hub (extra hornbook[hub]), or folder or prefix of a "
        "TensorFlow checkpoint of a BERT or GPT-2",
    )
    taken.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="new run folder for the checkpoint")
    taken.add_argument(
        "--allow-pickle",
        action="store_true",
        help="also read pytorch_model.bin, a pickle; anything but tensors is an error and is never executed",
    )
    taken.add_argument("--revision", metavar="NAME", help="branch, tag or commit on the hub (default: main)")
    taken.set_defaults(handler=import_command)
    given = commands.add_parser(
        "export",
        help="export a model",
        description="Export a model as a folder that transformers can load, or as a GGUF file for llama.cpp.",
    )
    given.add_argument("checkpoint", metavar="CHECKPOINT", help="run folder, checkpoint or Hugging Face folder")
    given.add_argument("--output", type=Path, required=True, metavar="PATH", help="new folder; for gguf, new file")
    given.add_argument(
        "--format",
        choices=("transformers", "gguf"),
        default="transformers",
        help="transformers: folder with weights, tokenizer and model card; gguf: one file for llama.cpp, of a GPT-2, "
        "Llama, Qwen3, OLMo 2 or Gemma 3 (extra hornbook[gguf])",
    )
    given.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), default="fp32", help="dtype of the weights")
    given.add_argument(
        "--license",
        metavar="NAME",
        help="license for the model card or the file, such as apache-2.0 (default: a line to fill; none in a gguf)",
    )
    given.add_argument(
        "--shard-size",
        metavar="SIZE",
        help="largest size of a file of weights; larger models are split into several files (default: 5GB)",
    )
    given.set_defaults(handler=export_command)


def import_command(arguments: argparse.Namespace) -> dict[str, Any]:
    """Save a Hugging Face or TensorFlow model as the checkpoint of step 0 of a new run folder.

    Raises:
        UserError: the folder already has a run or checkpoints, or the model does not exist.
        CheckpointError: the model is malformed, not supported, or a pickle that was not allowed.
    """
    from hornbook.checkpoint import save
    from hornbook.config import recipe_from_dict
    from hornbook.exchange.huggingface import read_folder
    from hornbook.exchange.huggingface.tokenizer_files import has_tokenizer
    from hornbook.storage import lock_folder

    output: Path = arguments.output
    _refuse_used(output)
    folder = _find(arguments)
    warnings: list[str] = []
    contents = read_folder(folder, allow_pickle=arguments.allow_pickle, with_source=True, warn=warnings.append)
    with lock_folder(output):
        _refuse_used(output)
        path = save(output / "checkpoints", contents)
    model = recipe_from_dict(contents.documents["recipe"]).model
    if not has_tokenizer(Path(contents.documents["source"]["folder"])):
        files = "vocab.txt" if model.family == "bert" else "vocab.json and merges.txt"
        remedy = f"add tokenizer.json, or {files}, and import it again to generate or evaluate"
        warnings.append(f"no tokenizer in {folder}: {remedy}")
    _warn(warnings)
    layers, parameters = counted(model.num_layers, "layer"), f"{model.num_parameters():,} parameters"
    say(f"{path}: {_kind(model)}, {layers}, hidden {model.hidden_size}, {parameters}")
    return {
        "source": str(folder),
        "checkpoint": str(path),
        "parameters": model.num_parameters(),
        "tokenizer": "tokenizer.json" in contents.files,
        "warnings": warnings,
    }


def export_command(arguments: argparse.Namespace) -> dict[str, Any]:
    """Write a checkpoint's model and tokenizer as a Hugging Face folder with a model card, or as a GGUF file.

    Raises:
        UserError: the folder or file already exists, an option does not apply, or a library is not installed.
        CheckpointError: there is no undamaged checkpoint, or transformers or llama.cpp has no equivalent model.
    """
    from hornbook.checkpoint.load import require_source

    require_source(arguments.checkpoint)
    from hornbook.exchange.formats import export
    from hornbook.exchange.restore import read_source

    size = None if arguments.shard_size is None else read_size("--shard-size", arguments.shard_size)
    path, contents = read_source(arguments.checkpoint, only={"model"})
    warnings: list[str] = []
    files = export(
        arguments.output,
        contents,
        format=arguments.format,
        dtype=arguments.dtype,
        source=path,
        license=arguments.license,
        shard_size=size,
        warn=warnings.append,
    )
    _warn(warnings)
    say(f"{arguments.output}: {', '.join(files)} of {path}")
    return {
        "checkpoint": str(path),
        "folder": str(arguments.output),
        "dtype": arguments.dtype,
        "files": {name: {"size": file.size, "sha256": file.sha256} for name, file in files.items()},
        "warnings": warnings,
    }


def _warn(warnings: list[str]) -> None:
    say(*(f"hornbook: warning: {warning}" for warning in warnings), error=True)


def _kind(model: "TransformerConfig") -> str:
    """Return a model's family and, if it was fine-tuned, its task: ``bert for 2 classes``."""
    from hornbook.config import TunableConfig

    if not isinstance(model, TunableConfig) or model.head == "pretraining":
        return model.family
    return f"{model.family} for {'spans' if model.head == 'span' else f'{model.num_labels} classes'}"


def _find(arguments: argparse.Namespace) -> Path:
    """Return the folder or prefix of the model, after downloading it if it is on the hub."""
    from hornbook.checkpoint.load import is_checkpoint
    from hornbook.config.recipe_files import IDENTITY
    from hornbook.config.suggest import did_you_mean_path
    from hornbook.errors import UserError
    from hornbook.exchange.huggingface import fetch, is_folder
    from hornbook.text.hub_client import is_model_name

    path = Path(arguments.source)
    if not path.is_dir() and not is_folder(path):
        if path.exists() or not is_model_name(arguments.source):
            what = "a file" if path.is_file() else f"no such folder or prefix{did_you_mean_path(path)}"
            raise UserError(
                f"{path}: {what}; expected a Hugging Face folder, owner/name on the hub, or a TensorFlow checkpoint"
            )
        return fetch(arguments.source, revision=arguments.revision, allow_pickle=arguments.allow_pickle)
    if arguments.revision is not None:
        raise UserError(f"--revision applies only to hub models, and {path} is a folder; remove it")
    if is_checkpoint(path) or (path / IDENTITY).exists():
        raise UserError(f"{path} is already a hornbook checkpoint; use it directly")
    return path


def _refuse_used(output: Path) -> None:
    from hornbook.checkpoint.load import committed
    from hornbook.config.recipe_files import IDENTITY
    from hornbook.corpora.folders import OF_CORPORA
    from hornbook.errors import UserError

    if (output / IDENTITY).exists() or committed(output / "checkpoints") or committed(output):
        raise UserError(f"{output} already contains a run or checkpoints; choose another --output")
    if any((output / name).exists() for name in OF_CORPORA):
        raise UserError(f"{output} is a corpus: choose another --output")
