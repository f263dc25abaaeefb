"""Train tokenizers, build corpora, and read corpora as torch ``Dataset``s.

    tokenizer = train_tokenizer("texts", output="tokenizers/mine")      hornbook tokenizer train
    folder = build_corpus("texts", tokenizer, output="corpora/mine")    hornbook corpus build
    corpus(folder)[0]                          {"tokens": int64[n]}                         a document
    corpus(folder, sequence_length=128)[0]     {"tokens": int64[128], "targets": int64[128]}  a training sample

The trade-off: only the command ``hornbook corpus build`` has filters and all options of formats; `corpus` reads its
corpora as well.
"""

import logging
import operator
from collections.abc import Iterable, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from hornbook.config.options import is_url
from hornbook.config.suggest import did_you_mean
from hornbook.corpora.building import tokenizer as tokenizers
from hornbook.corpora.building.builder import BuildOptions
from hornbook.corpora.building.builder import build_corpus as build
from hornbook.corpora.folders import SPLITS
from hornbook.corpora.store import open_store
from hornbook.errors import UserError
from hornbook.samples.windows import Windows
from hornbook.storage.system import usable_cores
from hornbook.text.quality.policy import Tolerance
from hornbook.text.readers.web_archives import Page
from hornbook.text.reading import DEFAULT_FIELD, Format, ReadOptions
from hornbook.text.tokenizer import Tokenizer
from hornbook.text.tokenizer_training import Kind
from hornbook.wording import counted

_logger = logging.getLogger("hornbook.api")

Texts: TypeAlias = str | Path | Sequence[str | Path]
"""A file, a folder or a glob; ``hf:OWNER/NAME`` of the Hugging Face hub; or several of these."""


def train_tokenizer(
    texts: Texts,
    *,
    output: str | Path | None = None,
    vocab_size: int = 4096,
    kind: Kind = "byte-bpe",
    cased: bool = False,
    validation: float = 0.0,
    format: Format = "auto",  # noqa: A002 - the option's name
    field: str = DEFAULT_FIELD,
    suffixes: Sequence[str] = (),
    exclude: Sequence[str] = (),
    on_error: Literal["stop", "skip"] = "stop",
) -> Tokenizer:
    """Train a tokenizer on texts, as ``hornbook tokenizer train`` does.

    Args:
        texts: files, folders (searched for files) or globs to read.
        output: folder for ``tokenizer.json``; None: do not save it.
        vocab_size: number of tokens; small texts may yield fewer.
        kind: ``"byte-bpe"`` (GPT-2), ``"roberta"`` or ``"wordpiece"`` (BERT).
        cased: keep case and accents; only for ``"wordpiece"``, the other kinds always do.
        validation: skip the documents that `build_corpus` holds out with this share.
        format: the unit of a document: ``"text"``, a file; ``"lines"``; ``"blank-lines"``; ``"jsonl"``; ``"parquet"``;
            …; ``"auto"`` chooses by file extension.
        field: JSONL field or table column with the text.
        suffixes: read only files of folders with these extensions, as in ``(".txt",)``.
        exclude: skip files and folders whose names match, as in ``("draft*",)``.
        on_error: ``"stop"`` at an unreadable document, or ``"skip"`` it and log a warning.

    Raises:
        UserError: an argument or an input is invalid, or ``output`` already has another tokenizer.
        DataError: a document cannot be read.
        StorageError: the tokenizer cannot be written.
    """
    report = tokenizers.train_tokenizer(
        _listed(texts),
        None if output is None else Path(output),
        vocab_size=vocab_size,
        kind=_chosen("kind", kind, get_args(Kind)),
        cased=cased,
        validation=validation,
        reading=_reading(kind=format, field=field, suffixes=suffixes, exclude=exclude, on_error=on_error),
        on_notice=_logger.info,
    )
    _warn_of_faults(report.tally.faults, report.tally.messages)
    return report.tokenizer


