"""Exports of a loaded model with its present weights."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from hornbook.checkpoint.tensors import Contents
from hornbook.config import recipe_to_dict
from hornbook.exchange.contents import UNTRAINED
from hornbook.exchange.formats import ExportFormat, export
from hornbook.exchange.huggingface import write_folder
from hornbook.exchange.restore import LoadedModel, read_source
from hornbook.extras import require
from hornbook.storage.json_files import read_json


class ExportOptions(TypedDict, total=False):
    """The options of `hornbook.Model.export`; see there."""

    format: ExportFormat
    dtype: Literal["fp32", "bf16", "fp16"]
    license: str | None
    shard_size: float | None


def export_loaded(loaded: LoadedModel, path: Path, **options: Unpack[ExportOptions]) -> list[Path]:
    """Write a model as `hornbook.exchange.formats.export` does, with the documents of its source; return the files."""
    _, stored = read_source(loaded.path, only={"model"})
    contents = replace(stored, tensors={"model": loaded.model.saved_tensors()})
    files = export(path, contents, source=loaded.path, **options)
    return [path] if options.get("format") == "gguf" else [path / name for name in files]


def to_transformers(loaded: LoadedModel) -> Any:
    """Return a copy of the model as a transformers model, on the CPU; see `hornbook.Model.to_transformers`."""
    transformers = require("transformers", extra="transformers", purpose="to_transformers")
    contents = Contents(
        step=loaded.step,
        tensors={"model": loaded.model.saved_tensors()},
        documents={"recipe": recipe_to_dict(loaded.recipe), UNTRAINED: list(loaded.untrained)},
        files={"tokenizer.json": loaded.tokenizer.to_json().encode()} if loaded.tokenizer else {},
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        write_folder(folder, contents)
        (architecture,) = read_json(folder / "config.json", "the configuration")["architectures"]
        return getattr(transformers, architecture).from_pretrained(folder)
