"""From documents to a store: parts that hold some tens of megabytes of text each, joined at the end.

    documents -> batches of 4 MB -> tokens -> parts/000000-train.bin .idx .npy, parts/000000-validation.bin ...
                                              parts/000001-train.bin ...
    parts of a split, in their order       -> train/tokens.bin .idx, train/documents.npy

A part is finished, on the disk and by itself a Megatron data set before the next one begins; joining copies bytes and
adds up indices. So memory holds a batch, whatever the size of the corpus. The price: the tokens are written twice.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain, count, islice
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import numpy as np
from numpy.typing import ArrayLike

from hornbook.data.megatron import IndexedFile, IndexedWriter, join_indexed, smallest_dtype
from hornbook.data.rows import DOCUMENT_ROW, npy_bytes
from hornbook.storage import Written, write_file
from hornbook.text.documents import Document
from hornbook.text.tokenizer import Tokenizer

_BATCH_BYTES: Final = 4 << 20
_BATCHES_PER_PART: Final = 16


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a build has done so far: documents, bytes of their text in UTF-8, and tokens."""

    documents: int = 0
    num_bytes: int = 0
    tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class PartPlan:
    """How documents become tokens.

    Attributes:
        tokenizer: makes the tokens.
        source_numbers: the number that stands for a document's source in ``documents.npy``.
        validation: share of the documents that the validation split gets.
        store_end_of_text: whether each document ends with the end-of-text token in the store.
    """

    tokenizer: Tokenizer
    source_numbers: dict[str, int]
    validation: float
    store_end_of_text: bool

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that there will be."""
        return ("train", "validation") if self.validation else ("train",)


def write_parts(
    documents: Iterable[Document], folder: Path, plan: PartPlan, on_progress: Callable[[Progress], None]
) -> int:
    """Tokenize documents into parts in an existing folder; return how many parts there are.

    Raises:
        StorageError: a part cannot be written.
    """
    progress = Progress()
    batches = batched_by_bytes(documents, _BATCH_BYTES)
    for number in count():
        some = islice(batches, _BATCHES_PER_PART)
        first = next(some, None)
        if first is None:
            return number
        with ExitStack() as stack:
            writers = {
                split: stack.enter_context(_SplitWriter(folder / f"{number:06d}-{split}", plan))
                for split in plan.splits
            }
            for batch in chain((first,), some):
                tokens = _write_batch(batch, writers, plan)
                progress = replace(
                    progress,
                    documents=progress.documents + len(batch),
                    num_bytes=progress.num_bytes + sum(document.num_bytes for document in batch),
                    tokens=progress.tokens + tokens,
                )
                on_progress(progress)
    raise AssertionError("counting has no end")


def join_parts(folder: Path, num_parts: int, split: str, target: Path) -> dict[str, Written]:
    """Make ``tokens.bin``, ``tokens.idx`` and ``documents.npy`` of a split's parts in an existing folder ``target``.

    Returns:
        Size and hash of each of them.

    Raises:
        StorageError: a file cannot be read or written.
    """
    prefixes = [folder / f"{number:06d}-{split}" for number in range(num_parts)]
    tokens, index = join_indexed([IndexedFile.open(prefix) for prefix in prefixes], target / "tokens")
    rows = [np.load(prefix.with_suffix(".npy"), allow_pickle=False) for prefix in prefixes]
    documents = write_file(target / "documents.npy", npy_bytes(np.concatenate(rows)))
    return {"tokens.bin": tokens, "tokens.idx": index, "documents.npy": documents}


def falls_to_validation(text: str, fraction: float) -> bool:
    """Tell the split of a document: a pure function of its text.

    So a document stays on its side when others come, go or move, and when the fraction grows it may pass from training
    to validation, never back; copies of one text fall on one side.
    """
    number = int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
    return number < fraction * 2**64


def batched_by_bytes(documents: Iterable[Document], size: int) -> Iterator[list[Document]]:
    """Lists of one document or more, each complete once it has ``size`` bytes of text."""
    batch: list[Document] = []
    num_bytes = 0
    for document in documents:
        batch.append(document)
        num_bytes += document.num_bytes
        if num_bytes >= size:
            yield batch
            batch, num_bytes = [], 0
    if batch:
        yield batch


class _SplitWriter:
    """One split of one part: ``prefix.bin``, ``prefix.idx``, and ``prefix.npy`` with a row a document."""

    def __init__(self, prefix: Path, plan: PartPlan) -> None:
        self._prefix = prefix
        self._indexed = IndexedWriter(prefix, smallest_dtype(plan.tokenizer.vocab_size))
        self._source_numbers = plan.source_numbers
        self._rows: list[tuple[int, int, int]] = []

    def add(self, document: Document, tokens: ArrayLike) -> None:
        self._indexed.add_document(tokens)
        self._rows.append((self._source_numbers[document.source], document.offset, document.num_bytes))

    def __enter__(self) -> Self:
        self._indexed.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._indexed.__exit__(kind, error, at)
        if error is None:
            write_file(self._prefix.with_suffix(".npy"), npy_bytes(np.array(self._rows, dtype=DOCUMENT_ROW)))


def _write_batch(batch: list[Document], writers: dict[str, _SplitWriter], plan: PartPlan) -> int:
    """Tokenize documents and hand each to its split; return the number of tokens."""
    end = [plan.tokenizer.end_of_text_id] if plan.store_end_of_text else []
    num_tokens = 0
    for document, ids in zip(batch, plan.tokenizer.encode_batch([document.text for document in batch]), strict=True):
        split = "validation" if falls_to_validation(document.text, plan.validation) else "train"
        tokens = np.concatenate((ids, np.array(end, dtype=ids.dtype)))
        writers[split].add(document, tokens)
        num_tokens += len(tokens)
    return num_tokens
