"""The pipeline from documents to tokens: while one batch is written, the next is tokenized and the one after is read.

    read_batches                    filtered documents, 4 MB of text at a time          one thread
      -> tokenize_batches           [5 6 7 | 8 9 | 3], sizes [3 2 1], origins           one thread, and the library's
           -> the writer of parts

`ahead` computes the next item in a thread while the current one is used, so the order, and therefore every byte, is
that of a plain loop, and memory holds two batches per stage.
"""

import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import blake2b
from itertools import chain
from typing import Any, Final, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from hornbook.arrays import Bools, Hashes, Int64s, Integers
from hornbook.corpora.store_manifest import DOCUMENT_ROW, splits_of_share
from hornbook.text.documents import offset_unit
from hornbook.text.quality.filters import Filter
from hornbook.text.reading import Document, Position, Tally
from hornbook.wording import as_text, one_line

BATCH_BYTES: Final = 4 << 20
BATCH_DOCUMENTS: Final = 1 << 15
BATCH_BYTES_READ: Final = 16 << 20
"""Limit with dropped documents included, so that filters that keep almost nothing do not delay parts and progress."""

Encode = Callable[[Sequence[str]], list[NDArray[np.int32]]]
"""Returns the ids of each text, see `hornbook.text.tokenizer.Tokenizer.encode_batch`."""

LONG_TEXT: Final = 10_000
"""Minimum number of characters of a text whose tail can be held out."""

T = TypeVar("T")
_EXAMPLES_PER_FILTER: Final = 3
_EXAMPLE_CHARACTERS: Final = 80
_PARAGRAPH_END: Final = re.compile(r"\r?\n(?:[^\S\n]*\n)+")
_LINE_END: Final = re.compile(r"\n")


