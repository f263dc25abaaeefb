r"""Prompts from a file: one a line, or JSONL whose lines have a ``prompt``.

    prompts.txt      Once upon a time             Prompt("Once upon a time", "prompts.txt, line 1")
    prompts.jsonl    {"prompt": "def f():\n"}     Prompt("def f():\n", "prompts.jsonl, line 1")

A prompt with line ends in it needs JSONL. Blank lines of a text file are passed over; in JSONL, where an empty prompt
can be said outright, they are an error.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Literal

from hornbook.errors import DataError
from hornbook.storage import open_text_source
from hornbook.storage.system import format_bytes
from hornbook.text.documents import JSONL_SUFFIXES
from hornbook.text.sources import STANDARD_INPUT, content_suffix

_MAX_LINE_BYTES: Final = 16 << 20
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

Format = Literal["auto", "text", "jsonl"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to continue, and where it is from, for messages."""

    text: str
    place: str


def read_prompts(source: str, format: Format = "auto") -> list[Prompt]:  # noqa: A002 - the option's name
    """Read the prompts of a file, plain or compressed, or of standard input.

    Args:
        source: the file, ``"-"`` for standard input.
        format: ``"text"``, one a line; ``"jsonl"``; ``"auto"`` goes by the file's ending.

    Raises:
        DataError: there is no prompt, or a line is malformed; the message has its number.
        UserError: the file may not be read.
        StorageError: the disk failed.
    """
    is_jsonl = format == "jsonl" or (format == "auto" and content_suffix(source) in JSONL_SUFFIXES)
    name = "standard input" if source == STANDARD_INPUT else source
    with _open(source) as stream:
        prompts = [
            Prompt(_parse(line, place) if is_jsonl else line, place)
            for line, place in _lines(stream, name)
            if is_jsonl or line.strip()
        ]
    if not prompts:
        raise DataError(f"{name} holds no prompt; expected one a line{' as JSON' if is_jsonl else ''}")
    return prompts


def _open(source: str) -> BinaryIO:
    if source == STANDARD_INPUT:
        return open_text_source(sys.stdin.buffer, name="standard input")
    return open_text_source(Path(source))


def _lines(stream: BinaryIO, name: str) -> Iterator[tuple[str, str]]:
    number = 0
    while line := stream.readline(_MAX_LINE_BYTES + 1):
        number += 1
        place = f"{name}, line {number}"
        if len(line) > _MAX_LINE_BYTES:
            raise DataError(f"{place}: longer than {format_bytes(_MAX_LINE_BYTES)}; shorten the prompt")
        content = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
        try:
            yield content.removesuffix(b"\n").removesuffix(b"\r").decode(), place
        except UnicodeDecodeError as error:
            raise DataError(f"{place}: not UTF-8 at byte {error.start}; convert the file") from error


def _parse(line: str, place: str) -> str:
    if not line.strip():
        raise DataError(f'{place}: an empty line; remove it, or write {{"prompt": ""}} for an empty prompt')
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{place}: not valid JSON ({reason}); for plain lines use --prompt-format text") from error
    text = record.get("prompt") if isinstance(record, dict) else None
    if not isinstance(text, str):
        found = f"the fields {', '.join(map(repr, record))[:80] or 'none'}" if isinstance(record, dict) else "no object"
        raise DataError(f'{place}: expected an object with a string called "prompt", found {found}')
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise DataError(f"{place}: the prompt has half a surrogate pair, so it is no Unicode text; mend the line")
    return text
