r"""Prompts from a file: one a line, or JSONL whose lines have a ``prompt``.

    prompts.txt      Once upon a time             Prompt("Once upon a time", "prompts.txt, line 1")
    prompts.jsonl    {"prompt": "def f():\n"}     Prompt("def f():\n", "prompts.jsonl, line 1")

A prompt with line ends in it needs JSONL. Blank lines of a text file are passed over; in JSONL, where an empty prompt
can be said outright, they are an error.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from hornbook.errors import DataError
from hornbook.text.readers.jsonl import JSONL_SUFFIXES, Remedies, line_text, read_objects, text_in, utf8_of
from hornbook.text.reading import STANDARD_INPUT, Source, content_suffix, open_stream, read_lines

_MAX_LINE_BYTES: Final = 16 << 20
_REMEDIES: Final = Remedies(too_long="shorten the prompt", not_json="for plain lines use --prompt-format text")

Format = Literal["auto", "text", "jsonl"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to continue, and where it is from, for messages."""

    text: str
    place: str


def read_prompts(source: str, format: Format = "auto") -> list[Prompt]:  # noqa: A002 - the option's name
    """Read the prompts of a file, plain or compressed, or of standard input (``"-"``).

    ``format`` is ``"text"``, one a line; ``"jsonl"``; or ``"auto"``, by the file's suffix. Raises DataError for a
    malformed line, or if there is no prompt, and UserError if the file cannot be read.
    """
    is_jsonl = format == "jsonl" or (format == "auto" and content_suffix(source) in JSONL_SUFFIXES)
    file = Source(source, None if source == STANDARD_INPUT else Path(source))
    with open_stream(file) as stream:
        prompts = []
        if is_jsonl:
            for place, record in read_objects(stream, str(file), _MAX_LINE_BYTES, skip_blank=False, remedies=_REMEDIES):
                text = text_in(record, "prompt", place, 'expected {"prompt": "..."}')
                utf8_of(text, place, "the prompt")
                prompts.append(Prompt(text, place))
        else:
            for number, _, content in read_lines(stream, _MAX_LINE_BYTES):
                place = f"{file}, line {number}"
                line = line_text(content, place, _MAX_LINE_BYTES, _REMEDIES).removesuffix("\n").removesuffix("\r")
                if line.strip():
                    prompts.append(Prompt(line, place))
    if not prompts:
        raise DataError(f"{file} holds no prompt; expected one a line{' as JSON' if is_jsonl else ''}")
    return prompts
