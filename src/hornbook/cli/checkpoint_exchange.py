"""``hornbook checkpoint import`` and ``export``: convert models from and to Hugging Face's transformers.

hornbook checkpoint import openai-community/gpt2 --output runs/gpt2
hornbook checkpoint import uncased_L-12_H-768_A-12/bert_model.ckpt --output runs/bert
hornbook checkpoint export runs/mine --output gpt2-mine --dtype bf16 --license apache-2.0
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hornbook.cli.table import say
from hornbook.wording import counted

if TYPE_CHECKING:
    from hornbook.config import TransformerConfig


def add_arguments(commands: "argparse._SubParsersAction[Any]") -> None:
    """Declare ``import`` and ``export``."""
    taken = commands.add_parser(
        "import", help="import a model", description="Import a GPT-2, BERT or RoBERTa as a checkpoint."
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
        "export", help="export a model", description="Export a model as a folder that transformers can load."
    )
    given.add_argument("checkpoint", metavar="CHECKPOINT", help="run folder, checkpoint or Hugging Face folder")
    given.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="new folder")
    given.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), default="fp32", help="dtype of the weights")
    given.add_argument(
        "--license", metavar="NAME", help="license for the model card, such as apache-2.0 (default: a line to fill)"
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
    """Write a checkpoint's model, tokenizer and model card as a Hugging Face folder.

    Raises:
        UserError: the folder already exists.
        CheckpointError: there is no undamaged checkpoint, or transformers has no equivalent model.
    """
    from hornbook.checkpoint.listing import require_source

    require_source(arguments.checkpoint)
    from hornbook.exchange.huggingface import write_folder
    from hornbook.exchange.restore import read_source

    path, contents = read_source(arguments.checkpoint, only={"model"})
    warnings: list[str] = []
    files = write_folder(
        arguments.output,
        contents,
        dtype=arguments.dtype,
        source=path,
        license=arguments.license,
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
    from hornbook.checkpoint.listing import is_checkpoint
    from hornbook.config.suggest import did_you_mean_path
    from hornbook.errors import UserError
    from hornbook.exchange.huggingface import fetch, is_folder
    from hornbook.text.hub_client import is_model_name

    path = Path(arguments.source)
    if not path.exists() and not is_folder(path):
        if not is_model_name(arguments.source):
            raise UserError(
                f"{path}: no such folder or prefix{did_you_mean_path(path)}; expected a Hugging Face folder, "
                "owner/name on the hub, or a TensorFlow checkpoint"
            )
        return fetch(arguments.source, revision=arguments.revision, allow_pickle=arguments.allow_pickle)
    if arguments.revision is not None:
        raise UserError(f"--revision applies only to hub models, and {path} is a folder; remove it")
    if is_checkpoint(path) or (path / "run.json").exists():
        raise UserError(f"{path} is already a hornbook checkpoint; use it directly")
    return path


def _refuse_used(output: Path) -> None:
    from hornbook.checkpoint.listing import committed
    from hornbook.errors import UserError

    if (output / "run.json").exists() or committed(output / "checkpoints") or committed(output):
        raise UserError(f"{output} already contains a run or checkpoints; choose another --output")