def build_corpus(
    texts: Texts,
    tokenizer: Tokenizer | str | Path,
    *,
    output: str | Path,
    validation: float = 0.0,
    sequences: Literal["documents", "sentences", "lines"] = "documents",
    format: Format = "auto",  # noqa: A002 - the option's name
    field: str = DEFAULT_FIELD,
    suffixes: Sequence[str] = (),
    exclude: Sequence[str] = (),
    on_error: Literal["stop", "skip"] = "stop",
    workers: int = 1,
    allow: Sequence[str] = (),
) -> Path:
    """Tokenize texts into a corpus, as ``hornbook corpus build`` does, and return its folder.

    If ``output`` already has a corpus of the same inputs, tokenizer and options, it is not built again.

    Args:
        texts: files, folders or globs to read, as for `train_tokenizer`.
        tokenizer: a tokenizer, or the path of one.
        output: folder of the corpus.
        validation: share of the documents to hold out, chosen by a hash of their text.
        sequences: unit that is stored as a sequence: ``"documents"`` or, for BERT's pairs, ``"sentences"`` or
            ``"lines"``.
        format: as for `train_tokenizer`.
        field: as for `train_tokenizer`.
        suffixes: as for `train_tokenizer`.
        exclude: as for `train_tokenizer`.
        on_error: as for `train_tokenizer`.
        workers: number of processes; with more than 1, call this below ``if __name__ == "__main__":``.
        allow: suspicious results to accept, as with the command's ``--allow``: ``("empty-file",)``.

    Raises:
        UserError: an argument or an input is invalid, or ``output`` has another corpus.
        DataError: a document cannot be read, there are no documents, or the result is suspicious.
        StorageError: the disk is full, read-only or failing; repeat the call to resume.
    """
    options = BuildOptions(
        validation=validation,
        sequences=_chosen("sequences", sequences, ("documents", "sentences", "lines")),
        workers=workers,
        threads=usable_cores(),
        reading=_reading(kind=format, field=field, suffixes=suffixes, exclude=exclude, on_error=on_error),
        tolerance=Tolerance(allow=tuple(allow)),
    )
    made = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer.load(tokenizer)
    report = build(_listed(texts), made, Path(output), options, on_notice=_logger.info)
    _warn_of_faults(report.faults, report.messages)
    return report.output


class Corpus(Dataset[dict[str, Tensor]]):
    """A split of a corpus as a map-style torch ``Dataset``; see `corpus`.

    Attributes:
        path: the corpus; a string if it is a URL.
        split: the name of the split.
        sequence_length: tokens per sample; None if items are documents.
        seed: of the order of samples.
        num_documents: number of documents of the split.
        num_tokens: number of their tokens, including stored end-of-text tokens.
    """

    def __init__(
        self, path: str | Path, *, split: str = "train", sequence_length: int | None = None, seed: int = 0
    ) -> None:
        _refuse_other_types(path, sequence_length)
        self.path = path if is_url(str(path)) else Path(path)
        self.split = _chosen("split", split, SPLITS)
        self.sequence_length, self.seed = sequence_length, seed
        self._store = open_store(self.path, split)
        self._windows = None if sequence_length is None else Windows(self._store, sequence_length, seed)
        self.num_documents, self.num_tokens = self._store.num_documents, self._store.num_tokens

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the corpus; None if it was imported without one."""
        return self._store.tokenizer()

    def __len__(self) -> int:
        return self.num_documents if self._windows is None else self._windows.num_items

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return a document or a sample; negative indices count from the end.

        Returns:
            ``{"tokens": int64[n]}`` for a document, with its end-of-text token if the corpus stores one; or, with a
            ``sequence_length`` T, ``{"tokens": int64[T], "targets": int64[T]}``, with targets shifted by one token.

        Raises:
            IndexError: the index is out of range.
        """
        number = self._number(index, len(self))
        if self._windows is None:
            return {"tokens": torch.from_numpy(self._store.document(number).astype(np.int64))}
        tokens = torch.from_numpy(self._windows.batch(np.array([number])).tokens[0])
        return {"tokens": tokens[:-1], "targets": tokens[1:]}

    def text(self, index: int) -> str:
        """Return the text of document ``index``, without its end-of-text token, even if items are samples.

        Raises:
            UserError: the corpus has no tokenizer.
            IndexError: the index is out of range.
        """
        tokenizer = self.tokenizer
        if tokenizer is None:
            raise UserError(
                f"{self.path} has no tokenizer to decode its tokens; convert it with "
                "`hornbook corpus convert --to store --tokenizer PATH`"
            )
        ids = self._store.document(self._number(index, self.num_documents))
        return tokenizer.decode(ids[:-1] if self._store.end_of_text == "stored" else ids)

    def page(self, index: int) -> Page | None:
        """Return ``url`` and ``languages`` of document ``index`` of a web archive, even if items are samples.

        Both are read from the source file, compressed files up to the record; None if the document is from another
        kind of file, or the file is gone or changed. ``languages`` has ISO 639-3 codes, as in ``"rus,eng"``.

        Raises:
            IndexError: the index is out of range.
        """
        return self._store.page(self._number(index, self.num_documents))

    def __reduce__(self) -> tuple[Any, ...]:
        """Reopen the corpus in a worker process instead of pickling its tokens."""
        return _reopen, (self.path, self.split, self.sequence_length, self.seed)

    def __repr__(self) -> str:
        items = "documents" if self.sequence_length is None else f"samples of {self.sequence_length} tokens"
        return f"<Corpus {self.path} ({self.split}): {len(self):,} {items}, {self.num_tokens:,} tokens>"

    @staticmethod
    def _number(index: int, count: int) -> int:
        number = operator.index(index)
        if not -count <= number < count:
            raise IndexError(f"index {number} is out of range; expected {-count} to {count - 1}")
        return number % count


