"""Read labeled texts from files, and encode them as sequences for a model.

    {"text": "Call me Ishmael.", "label": "moby_dick"}                     .jsonl   one field each
    text,label                                                             .csv     one column each, named by the header
    "Call me Ishmael.",moby_dick
    Call me Ishmael. <tab> moby_dick                                       .tsv     or numbered from 0
    Call me Ishmael.                                                       text     one per line, without labels

    -> Example(text, second_text, label)  -> [CLS] call me ishmael . [SEP]     and class number 1              (encoder)
                                          -> Call me Ishmael.                                               (decoder)

The price of checking all examples before the first step: all of them are in memory, as tokens.
"""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from hornbook.arrays import Int64s, Integers
from hornbook.config import ClassificationConfig
from hornbook.config.suggest import did_you_mean
from hornbook.errors import DataError, UserError
from hornbook.samples.pairs import truncated_lengths
from hornbook.samples.sequences import TokenSequence, framed
from hornbook.storage.json_files import load_strictly, read_bytes
from hornbook.storage.system import format_bytes
from hornbook.text.readers.columns import TABLES, next_of_any_size
from hornbook.text.readers.jsonl import line_text, read_objects, utf8_of
from hornbook.text.reading import BYTE_ORDER_MARK, STANDARD_INPUT, Source, open_stream, read_lines
from hornbook.text.tokenizer import Tokenizer
from hornbook.wording import counted

LARGEST_FILE: Final = 1 << 30
TextFormat: TypeAlias = Literal["auto", "jsonl", "csv", "tsv", "text"]
_INTEGER: Final = re.compile("-?[0-9]+")
_FORMATS: Final[dict[str, TextFormat]] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
}


@dataclass(frozen=True, kw_only=True)
class Example:
    """One text or pair of texts with its class.

    Attributes:
        text: the text, not blank.
        second_text: the second text of a pair, not blank, or None.
        label: as in the file, a number as digits; empty if no labels are read.
        place: file and line, for errors.
    """

    text: str
    second_text: str | None
    label: str
    place: str


def read_examples(
    path: str,
    columns: ClassificationConfig,
    *,
    labelled: bool = True,
    format: TextFormat = "auto",  # noqa: A002 - the option's name
) -> list[Example]:
    """Return the examples of a file, in file order.

    Args:
        path: the file, in UTF-8; ``"-"`` for standard input. Blank lines are skipped, except in plain text: errors,
            so that the n-th example is the n-th line.
        columns: names of the fields or columns of text, second text and label.
        labelled: whether to read labels; if not, they may be missing.
        format: JSONL, CSV, TSV or, without labels, one text per line; auto: by the suffix, text for unknown ones.

    Raises:
        DataError: the file is missing, has another format or no examples, or a line is malformed or lacks a field, a
            text or a label; names file and line.
        UserError: pairs are required, but the format has single texts.
        StorageError: it cannot be read.
    """
    chosen = _FORMATS.get(Path(path).suffix.lower(), "text") if format == "auto" else format
    if labelled and chosen == "text":
        raise DataError(f"{path}: expected labeled texts in a .jsonl, .csv or .tsv file")
    data, name = read_whole(path, "the file of labeled texts" if labelled else "the file of texts")
    if chosen == "text":
        examples = list(_examples_of_lines(data, name, columns))
    else:
        fields = _Fields(columns=columns, labelled=labelled)
        rows = _rows_of_objects(data, name, fields) if chosen == "jsonl" else _rows_of_table(data, name, chosen, fields)
        examples = [_example(row, place, fields) for row, place in rows]
    if not examples:
        expected = "a text and a label per line" if labelled else "a text per line"
        raise DataError(f"{name}: the file has no examples; expected {expected}")
    return examples


def read_whole(path: str, what: str) -> tuple[bytes, str]:
    """Return the content of a file, or of standard input for ``"-"``, without a byte-order mark, and its name.

    Raises:
        DataError: the file, called ``what`` in the message, is missing or larger than 1 GiB.
        StorageError: it cannot be read.
    """
    if path == STANDARD_INPUT:
        source = Source(path, None)
        with open_stream(source) as stream:
            data, name = stream.read(LARGEST_FILE + 1), str(source)
        if len(data) > LARGEST_FILE:
            raise DataError(f"{name}: larger than {format_bytes(LARGEST_FILE)}; split the input")
    else:
        data, name = read_bytes(Path(path), what, limit=LARGEST_FILE), path
    return data.removeprefix(BYTE_ORDER_MARK), name


