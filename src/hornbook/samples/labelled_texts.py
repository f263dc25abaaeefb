"""Texts with the classes that people gave them: from files to examples, and to the sequences of an encoder.

    {"text": "Call me Ishmael.", "label": "moby_dick"}                     .jsonl   a field each
    text,label                                                             .csv     a column each, named by the header
    "Call me Ishmael.",moby_dick
    Call me Ishmael. <tab> moby_dick                                       .tsv     or by numbers, from 0

    -> Example(text, second_text, label)  -> [CLS] call me ishmael . [SEP]     and number 1 of the classes

All examples are in memory, as tokens: that is the price of knowing before the first step that each of them is sound.
"""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np

from hornbook.arrays import Int64s, Integers
from hornbook.config import ClassificationConfig
from hornbook.config.suggest import did_you_mean
from hornbook.errors import DataError, UserError
from hornbook.samples.pairs import truncated_lengths
from hornbook.samples.sequences import TokenSequence, framed
from hornbook.storage.json_files import load_strictly, read_bytes
from hornbook.text.readers.csv_tables import TABLES, next_of_any_size
from hornbook.text.readers.jsonl import read_objects, utf8_of
from hornbook.text.tokenizer import Tokenizer

LARGEST_FILE: Final = 1 << 30
_INTEGER: Final = re.compile("-?[0-9]+")
_OBJECTS: Final = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True, kw_only=True)
class Example:
    """One text, or a pair of texts, with its class.

    Attributes:
        text: not blank, as the second one.
        second_text: None where there are no pairs.
        label: as the file has it, a number in digits.
        place: file and line, for errors.
    """

    text: str
    second_text: str | None
    label: str
    place: str


