"""Prompts of a file: what is read, and what is refused, by file and line."""

import bz2
import io
from pathlib import Path

import pytest
from tiny_text import one_line

from hornbook.errors import DataError, UserError
from hornbook.text import prompts
from hornbook.text.prompts import Prompt, read_prompts


def test_text_is_a_prompt_a_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"\xef\xbb\xbfOnce upon \r\n\n  \n  two\xc3\xa9\n{}")
    assert read_prompts(str(path)) == [
        Prompt("Once upon ", f"{path}, line 1"),
        Prompt("  twoé", f"{path}, line 4"),
        Prompt("{}", f"{path}, line 5"),
    ]


@pytest.mark.parametrize("name", ["p.jsonl", "p.ndjson", "p.json", "p.JSONL.bz2"])
def test_jsonl_goes_by_the_ending(tmp_path: Path, name: str) -> None:
    data = b'{"prompt": "def f():\\n"}\n{"id": 7, "prompt": ""}'
    path = tmp_path / name
    path.write_bytes(bz2.compress(data) if name.endswith("bz2") else data)
    assert [prompt.text for prompt in read_prompts(str(path))] == ["def f():\n", ""]
    assert [prompt.text for prompt in read_prompts(str(path), "text")] == data.decode().split("\n")


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake:
        buffer = io.BytesIO(b'{"prompt": "one"}\n')

    monkeypatch.setattr("sys.stdin", Fake)
    assert read_prompts("-", "jsonl") == [Prompt("one", "standard input, line 1")]
    with pytest.raises(DataError, match=r"^standard input has no prompt; expected one per line$"):
        read_prompts("-")


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"", ["has no prompt; expected one per line, as JSON"]),
        (b'{"prompt": "a"}\n\n', [", line 2: the line is blank; remove it"]),
        (b'{"prompt": "a"}\n{"prompt": \n', [", line 2: not valid JSON (", "`prompt_format='text'`"]),
        (b"[" * 100_000, [", line 1: not valid JSON ("]),
        (b'["a"]\n', [", line 1: expected an object, found an array", "jq -c"]),
        (b'{"text": "a", "id": 1}\n', [", line 1: no field 'prompt' (fields: 'text', 'id'); expected {"]),
        (b"{}\n", [", line 1: no field 'prompt' (fields: none); expected {"]),
        (b'{"prompt": 3}\n', [", line 1: the field 'prompt' holds a number; expected a string"]),
        (
            b'{"prompt": "\xff"}\n',
            [
                ", line 1: not UTF-8 at byte 12 of the line (0xff); convert it, "
                "from Latin-1 for example by `iconv -f latin1 -t utf-8`"
            ],
        ),
        (b'{"prompt": "a\\ud800"}\n', [", line 1: character 1 of the prompt is half a surrogate pair"]),
        (b" " * 200, [", line 1: longer than 100 B"]),
    ],
)
def test_malformed_lines_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, parts: list
) -> None:
    if content.startswith(b" "):
        monkeypatch.setattr(prompts, "_MAX_LINE_BYTES", 100)
    path = tmp_path / "p.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_prompts(str(path))
    assert one_line(caught.value, str(path), *parts)


def test_a_text_file_of_blank_lines_and_one_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_bytes(b"\n  \n")
    with pytest.raises(DataError, match=r"p.txt has no prompt; expected one per line$"):
        read_prompts(str(path))
    with pytest.raises(UserError):
        read_prompts(str(tmp_path / "absent.txt"))