def labels_of(examples: Sequence[Example], path: str) -> tuple[str, ...]:
    """Return the classes of a training file, sorted; by value if all are integers.

    Raises:
        DataError: there is only one.
    """
    labels = {example.label for example in examples}
    if len(labels) == 1:
        raise DataError(
            f"{path}: all examples have the same class, {labels.pop()!r:.80}; expected at least two classes"
        )
    if all(map(_INTEGER.fullmatch, labels)):
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    return tuple(sorted(labels))


def listed(names: Sequence[str]) -> str:
    """Return the first eight names of a list, for messages."""
    return ", ".join(f"{name:.40}" for name in names[:8]) + ", ..." * (len(names) > 8)


def label_numbers(examples: Sequence[Example], labels: Sequence[str]) -> Int64s:
    """Return the class number of each example, int64[N]; a file may also have the numbers instead of the classes.

    Raises:
        DataError: a label is not among the classes.
    """
    known = {label: number for number, label in enumerate(labels)}
    if not any(map(str.isdecimal, labels)):
        known |= {str(number): number for number in range(len(labels))}
    for example in examples:
        if example.label not in known:
            raise DataError(
                f"{example.place}: the label {example.label!r:.80} is not among the {len(labels)} classes "
                f"({listed(labels)})"
                f"{did_you_mean(example.label, labels)}; correct the label, or train with it"
            )
    return np.array([known[example.label] for example in examples], dtype=np.int64)


class EncodedExamples(NamedTuple):
    """The sequences of examples, and how many of the examples were truncated."""

    sequences: list[TokenSequence]
    num_truncated: int


def encode_examples(
    examples: Sequence[Example], tokenizer: Tokenizer, sequence_length: int, *, is_causal: bool = False
) -> EncodedExamples:
    """Return the sequences of examples, truncated at the end; in a pair, always the longer text.

    Args:
        examples: at least one; either all have a second text or none has.
        tokenizer: the model's tokenizer.
        sequence_length: the most tokens per sequence.
        is_causal: whether the model is a decoder.

    Raises:
        UserError: the tokenizer lacks a special token, or ``sequence_length`` has no room for a text.
    """
    pair = examples[0].second_text is not None
    room = sequence_length - num_special(tokenizer, pair=pair, is_causal=is_causal)
    if room < 1 + pair:
        raise UserError(f"sequences of {sequence_length} tokens are too short for a text; raise data.sequence_length")
    make = joined if is_causal else frame
    first = tokenizer.encode_batch([example.text for example in examples])
    if not pair:
        return EncodedExamples(
            [make(tokenizer, text[:room]) for text in first], sum(len(text) > room for text in first)
        )
    second = tokenizer.encode_batch([example.second_text or "" for example in examples])
    a_lengths, b_lengths = (np.array([len(text) for text in texts], dtype=np.int64) for texts in (first, second))
    kept = zip(*(lengths.tolist() for lengths in truncated_lengths(a_lengths, b_lengths, room)), strict=True)
    return EncodedExamples(
        [make(tokenizer, a[:a_kept], b[:b_kept]) for a, b, (a_kept, b_kept) in zip(first, second, kept, strict=True)],
        int(np.count_nonzero(a_lengths + b_lengths > room)),
    )


def truncation_warning(num_truncated: int, num_texts: int, length: int, *, done: str, noun: str = "text") -> str:
    """Return the line about truncated texts: ``done`` is what became of them, "embedded" or "classified"."""
    verb = "is" if num_truncated == 1 else "are"
    return (
        f"{num_truncated:,} of {counted(num_texts, noun)} {verb} longer than {counted(length, 'token')}, special "
        f"tokens included: {done} without the end; to use more of them, raise `window` or split the texts"
    )


def joined(tokenizer: Tokenizer, first: Integers, second: Integers | None = None) -> TokenSequence:
    """Return a decoder's sequence: ``A``, or ``A <|endoftext|> B``; the class is predicted from its last token.

    Raises:
        UserError: ``second`` is given, but the tokenizer has no end-of-text token.
    """
    tokens = np.asarray(first, dtype=np.int64)
    if second is not None:
        tokens = np.concatenate((tokens, np.array([tokenizer.require_end_of_text()]), second), dtype=np.int64)
    return TokenSequence(tokens, np.zeros_like(tokens)).unscored()