def read_examples(path: str, columns: ClassificationConfig) -> list[Example]:
    """Return the examples of a file, in its order.

    Args:
        path: JSONL, CSV or TSV, told by the suffix, in UTF-8. Blank lines are passed over.
        columns: names the fields or columns of text, second text and label.

    Raises:
        DataError: the file is missing or of another kind, has no examples, or one of its lines is malformed, lacks a
            field, or has no text or no label in it; names file and line.
        StorageError: it cannot be read.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (*_OBJECTS, *TABLES):
        raise DataError(f"{path}: expected labelled texts, a file called .jsonl, .csv or .tsv")
    data = read_bytes(Path(path), "the file of labelled texts", limit=LARGEST_FILE).removeprefix(b"\xef\xbb\xbf")
    rows = _rows_of_objects(data, path, columns) if suffix in _OBJECTS else _rows_of_table(data, path, columns)
    examples = [_example(row, place, columns) for row, place in rows]
    if not examples:
        raise DataError(f"{path}: there are no examples in it; expected a text and a label a line")
    return examples


def labels_of(examples: Sequence[Example], path: str) -> tuple[str, ...]:
    """Return the classes of a training file, sorted; by value where all of them are integers.

    Raises:
        DataError: there is only one.
    """
    labels = {example.label for example in examples}
    if len(labels) == 1:
        raise DataError(f"{path}: all examples are of one class, {labels.pop()!r:.80}; expected two classes or more")
    if all(map(_INTEGER.fullmatch, labels)):
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    return tuple(sorted(labels))


def listed(names: Sequence[str]) -> str:
    """Return the first names of a list that may be long, for people."""
    return ", ".join(f"{name:.40}" for name in names[:8]) + ", ..." * (len(names) > 8)


def label_numbers(examples: Sequence[Example], labels: Sequence[str]) -> Int64s:
    """Return int64[N], the number of each example's class; a file may have the numbers themselves, counted from 0.

    Raises:
        DataError: a label is not among the classes.
    """
    known = {label: number for number, label in enumerate(labels)}
    if not any(map(str.isdecimal, labels)):
        known |= {str(number): number for number in range(len(labels))}
    for example in examples:
        if example.label not in known:
            raise DataError(
                f"{example.place}: the label {example.label!r:.80} is none of the {len(labels)} classes "
                f"({listed(labels)})"
                f"{did_you_mean(example.label, labels)}; mend the label, or train with it"
            )
    return np.array([known[example.label] for example in examples], dtype=np.int64)


def encode_examples(examples: Sequence[Example], tokenizer: Tokenizer, sequence_length: int) -> list[TokenSequence]:
    """Return the sequences of examples; a long text is cut off at its end, of a pair always the longer one.

    Raises:
        UserError: the tokenizer lacks a special token, or ``sequence_length`` has no room for a text.
    """
    first = tokenizer.encode_batch([example.text for example in examples])
    if examples[0].second_text is None:
        room = sequence_length - num_special(tokenizer, pair=False)
        _require_room(room, 1, sequence_length)
        return [frame(tokenizer, text[:room]) for text in first]
    second = tokenizer.encode_batch([example.second_text or "" for example in examples])
    room = sequence_length - num_special(tokenizer, pair=True)
    _require_room(room, 2, sequence_length)
    a_lengths, b_lengths = (np.array([len(text) for text in texts], dtype=np.int64) for texts in (first, second))
    kept = zip(*(lengths.tolist() for lengths in truncated_lengths(a_lengths, b_lengths, room)), strict=True)
    return [
        frame(tokenizer, a[:a_kept], b[:b_kept]) for a, b, (a_kept, b_kept) in zip(first, second, kept, strict=True)
    ]


def frame(tokenizer: Tokenizer, first: Integers, second: Integers | None = None) -> TokenSequence:
    """Return ``[CLS] A [SEP]``, or ``[CLS] A [SEP] B [SEP]`` with B as the second segment, nothing of it hidden.

    RoBERTa has two separators between the texts of a pair (Liu et al. 2019).
    """
    special = tokenizer.require_masking()
    alone = framed(first, special).unscored()
    if second is None:
        return alone
    more = np.full(num_special(tokenizer, pair=True) - 2 + len(second), special.sep, dtype=np.int64)
    more[-len(second) - 1 : -1] = second
    segments = np.repeat([0, 1], [len(alone.tokens) + len(more) - len(second) - 1, len(second) + 1])
    return alone._replace(tokens=np.concatenate((alone.tokens, more)), segments=segments)


def num_special(tokenizer: Tokenizer, *, pair: bool) -> int:
    """Tokens of a sequence that are no text."""
    if not pair:
        return 2
    return 4 if tokenizer.has_two_separators else 3


def _require_room(room: int, needed: int, sequence_length: int) -> None:
    if room < needed:
        raise UserError(f"sequences of {sequence_length} tokens have no room for a text; raise data.sequence_length")


def _example(row: Mapping[str, object], place: str, columns: ClassificationConfig) -> Example:
    second = None if columns.second_text is None else _text(row, columns.second_text, place)
    return Example(
        text=_text(row, columns.text, place), second_text=second, label=_label(row, columns.label, place), place=place
    )


def _text(row: Mapping[str, object], field: str, place: str) -> str:
    text = row[field]
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"{place}: {field!r} has no text; correct the line or leave it out")
    utf8_of(text, place, repr(field))
    return text


def _label(row: Mapping[str, object], field: str, place: str) -> str:
    label = row[field]
    if isinstance(label, bool | int):
        return str(label).lower()
    if not isinstance(label, str) or not label.strip() or not label.isprintable():
        raise DataError(f"{place}: {field!r} holds no label, expected a word or an integer; mend the line")
    return label.strip()


def _fields(columns: ClassificationConfig) -> list[str]:
    return [field for field in (columns.text, columns.second_text, columns.label) if field is not None]


def _rows_of_objects(data: bytes, path: str, columns: ClassificationConfig) -> Iterator[tuple[dict[str, object], str]]:
    for place, row in read_objects(io.BytesIO(data), path, LARGEST_FILE, skip_blank=True, load=load_strictly):
        _require_fields(row, path, place, columns)
        yield row, place


def _rows_of_table(data: bytes, path: str, columns: ClassificationConfig) -> Iterator[tuple[dict[str, object], str]]:
    """Yield each row by the names of its columns: those of the header, or numbers where the columns are numbers."""
    lines = csv.reader(io.StringIO(_decoded(data, path), newline=""), **TABLES[Path(path).suffix.lower()])
    try:
        rows = (
            (row, f"{path}, line {lines.line_num}")
            for row in iter(partial(next_of_any_size, lines, LARGEST_FILE), None)
            if row
        )
        header, place = next(rows, ([], path))
        if all(map(str.isdecimal, _fields(columns))):
            rows_of_all, header = chain([(header, place)], rows), [str(number) for number in range(len(header))]
        else:
            rows_of_all = chain(rows)
        _require_fields(header, path, place, columns)
        for row, place in rows_of_all:
            if len(row) != len(header):
                raise DataError(
                    f"{place}: {len(row)} columns, where the table has {len(header)}; mend the line (a text with a "
                    "separator in it is quoted)"
                )
            yield dict(zip(header, row, strict=True)), place
    except csv.Error as error:
        raise DataError(f"{path}, line {lines.line_num}: not a table ({error}); mend the line") from error


def _require_fields(
    names: Sequence[str] | dict[str, object], path: str, place: str, columns: ClassificationConfig
) -> None:
    there = list(names)
    for field in _fields(columns):
        if there.count(field) != 1:
            shown = listed([repr(name) for name in there])
            what = "out of range" if field.isdecimal() else "missing" if field not in there else "there twice"
            option = next(name for name in ("text", "second_text", "label") if getattr(columns, name) == field)
            raise DataError(
                f"{place}: the column {field!r:.80} is {what} (there: {shown or 'none'}); name the right one by "
                f"--objective.{option.replace('_', '-')}"
            )


def _decoded(data: bytes, path: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}; convert the file") from error
