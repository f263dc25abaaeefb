"""The folders of corpora: where their stores are, and the records of a store and a corpus.

    locate_store("corpora/wikipedia", "train")      corpora/wikipedia/train, the folder of a store
    locate_store("text_document.bin", "train")      text_document, the prefix of another program's files
    splits_of("corpora/wikipedia")                  ("train", "validation")

    build.json                {"format": "hornbook corpus", "format_version": 1, "checksum": "<SHA-256 of the rest>",
                               "request": {"inputs": "<hash>", "tokenizer": "<digest>", "options": {...}},
                               "read": {"sources": 40, "empty": 1, "dropped": {"exact duplicates": 12}, ...}}
    train/manifest.json       {"format": "hornbook token store", "format_version": 1, "num_documents": 1000, ...
                               "end_of_text": "stored", "end_of_text_id": 4999, "tokenizer": "<its digest>",
                               "sources": ["/texts/a.jsonl.gz"],
                               "files": {"tokens.bin": {"size": 2723690, "sha256": "..."}, ...}}
    train/tokens.sha256       the SHA-256 of each 64 KiB of tokens.bin, 32 bytes each
    train/documents.npy       source  offset  num_bytes         one row per document, in numpy's format
                                   0       0       5120         the manifest's first source, from its first byte
                                   1    9341        977         the line of a JSONL file after 9,341 bytes

A build writes the manifest of a store last. The sizes and hashes in it reveal files that were truncated, changed or
replaced, and ``checksum``, the SHA-256 of the rest, protects the manifest itself. The hashes of chunks, which stores of
earlier versions lack, let a reader fetch and check parts of ``tokens.bin`` (`hornbook.corpora.remote_store`). Paths of
sources are absolute; training never opens them. The request in ``build.json`` lets a build recognize a corpus that it
would make again, and a reader notice that the folder of a split is missing.
"""

import hashlib
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from hornbook.config.suggest import did_you_mean_path
from hornbook.corpora.megatron import index_paths
from hornbook.errors import DataError
from hornbook.formats.npy import map_array
from hornbook.plugs import plugged
from hornbook.storage import Written, write_file
from hornbook.storage.json_files import dump_sealed, is_intact, parse_json, read_bytes, read_json
from hornbook.storage.system import open_regular, storage_errors

MANIFEST: Final = "manifest.json"
CHUNK_HASHES: Final = "tokens.sha256"
CHUNK_BYTES: Final = 1 << 16
"""Bytes of ``tokens.bin`` per hash in ``tokens.sha256``; the last chunk may be shorter."""
STORE_FILES: Final = ("tokens.bin", "tokens.idx", "documents.npy", "tokenizer.json")
FORMAT: Final = {"format": "hornbook token store", "format_version": 1}
DOCUMENT_ROW: Final = np.dtype([("source", "<i4"), ("offset", "<i8"), ("num_bytes", "<i8")])
"""Index of the source in the manifest's list, offset (see `hornbook.text.reading.Document`), bytes of text in UTF-8."""
BUILD: Final = "build.json"
RECORD_FORMAT: Final = {"format": "hornbook corpus", "format_version": 1}
MOST_IDS: Final = 1 << 31
"""The most ids of a vocabulary: tokens are at most int32."""

