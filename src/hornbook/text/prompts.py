r"""Prompts from a file: one per line, or JSONL with a field ``prompt``.

    prompts.txt      Once upon a time             Prompt("Once upon a time", "prompts.txt, line 1")
    prompts.jsonl    {"prompt": "def f():\n"}     Prompt("def f():\n", "prompts.jsonl, line 1")

A prompt that contains line ends needs JSONL. Blank lines are skipped in a text file; in JSONL, which can express an
empty prompt, they are an error.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from hornbook.errors import DataError
from hornbook.text.file_names import content_suffix
from hornbook.text.readers.jsonl import JSONL_SUFFIXES, Remedies, line_text, read_objects, text_in, utf8_of
from hornbook.text.reading import STANDARD_INPUT, Source, open_stream, read_lines

_MAX_LINE_BYTES: Final = 16 << 20
_REMEDIES: Final = Remedies(too_long="shorten the prompt", not_json="for plain lines use `prompt_format='text'`")

Format = Literal["auto", "text", "jsonl"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to continue, and its file and line number for messages."""

    text: str
    place: str


def read_prompts(source: str, format: Format = "auto") -> list[Prompt]:  # noqa: A002 - the option's name
    """Read the prompts of a file, plain or compressed, or of standard input (``"-"``).

    Args:
        source: path of the file, or ``"-"``.
        format: ``"text"``, one prompt per line; ``"jsonl"``; or ``"auto"``, by the file's suffix.

    Raises:
        DataError: a line is malformed, or there is no prompt.
        UserError: the file is not accessible.
    """
    is_jsonl = format == "jsonl" or (format == "auto" and content_suffix(source) in JSONL_SUFFIXES)
    file = Source(source, None if source == STANDARD_INPUT else Path(source))
    with open_stream(file) as stream:
        prompts = []
        if is_jsonl:
            for where, record in read_objects(stream, str(file), _MAX_LINE_BYTES, skip_blank=False, remedies=_REMEDIES):
                text = text_in(record, "prompt", where, 'expected {"prompt": "..."}')
                utf8_of(text, where, "the prompt")
                prompts.append(Prompt(text, where))
        else:
            for number, _, content in read_lines(stream, _MAX_LINE_BYTES):
                where = f"{file}, line {number}"
                line = line_text(content, where, _MAX_LINE_BYTES, _REMEDIES).removesuffix("\n").removesuffix("\r")
                if line.strip():
                    prompts.append(Prompt(line, where))
    if not prompts:
        raise DataError(f"{file} has no prompt; expected one per line{', as JSON' if is_jsonl else ''}")
    return prompts