def frame(tokenizer: Tokenizer, first: Integers, second: Integers | None = None) -> TokenSequence:
    """Return ``[CLS] A [SEP]``, or ``[CLS] A [SEP] B [SEP]`` with B as the second segment, without masks.

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


def num_special(tokenizer: Tokenizer, *, pair: bool, is_causal: bool = False) -> int:
    """Return the number of special tokens in a sequence; a decoder has only one, between the texts of a pair."""
    if is_causal:
        return int(pair)
    if not pair:
        return 2
    return 4 if tokenizer.has_two_separators else 3


@dataclass(frozen=True, kw_only=True)
class _Fields:
    """The fields or columns to read."""

    columns: ClassificationConfig
    labelled: bool

    @property
    def by_option(self) -> dict[str, str]:
        """The names of the required fields, by the option that sets each."""
        columns, prefix = self.columns, "objective." if self.labelled else ""
        names = {"text": columns.text, "second_text": columns.second_text}
        names |= {"label": columns.label} if self.labelled else {}
        return {f"`{prefix}{option}`": name for option, name in names.items() if name is not None}


def _example(row: Mapping[str, object], place: str, fields: _Fields) -> Example:
    columns = fields.columns
    second = None if columns.second_text is None else _text(row, columns.second_text, place)
    label = _label(row, columns.label, place) if fields.labelled else ""
    return Example(text=_text(row, columns.text, place), second_text=second, label=label, place=place)


def _examples_of_lines(data: bytes, name: str, columns: ClassificationConfig) -> Iterator[Example]:
    if columns.second_text is not None:
        raise UserError(
            f"{name}: the model reads pairs of texts, but a line of text has only one; use JSONL, CSV or TSV (`format`)"
        )
    for number, _, content in read_lines(io.BytesIO(data), LARGEST_FILE):
        place = f"{name}, line {number}"
        text = line_text(content, place, LARGEST_FILE).removesuffix("\n").removesuffix("\r")
        if not text.strip():
            raise DataError(f"{place}: the line is blank, but every line gets a result; remove it")
        yield Example(text=text, second_text=None, label="", place=place)


def _text(row: Mapping[str, object], field: str, place: str) -> str:
    text = row[field]
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"{place}: {field!r} has no text; correct the line or remove it")
    utf8_of(text, place, repr(field))
    return text


def _label(row: Mapping[str, object], field: str, place: str) -> str:
    label = row[field]
    if isinstance(label, bool | int):
        return str(label).lower()
    if not isinstance(label, str) or not label.strip() or not label.isprintable():
        shown = f"is {label!r:.40}" if label else "has no label"
        raise DataError(f"{place}: {field!r} {shown}, expected a word or an integer; correct the line")
    return label.strip()


def _rows_of_objects(data: bytes, path: str, fields: _Fields) -> Iterator[tuple[dict[str, object], str]]:
    rows = read_objects(io.BytesIO(data), path, LARGEST_FILE, skip_blank=True, load=load_strictly)
    for number, (place, row) in enumerate(rows):
        _require_fields(row, place, fields, remedy="correct the line" if number else "")
        yield row, place


def _rows_of_table(
    data: bytes, path: str, kind: TextFormat, fields: _Fields
) -> Iterator[tuple[dict[str, object], str]]:
    """Yield each row by column name: from the header, or numbers if the options name numbers."""
    lines = csv.reader(io.StringIO(_decoded(data, path), newline=""), **TABLES[f".{kind}"])
    try:
        rows = (
            (row, f"{path}, line {lines.line_num}")
            for row in iter(partial(next_of_any_size, lines, LARGEST_FILE), None)
            if row
        )
        header, place = next(rows, ([], path))
        if all(map(str.isdecimal, fields.by_option.values())):
            rows_of_all, header = chain([(header, place)], rows), [str(number) for number in range(len(header))]
        else:
            rows_of_all = chain(rows)
        is_separated_otherwise = len(header) == 1 and any(mark in header[0] for mark in ",;\t|")
        remedy = "separate the columns by commas in a .csv, by tabs in a .tsv" if is_separated_otherwise else ""
        _require_fields(header, place, fields, remedy=remedy)
        for row, place in rows_of_all:
            if len(row) != len(header):
                raise DataError(
                    f"{place}: {len(row)} columns, but the table has {len(header)}; correct the line (quote texts "
                    "that contain a separator)"
                )
            yield dict(zip(header, row, strict=True)), place
    except csv.Error as error:
        raise DataError(f"{path}, line {lines.line_num}: not a table ({error}); correct the line") from error


def _require_fields(names: Sequence[str] | dict[str, object], place: str, fields: _Fields, *, remedy: str) -> None:
    """Raise DataError if a field is missing; without a ``remedy``, another one is to be named."""
    found = list(names)
    for option, field in fields.by_option.items():
        if found.count(field) != 1:
            shown = listed([repr(name) for name in found])
            what = "out of range" if field.isdecimal() else "missing" if field not in found else "duplicated"
            named = f"name the right one by {option}{', or rename it' if what == 'missing' else ''}"
            raise DataError(
                f"{place}: the column {field!r:.80} is {what} (columns: {shown or 'none'}); {remedy or named}"
            )


def _decoded(data: bytes, path: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}; convert the file to UTF-8") from error
