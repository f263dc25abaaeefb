"""Texts to tokens in Python: tokenizers and corpora as the commands build them, and a corpus as a torch ``Dataset``.

    tokenizer = train_tokenizer("texts", output="tokenizers/mine")      hornbook tokenizer train
    folder = build_corpus("texts", tokenizer, output="corpora/mine")    hornbook corpus build
    corpus(folder)[0]                          {"tokens": int64[n]}                         a document
    corpus(folder, sequence_length=128)[0]     {"tokens": int64[128], "targets": int64[128]}  a sample of a training

The trade-off: filters and formats that need more options than these are left to the command ``hornbook corpus build``,
whose corpora are read here all the same.
"""

import logging
import operator
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from hornbook.config.suggest import did_you_mean
from hornbook.corpora.build import tokenizer as tokenizers
from hornbook.corpora.build.builder import BuildOptions
from hornbook.corpora.build.builder import build_corpus as build
from hornbook.corpora.store import SPLITS, open_store
from hornbook.errors import UserError
from hornbook.samples.windows import Windows
from hornbook.storage.system import usable_cores
from hornbook.text.quality.policy import Tolerance
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
        texts: what to read; folders are searched for files.
        output: folder for ``tokenizer.json``; None: it is returned only.
        vocab_size: number of tokens. Few texts may give fewer.
        kind: ``"byte-bpe"`` (GPT-2), ``"roberta"`` or ``"wordpiece"`` (BERT).
        cased: keep case and accents; of these kinds, ``"wordpiece"`` alone has a choice.
        validation: leave out the documents that `build_corpus` holds out with this share.
        format: what a document is: ``"text"``, a file; ``"lines"``; ``"blank-lines"``; ``"jsonl"``; ``"parquet"``; …;
            ``"auto"`` decides by the ending.
        field: where a line of JSONL or a row has its text.
        suffixes: take only files with these endings out of folders, as in ``(".txt",)``.
        exclude: names of files and folders to leave out, as in ``("draft*",)``.
        on_error: ``"stop"`` at a document that cannot be read, or ``"skip"`` it with a warning to the log.

    Raises:
        UserError: an argument or an input is wrong, or another tokenizer is in ``output`` already.
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
    allow: Sequence[str] = (),
) -> Path:
    """Tokenize texts into a corpus, as ``hornbook corpus build`` does, and return its folder.

    A corpus of the same inputs, tokenizer and options that is there already is left as it is.

    Args:
        texts: what to read, as for `train_tokenizer`.
        tokenizer: a tokenizer, or the path of one.
        output: the corpus' folder.
        validation: share of the documents that is held out, by a hash of their text.
        sequences: what is kept apart: ``"documents"`` or, for BERT's pairs, their ``"sentences"`` or ``"lines"``.
        format: as for `train_tokenizer`, and so are ``field``, ``suffixes``, ``exclude`` and ``on_error``.
        field: see there.
        suffixes: see there.
        exclude: see there.
        on_error: see there.
        allow: suspicious outcomes to accept, as the command's ``--allow``: ``("empty-file",)``.

    Raises:
        UserError: an argument or an input is wrong, or ``output`` holds another corpus.
        DataError: a document cannot be read, there is none, or the outcome is suspicious.
        StorageError: the disk is full, read-only or failing; the same call goes on from there.
    """
    options = BuildOptions(
        validation=validation,
        sequences=_chosen("sequences", sequences, ("documents", "sentences", "lines")),
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
        path: the corpus.
        split: the split that is read.
        sequence_length: tokens of a sample; None: an item is a document.
        seed: of the order of samples.
        num_documents: documents of the split.
        num_tokens: tokens of all of them, stored end-of-text tokens included.
    """

    def __init__(
        self, path: str | Path, *, split: str = "train", sequence_length: int | None = None, seed: int = 0
    ) -> None:
        if sequence_length is not None and sequence_length < 1:
            raise UserError(f"sequence_length is {sequence_length}; expected 1 or more, or None for whole documents")
        self.path, self.split = Path(path), _chosen("split", split, SPLITS)
        self.sequence_length, self.seed = sequence_length, seed
        self._store = open_store(self.path, split)
        self._windows = None if sequence_length is None else Windows(self._store, sequence_length, seed)
        self.num_documents, self.num_tokens = self._store.num_documents, self._store.num_tokens

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer that made the tokens; None where others made the corpus and do not tell."""
        return self._store.tokenizer()

    def __len__(self) -> int:
        return self.num_documents if self._windows is None else self._windows.num_items

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return a document or a sample; negative numbers count from the end.

        Returns:
            ``{"tokens": int64[n]}`` of a document, with its end-of-text token where the corpus stores one; or, with a
            ``sequence_length`` T, ``{"tokens": int64[T], "targets": int64[T]}``, the targets one token further.

        Raises:
            IndexError: there is no such item.
        """
        number = self._number(index, len(self))
        if self._windows is None:
            return {"tokens": torch.from_numpy(self._store.document(number).astype(np.int64))}
        tokens = torch.from_numpy(self._windows.batch(np.array([number])).tokens[0])
        return {"tokens": tokens[:-1], "targets": tokens[1:]}

    def text(self, index: int) -> str:
        """Return the text of a document, whatever the items are, without its end-of-text token.

        Raises:
            UserError: the corpus came without a tokenizer.
            IndexError: there is no such document.
        """
        tokenizer = self.tokenizer
        if tokenizer is None:
            raise UserError(f"{self.path} has no tokenizer, so its tokens have no text; others made it without one")
        ids = self._store.document(self._number(index, self.num_documents))
        return tokenizer.decode(ids[:-1] if self._store.end_of_text == "stored" else ids)

    def __reduce__(self) -> tuple[Any, ...]:
        """Open the corpus again in a worker process, in place of a copy of all tokens."""
        return _reopen, (self.path, self.split, self.sequence_length, self.seed)

    def __repr__(self) -> str:
        items = "documents" if self.sequence_length is None else f"samples of {self.sequence_length} tokens"
        return f"<Corpus {self.path} ({self.split}): {len(self):,} {items}, {self.num_tokens:,} tokens>"

    @staticmethod
    def _number(index: int, count: int) -> int:
        number = operator.index(index)
        if not -count <= number < count:
            raise IndexError(f"there is no item {number}; expected 0 to {count - 1}")
        return number % count


def corpus(path: str | Path, *, split: str = "train", sequence_length: int | None = None, seed: int = 0) -> Corpus:
    """Open a corpus as a map-style torch ``Dataset``, for a ``DataLoader`` with any number of workers.

    Without ``sequence_length``, item i is document i. With it, item i is sample i of a training with that
    ``data.sequence_length`` and ``training.seed``, in the order in which its first epoch takes them: shuffled already.

    Args:
        path: what ``data.train`` takes: a corpus, a token store, or Megatron's ``.bin`` and ``.idx``.
        split: ``"train"`` or ``"validation"``.
        sequence_length: tokens of a sample; None for whole documents.
        seed: of the samples' order and of where they begin.

    Raises:
        UserError: an argument is wrong, or the split is shorter than one sample.
        DataError: there is no corpus, it has no such split, or it is damaged.
        StorageError: a file cannot be read.
    """
    return Corpus(path, split=split, sequence_length=sequence_length, seed=seed)


def _reopen(path: Path, split: str, sequence_length: int | None, seed: int) -> Corpus:
    return Corpus(path, split=split, sequence_length=sequence_length, seed=seed)


def _listed(texts: Texts) -> list[str | Path]:
    return [texts] if isinstance(texts, str | Path) else list(texts)


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
        raise UserError(f"{name} is the text {values!r}; expected a list of texts, [{values!r}]")
    return tuple(values)


def _chosen(name: str, value: Any, choices: Iterable[str]) -> Any:
    """Return a value that is among the choices.

    Raises:
        UserError: it is not.
    """
    known = list(choices)
    if value not in known:
        raise UserError(f"{name} is {value!r}; expected one of {', '.join(known)}{did_you_mean(str(value), known)}")
    return value


def _warn_of_faults(faults: int, messages: list[str]) -> None:
    if faults:
        _logger.warning("skipped %s that could not be read: %s", counted(faults, "document"), "; ".join(messages))