@dataclass(frozen=True, kw_only=True)
class Example:
    """A document that a filter dropped.

    Attributes:
        source, offset: its origin, see `hornbook.text.reading.Document`.
        text: its first 80 characters on one line, with control characters escaped.
    """

    source: str
    offset: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The state of reading the inputs: counts and position.

    Attributes:
        tally: the counts and position of the reader.
        dropped: number of documents that each filter dropped, by its name.
        examples: the first three documents that each filter dropped, by its name.
        lost: number of documents that filters dropped since the last batch, by index of the source.
    """

    tally: Tally = field(default_factory=Tally)
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[Example]] = field(default_factory=dict)
    lost: Counter[int] = field(default_factory=Counter)

    def copy(self) -> Self:
        """Return a copy that further reading does not change."""
        tally = replace(
            self.tally,
            messages=list(self.tally.messages),
            faulty=set(self.tally.faulty),
            skipped=Counter(self.tally.skipped),
            totals=Counter(self.tally.totals),
        )
        counters = {name: Counter(getattr(self, name)) for name in ("dropped", "lost")}
        examples = {name: list(found) for name, found in self.examples.items()}
        return replace(self, tally=tally, examples=examples, **counters)

    def add_dropped(self, document: Document, source: int, name: str) -> None:
        """Count a document that the named filter dropped, and record it if it is one of the first three."""
        self.dropped[name] += 1
        self.lost[source] += 1
        examples = self.examples.setdefault(name, [])
        if len(examples) < _EXAMPLES_PER_FILTER:
            begin = document.text[:_EXAMPLE_CHARACTERS]
            examples.append(Example(source=as_text(document.source), offset=document.offset, text=one_line(begin)))

    def to_json(self) -> dict[str, Any]:
        """Return values for JSON; invalid UTF-8 in file names is written with backslash escapes."""
        tally = {each.name: getattr(self.tally, each.name) for each in fields(self.tally)}
        messages = list(map(as_text, self.tally.messages))
        special = {
            "messages": messages,
            "faulty": sorted(self.tally.faulty),
            "skipped": dict(self.tally.skipped),
            "totals": dict(self.tally.totals),
            "position": asdict(self.tally.position),
        }
        counters = {name: list(getattr(self, name).items()) for name in ("dropped", "lost")}
        examples = {name: [asdict(example) for example in found] for name, found in self.examples.items()}
        return {"tally": tally | special, "examples": examples} | counters

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Return the state that ``to_json`` wrote. Raises KeyError, TypeError or ValueError for other values."""
        tally = dict(values["tally"])
        tally |= {
            "faulty": set(tally.get("faulty", ())),  # missing in parts written by an earlier version
            "skipped": Counter(tally["skipped"]),
            "totals": Counter(tally.get("totals")),
            "position": Position(**tally["position"]),
        }
        counters = {name: Counter(dict(values[name])) for name in ("dropped", "lost")}
        examples = {name: [Example(**each) for each in found] for name, found in values["examples"].items()}
        return cls(tally=Tally(**tally), examples=examples, **counters)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Consecutive documents.

    Attributes:
        documents: the documents that all filters keep, at least one.
        reading: the state of reading after the last of them.
        memory: the new memory of each filter, from these documents and the dropped ones between them.
    """

    documents: list[Document]
    reading: Reading
    memory: list[Hashes]


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokens:
    """Tokenized documents.

    Attributes:
        tokens: the concatenated tokens of all sequences, [num_tokens] of the store's dtype.
        sizes: number of tokens of each sequence, int64[num_sequences].
        sequences: number of sequences of each document, int64[num_documents].
        rows: origin of each document, ``DOCUMENT_ROW`` [num_documents].
    """

    tokens: Integers
    sizes: Int64s
    sequences: Int64s
    rows: NDArray[np.void]

    def only(self, chosen: Bools) -> "Tokens":
        """Return the documents where ``chosen``, bool[num_documents], is true."""
        if chosen.all():
            return self
        of_sequences = np.repeat(chosen, self.sequences)
        return Tokens(
            tokens=self.tokens[np.repeat(of_sequences, self.sizes)],
            sizes=self.sizes[of_sequences],
            sequences=self.sequences[chosen],
            rows=self.rows[chosen],
        )


@dataclass(frozen=True, kw_only=True)
class TokenPlan:
    """The settings for tokenizing documents.

    Attributes:
        encode: returns the ids of texts.
        dtype: the dtype of the store, which can represent every id of the vocabulary.
        source_numbers: maps the name of a source to its index in ``documents.npy``.
        validation, validation_tail: share of the documents, or of each long one, for the validation split.
        end_of_text_id: the id stored after each document, or None.
        split_text: splits a text into sequences; None makes each document one sequence.
    """

    encode: Encode
    dtype: np.dtype[Any]
    source_numbers: dict[str, int]
    validation: float = 0.0
    validation_tail: float = 0.0
    end_of_text_id: int | None = None
    split_text: Callable[[str], list[str]] | None = None


def ahead(items: Generator[T, None, None]) -> Generator[T, None, None]:
    """Yield the same items, each computed in a thread while the previous one is used, and raise errors in order."""
    with closing(items), ThreadPoolExecutor(1, thread_name_prefix="hornbook-ahead") as executor:
        waiting = executor.submit(next, items, None)
        while (item := waiting.result()) is not None:
            waiting = executor.submit(next, items, None)
            yield item


def read_batches(
    documents: Iterable[Document], filters: Sequence[Filter], reading: Reading, source_numbers: Mapping[str, int]
) -> Generator[Batch, None, None]:
    """Filter documents and group the kept ones into batches.

    Args:
        documents: the documents.
        filters: applied in order until one drops the document.
        reading: updated in place, except for its tally, which the reader of ``documents`` updates.
        source_numbers: maps the name of a source to its index.
    """
    reading.dropped.update({each.name: 0 for each in filters})
    remaining = iter(documents)
    while True:
        batch: list[Document] = []
        num_bytes = num_bytes_read = 0
        for document in remaining:
            num_bytes_read += document.num_bytes
            dropper = next((each for each in filters if not each.keeps(document)), None)
            if dropper is not None:
                reading.add_dropped(document, source_numbers[document.source], dropper.name)
                continue
            batch.append(document)
            num_bytes += document.num_bytes
            if num_bytes >= BATCH_BYTES or len(batch) >= BATCH_DOCUMENTS or num_bytes_read >= BATCH_BYTES_READ:
                break
        if not batch:
            return
        done = Batch(documents=batch, reading=reading.copy(), memory=[each.new_memory() for each in filters])
        reading.lost.clear()
        yield done


def example_lines(examples: Mapping[str, Sequence[Mapping[str, Any]]], format_name: str) -> list[str]:
    """Return a line for each example of `Reading.to_json`: filter, source, offset and text."""
    return [
        f"{name}: {one_line(each['source'])} at {offset_unit(each['source'], format_name)} {each['offset']:,}: "
        f"{each['text']}"
        for name, found in examples.items()
        for each in found
    ]


def tokenize_batches(
    batches: Generator[Batch, None, None], plan: TokenPlan
) -> Generator[tuple[Batch, dict[str, Tokens]], None, None]:
    """Yield each batch with its tokenized documents of each split."""
    with closing(batches):
        for batch in batches:
            documents, held_out = hold_out(batch.documents, plan.validation, plan.validation_tail)
            texts = [document.text for document in documents]
            pieces = list(map(plan.split_text, texts)) if plan.split_text else [[text] for text in texts]
            ids = plan.encode(list(chain.from_iterable(pieces)))
            sizes = np.fromiter(map(len, ids), np.int64, len(ids))
            tokens = np.concatenate([np.empty(0, dtype=np.int32), *ids], dtype=plan.dtype, casting="unsafe")  # they fit
            del ids
            if plan.end_of_text_id is not None:
                tokens = np.insert(tokens, np.cumsum(sizes), plan.end_of_text_id)
                sizes += 1
            rows = [(plan.source_numbers[each.source], each.offset, each.num_bytes) for each in documents]
            whole = Tokens(
                tokens=tokens,
                sizes=sizes,
                sequences=np.fromiter(map(len, pieces), np.int64, len(pieces)),
                rows=np.array(rows, dtype=DOCUMENT_ROW),
            )
            chosen = {"train": ~held_out, "validation": held_out}
            share = plan.validation or plan.validation_tail
            yield batch, {split: whole.only(chosen[split]) for split in splits_of_share(share)}


def hold_out(
    documents: Sequence[Document], validation: float = 0.0, validation_tail: float = 0.0
) -> tuple[Sequence[Document], Bools]:
    """Hold out a share of the documents, or the tail of each long document, for validation.

    Returns:
        The documents, with long ones possibly divided into head and tail, and whether each of them is held out,
        bool[num_documents].
    """
    if validation_tail:
        parts = [divide_tail(document, validation_tail) for document in documents]
        held_out = [number > 0 for divided in parts for number in range(len(divided))]
        return list(chain.from_iterable(parts)), np.array(held_out, dtype=bool)
    chosen = (falls_to_validation(document.text, validation) for document in documents)
    return documents, np.fromiter(chosen, bool, len(documents))


def divide_tail(document: Document, share: float) -> list[Document]:
    """Divide a long document into head and tail, which together are its text; any other stays whole.

    The tail begins after the last paragraph end, or else the last line end, that leaves it one to two times ``share``
    of the characters. The document is not divided if there is none, if it has fewer than `LONG_TEXT` characters, or if
    the head or tail would be blank. Both parts have the source and offset of the document.
    """
    text = document.text
    if len(text) < LONG_TEXT:
        return [document]
    first, last = len(text) - int(2 * share * len(text)), len(text) - int(share * len(text))
    for end in (_PARAGRAPH_END, _LINE_END):
        cut = max((match.end() for match in end.finditer(text, first, last)), default=0)
        head, tail = text[:cut], text[cut:]
        if cut and head.strip() and tail.strip():
            num_bytes = len(head.encode())
            return [
                replace(document, text=head, num_bytes=num_bytes),
                replace(document, text=tail, num_bytes=document.num_bytes - num_bytes),
            ]
    return [document]


def falls_to_validation(text: str, fraction: float) -> bool:
    """Return whether a document is for validation: a pure function of its text, by its BLAKE2b hash.

    A document therefore stays in its split when others are added, removed or moved; if the fraction grows, documents
    move only from training to validation; and copies of a text are in the same split.
    """
    if not fraction:
        return False
    number = int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
    return number < fraction * 2**64
