r"""Files of other projects that hornbook does not read, recognized to say what they are and what to do instead.

mds/index.json        {"shards": [{"format": "mds", ...}]}        a data set of MosaicML Streaming
tokenizer.model       \x0a\x0e\x0a\x05<unk>\x15...                a SentencePiece model
x.tiktoken            IQ== 0                                      a vocabulary of tiktoken, also of Llama 3
model.bin             int32 20240326                              a model of llm.c
"""

import json
import re
from pathlib import Path
from typing import Final

from hornbook.errors import DataError
from hornbook.storage.system import storage_errors

SUFFIXES: Final = (".mds", ".model", ".tiktoken", ".bin")
"""Suffixes of files that are compared with the contents above, where any text would be read."""

_START: Final = 4096
_HEADER_BYTES: Final = 1024
"""The length of llm.c's headers."""
_MAX_INDEX: Final = 64 << 20
_BASE64: Final = rb"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})"
_TIKTOKEN: Final = re.compile(_BASE64 + rb" 0\r?\n(?:" + _BASE64 + rb" 1\r?\n|$)")
_MDS: Final = (
    "a data set of MosaicML Streaming (MDS), which hornbook does not read; write its texts to a JSONL file, with "
    "StreamingDataset of the package mosaicml-streaming"
)
_SENTENCEPIECE: Final = (
    "a SentencePiece model; use the tokenizer.json of the same tokenizer, or make one from its folder with "
    "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(OUTPUT) of transformers"
)
_RANKS: Final = (
    "a vocabulary of tiktoken, which has neither the split pattern nor the special tokens; use the tokenizer.json of "
    "the same tokenizer"
)
_LLMC: Final = {
    20240326: (
        "a model of llm.c, not tokens; to use the model, make a Hugging Face folder of it with llm.c's "
        "dev/eval/export_hf.py"
    ),
    20240328: "a tokenizer of llm.c, which cannot encode; use the tokenizer.json of the same tokenizer",
}


def name_foreign(path: Path) -> str | None:
    """Return what a file or folder is, and what to do instead, as the rest of a sentence; None if not recognized.

    Raises StorageError if the file cannot be read.
    """
    if path.is_dir():
        return _MDS if _is_mds(path / "index.json") else None
    if not path.is_file():
        return None
    if path.name == "index.json" and _is_mds(path):
        return _MDS
    with storage_errors("read", path), path.open("rb") as file:
        return name_content(file.read(_START), path.suffix)


def name_content(start: bytes, suffix: str) -> str | None:
    """Return what a file is by its first 4 KiB or more and its suffix; see ``name_foreign``."""
    if suffix == ".mds":
        return _MDS
    if _begins_with_piece(start):
        return _SENTENCEPIECE
    if _TIKTOKEN.match(start):
        return _RANKS
    return _LLMC.get(int.from_bytes(start[:4], "little")) if len(start) >= _HEADER_BYTES else None


def refuse_foreign_tokenizer(path: Path) -> None:
    """Raise DataError if a file, or a file in a folder, is a tokenizer that is recognized but not read."""
    files = sorted((*path.glob("*.model"), *path.glob("*.tiktoken"))) if path.is_dir() else [path]
    for file in files:
        if found := name_foreign(file):
            raise DataError(f"{file} is {found}")


def _begins_with_piece(start: bytes) -> bool:
    """Return whether protobuf's first field is a piece: a field with a text, then a score."""
    if len(start) < 9 or start[0] != 0x0A or start[2] != 0x0A:
        return False
    score = 4 + start[3]
    return start[1] >= start[3] + 7 and len(start) > score and start[score] == 0x15


def _is_mds(index: Path) -> bool:
    """Return whether an ``index.json`` lists shards of MosaicML Streaming."""
    if not index.is_file():
        return False
    with storage_errors("read", index), index.open("rb") as file:
        data = file.read(_MAX_INDEX)
    try:
        shards = json.loads(data)["shards"]
        return any(shard["format"] == "mds" for shard in shards[:1])
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