_MAX_BYTES: Final = 1 << 30
_NUMBERS: Final = ("num_documents", "num_tokens", "num_bytes", "vocab_size")
_TEXTS: Final = ("dtype", "end_of_text", "tokenizer", "split")
_KINDS: Final[dict[str, type]] = (
    dict.fromkeys(_NUMBERS, int) | dict.fromkeys(_TEXTS, str) | {"options": dict, "sources": list, "files": dict}
)
_NAMES: Final = {int: "an integer from 0", str: "a string", dict: "an object", list: "an array"}
_READ: Final = {"sources", "empty", "faults", "messages", "skipped", "line_ends", "dropped", "examples"}
SPLITS: Final = ("train", "validation")
OF_CORPORA: Final = (BUILD, "documents.npy", *(f"{split}/{MANIFEST}" for split in SPLITS))
"""A folder with one of these is that of a corpus or a store, even if it lacks its record or its manifest."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The manifest of a store.

    Attributes:
        num_documents, num_tokens: the counts in the index; stored end-of-text tokens are included.
        num_bytes: number of bytes of the documents' text in UTF-8.
        dtype: the dtype of tokens, ``"uint16"`` or ``"int32"``.
        end_of_text: ``"stored"``: each document ends with the end-of-text token; ``"inserted"``: readers insert it;
            ``"absent"``: the tokenizer has no such token, like that of BERT.
        end_of_text_id: the id of the end-of-text token; None if absent.
        tokenizer: the digest of the tokenizer.
        vocab_size: the number of ids of the tokenizer.
        split: ``"train"`` or ``"validation"``.
        options: the options of the build.
        sources: absolute paths of the sources; ``"-"`` is standard input.
        files: size and hash of every other file in the folder.
        chunk_hashes: size and hash of ``tokens.sha256``; None for stores of earlier versions, which lack it.
        sequences: whether sequences of the index are ``"documents"`` or ``"sentences"``; missing in the oldest stores,
            which have documents.
    """

    num_documents: int
    num_tokens: int
    num_bytes: int
    dtype: str
    end_of_text: Literal["stored", "inserted", "absent"]
    end_of_text_id: int | None
    tokenizer: str
    vocab_size: int
    split: str
    options: Mapping[str, Any]
    sources: tuple[str, ...]
    files: Mapping[str, Written]
    chunk_hashes: Written | None = None
    sequences: Literal["documents", "sentences"] = "documents"

    def to_bytes(self) -> bytes:
        """Return the content of ``manifest.json``."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        own["files"] = {name: asdict(file) for name, file in self.files.items()}
        own["chunk_hashes"] = self.chunk_hashes and asdict(self.chunk_hashes)
        return dump_sealed(FORMAT | own)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read and check a store's manifest. Raises DataError if it is missing, malformed, or of another format."""
        path = folder / MANIFEST
        values = parse_json(read_bytes(path, "the manifest", limit=_MAX_BYTES), f"{path}: the manifest")
        intact = isinstance(values, dict) and is_intact(values)
        if not isinstance(values, dict) or {name: values.pop(name, None) for name in FORMAT} != FORMAT:
            raise DataError(
                f"{path}: expected the manifest of a token store, version {FORMAT['format_version']}; build the store "
                "again"
            )
        for name, kind in _KINDS.items():
            if type(values.get(name)) is not kind or (kind is int and values[name] < 0):
                raise DataError(f"{path}: expected {name} to be {_NAMES[kind]}; restore the file")
        if (size := values["vocab_size"]) > MOST_IDS:
            raise DataError(f"{path}: expected vocab_size to be an integer from 0 to {MOST_IDS}; restore the file")
        end_of_text, number = values["end_of_text"], values.get("end_of_text_id")
        if end_of_text not in ("stored", "inserted", "absent"):
            raise DataError(f"{path}: expected end_of_text to be stored, inserted or absent; restore the file")
        if number is not None if end_of_text == "absent" else type(number) is not int or not 0 <= number < size:
            raise DataError(
                f"{path}: expected end_of_text_id to be an integer from 0 to {size - 1}, or null if absent; restore "
                "the file"
            )
        sequences = values.get("sequences", "documents")
        if sequences not in ("documents", "sentences"):
            raise DataError(f"{path}: expected sequences to be documents or sentences; restore the file")
        chunks = values.get("chunk_hashes")
        optional = {  # may be missing
            "end_of_text_id": number,
            "sequences": sequences,
            "chunk_hashes": None if chunks is None else _written(chunks, CHUNK_HASHES, path),
        }
        sources = tuple(source for source in values["sources"] if isinstance(source, str))
        if len(sources) != len(values["sources"]):
            raise DataError(f"{path}: a source is not a path; restore the file")
        files = {name: _written(values["files"].get(name), name, path) for name in STORE_FILES}
        if set(values["files"]) != set(STORE_FILES):  # a name might be a path elsewhere
            raise DataError(f"{path}: lists files that do not belong to a store; restore the file")
        if not intact:
            raise DataError(f"{path}: the manifest is damaged: its checksum does not match; restore the file")
        return cls(**{name: values[name] for name in _KINDS} | {"sources": sources, "files": files} | optional)