def corpus(path: str | Path, *, split: str = "train", sequence_length: int | None = None, seed: int = 0) -> Corpus:
    """Open a corpus as a map-style torch ``Dataset``, for a ``DataLoader`` with any number of workers.

    Without ``sequence_length``, item i is document i. With it, item i is sample i of a training with that
    ``data.sequence_length`` and ``training.seed``, in the order of its first epoch, so samples are already shuffled.

    Args:
        path: a corpus, a token store, a prefix of Megatron's ``.bin`` and ``.idx``, or a URL, as for ``data.train``.
        split: ``"train"`` or ``"validation"``.
        sequence_length: tokens per sample; None for whole documents.
        seed: of the order and the offsets of samples.

    Raises:
        UserError: an argument is invalid, or the split is shorter than one sample.
        DataError: the corpus or the split does not exist or is damaged.
        StorageError: a file cannot be read.
    """
    return Corpus(path, split=split, sequence_length=sequence_length, seed=seed)


def _reopen(path: str | Path, split: str, sequence_length: int | None, seed: int) -> Corpus:
    return Corpus(path, split=split, sequence_length=sequence_length, seed=seed)


def _refuse_other_types(path: object, sequence_length: object) -> None:
    """Raise UserError unless these are one path, and an integer from 1 or None."""
    if not isinstance(path, str | Path):
        kind = type(path).__name__
        raise UserError(f"path is of type {kind}; expected one path: open several corpora one by one")
    if sequence_length is not None and (not isinstance(sequence_length, Integral) or sequence_length < 1):
        raise UserError(f"sequence_length is {sequence_length}; expected an integer from 1, or None for documents")


def _listed(texts: Texts) -> list[str | Path]:
    """Return the inputs as a list; raise UserError if one is not a path."""
    several = [texts] if isinstance(texts, str | Path | bytes) else list(texts)
    for one in several:
        if not isinstance(one, str | Path):
            raise UserError(f"texts has an entry of type {type(one).__name__}; expected paths, as strings or Path")
    return several


def _reading(
    *, kind: Format, field: str, suffixes: Sequence[str], exclude: Sequence[str], on_error: Literal["stop", "skip"]
) -> ReadOptions:
    return ReadOptions(
        format=_chosen("format", kind, get_args(Format)),
        field=field,
        suffixes=_several("suffixes", suffixes),
        exclude=_several("exclude", exclude),
        on_error=_chosen("on_error", on_error, ("stop", "skip")),
        processes=usable_cores(),
    )


def _several(name: str, values: Sequence[str]) -> tuple[str, ...]:
    if isinstance(values, str):
        raise UserError(f"{name} is a string, {values!r}; expected a list of strings, such as [{values!r}]")
    if not all(isinstance(value, str) for value in values):
        raise UserError(f"{name} is {values!r:.80}; expected a list of strings")
    return tuple(values)


def _chosen(name: str, value: Any, choices: Iterable[str]) -> Any:
    """Return ``value``; raise UserError if it is not one of the choices."""
    known = list(choices)
    if value not in known:
        raise UserError(f"{name} is {value!r}; expected one of {', '.join(known)}{did_you_mean(str(value), known)}")
    return value


def _warn_of_faults(faults: int, messages: list[str]) -> None:
    if faults:
        _logger.warning("skipped %s that could not be read: %s", counted(faults, "document"), "; ".join(messages))