def _written(entry: object, name: str, path: Path) -> Written:
    size, sha256 = (entry.get("size"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
    if type(size) is not int or not isinstance(sha256, str):
        raise DataError(f"{path}: the size or hash of {name} is missing; restore the file")
    return Written(size=size, sha256=sha256)


def write_chunk_hashes(store: Path) -> Written:
    """Write ``tokens.sha256`` of a store whose ``tokens.bin`` is complete; return its size and hash."""
    path = store / "tokens.bin"

    def hashes() -> Iterator[bytes]:
        with storage_errors("read", path), open_regular(path) as file:
            for some in iter(partial(file.read, 16 * CHUNK_BYTES), b""):
                starts = range(0, len(some), CHUNK_BYTES)
                yield b"".join(hashlib.sha256(some[start : start + CHUNK_BYTES]).digest() for start in starts)

    return write_file(store / CHUNK_HASHES, hashes())


def read_rows(path: Path, num_documents: int) -> NDArray[np.void]:
    """Memory-map a ``.npy`` of ``DOCUMENT_ROW`` [num_documents]. Raises DataError if it has other content."""
    expected = f"{path}: expected an array with a row for each of {num_documents} documents; build the store again"
    try:
        rows = map_array(path, DOCUMENT_ROW)
    except DataError as error:
        raise DataError(expected) from error
    if rows.shape != (num_documents,):
        raise DataError(expected)
    return rows


def splits_of_share(validation: float) -> tuple[str, ...]:
    """Return the splits of a build with this share held out."""
    return ("train", "validation") if validation else ("train",)


def recorded_splits(corpus: Path) -> tuple[str, ...]:
    """Return the splits that a corpus was built with; empty without a record. Raises DataError if it is damaged."""
    if not (corpus / BUILD).is_file():
        return ()
    options = read_record(corpus)[0].get("options")
    if not isinstance(options, dict):
        return ()
    return splits_of_share(options.get("validation") or options.get("validation_tail") or 0)


def read_record(corpus: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the request and the counts in ``build.json``. Raises DataError if it is damaged or missing."""
    path, remedy = corpus / BUILD, "restore the file, or build the corpus again"
    record = read_json(path, "the record of the build")
    if not isinstance(record, dict) or {name: record.get(name) for name in RECORD_FORMAT} != RECORD_FORMAT:
        raise DataError(f"{path}: expected the record of a build, version 1; {remedy}")
    request, read = record.get("request"), record.get("read")
    if isinstance(read, dict):
        read = {"dropped": {}, "examples": {}, "line_ends": 0} | read  # missing in records of earlier versions
    if not isinstance(request, dict) or not isinstance(read, dict) or set(read) != _READ or not is_intact(record):
        raise DataError(f"{path}: the record of the build is damaged; {remedy}")
    return request, read


def splits_of(path: str | Path) -> tuple[str, ...]:
    """Return the splits that a corpus was built with, or those it has if there is no record; empty for a store."""
    if (Path(path) / MANIFEST).exists():
        return ()
    there = tuple(split for split in SPLITS if (Path(path) / split / MANIFEST).exists())
    return recorded_splits(Path(path)) or there


def locate_store(path: Path, split: str) -> Path:
    """Return the folder of a store with a manifest, or the prefix of one without; see ``open_store``."""
    if not path.is_dir():
        prefix = path.with_suffix("") if path.suffix in (".bin", ".idx") else path
        if not index_paths(prefix)[1].is_file():
            _refuse_other_files(path)
            raise DataError(
                f"{path}: no such token store{did_you_mean_path(path)}; expected a folder written by corpus build, or "
                "a .bin and .idx"
            )
        return prefix.parent if prefix.name == "tokens" and (prefix.parent / MANIFEST).exists() else prefix
    if (path / MANIFEST).exists():
        return path
    if splits := splits_of(path):
        if split not in splits:
            raise DataError(
                f"{path}: the corpus has no {split} split; build another one with `hornbook corpus build --validation "
                f"0.02`, or name the folder of a split, such as {path / splits[0]}"
            )
        if not (path / split / MANIFEST).exists():
            raise DataError(
                f"{path / split / MANIFEST} is missing, but the corpus was built with a {split} split; restore it, or "
                "build the corpus again"
            )
        return path / split
    pairs = sorted(path.glob("*.idx"))
    if (path / "documents.npy").exists():
        raise DataError(f"{path / MANIFEST} is missing; build the store again")
    if len(pairs) != 1:
        _refuse_other_files(path)
        raise DataError(
            f"{path}: no token store; expected a manifest.json, or one .bin and .idx, found {len(pairs)} .idx"
        )
    return pairs[0].with_suffix("")


def _refuse_other_files(path: Path) -> None:
    """Raise DataError with the remedy if a path that is no store has tokens of another program, text, or other stores.

    A path that does not exist may be a name on the Hugging Face hub, as inputs of builds are.
    """
    if not path.exists() and (hub := re.search(r"(?:^|/)(hf:[^/].*)", str(path))):
        raise DataError(
            f"{hub[1]} has texts on the Hugging Face hub; to make a token store of them: `hornbook corpus build "
            f"{shlex.quote(hub[1])} --tokenizer TOKENIZER --output corpora/{shlex.quote(path.stem)}`"
        )
    for room in plugged("store openers"):
        if advice := room.how_to_convert(path):
            raise DataError(advice)
    if (path / "recipe.toml").is_file():
        raise DataError(f"{path}: a run, not a token store; its recipe.toml names its data")
    if found := [entry.parent.parent for entry in sorted(path.glob(f"*/{SPLITS[0]}/{MANIFEST}"))]:
        names = ", ".join(map(str, found[:4])) + ", ..." * (len(found) > 4)
        raise DataError(f"{path}: not a token store, but a folder of some: name one of {names}")
    if path.name == "tokenizer.json" or (path / "tokenizer.json").is_file():
        raise DataError(
            f"{path}: a tokenizer, not a token store; to make one: `hornbook corpus build TEXTS --tokenizer "
            f"{shlex.quote(str(path))} --output corpora/{shlex.quote(path.stem)}`"
        )
    if path.is_file() or (path.is_dir() and any(path.iterdir()) and not list(path.glob("*.idx"))):
        raise DataError(
            f"{path}: not a token store; to make one from text: `hornbook corpus build {shlex.quote(str(path))} "
            f"--tokenizer TOKENIZER --output corpora/{shlex.quote(path.stem)}`"
        )
