import gzip

import pytest
from tiny_text import one_line

from hornbook.errors import DataError, UserError
from hornbook.evaluate.task_files import read_passages, read_text


def test_text_is_taken_as_it_is(tmp_path):
    content = " = A = \r\n \n é <unk> @-@ \n"
    (tmp_path / "a.tokens").write_bytes(b"\xef\xbb\xbf" + content.encode())
    (tmp_path / "a.tokens.gz").write_bytes(gzip.compress(content.encode()))
    assert read_text(str(tmp_path / "a.tokens")) == read_text(str(tmp_path / "a.tokens.gz")) == content


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"", ("the file has no text",)),
        (b" \n\n", ("the file has no text",)),
        (b"ab\xff", ("not UTF-8 at byte 2 (0xff)",)),
    ],
)
def test_a_file_that_is_no_text(tmp_path, content, parts):
    path = tmp_path / "wiki.tokens"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_text(str(path))
    assert one_line(caught.value, str(path), *parts)


def test_a_missing_file():
    with pytest.raises(UserError, match=r"^cannot read no/such: .*$"):
        read_text("no/such")


def test_passages_come_in_order(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"text": "one two"}\n{"id": 7, "text": "drei\\nvier \\u00e9"}')
    assert read_passages(str(path)) == ["one two", "drei\nvier é"]
    path.write_text('{"text": "one two"}\n')
    assert read_passages(str(path)) == ["one two"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"", "line 2: the line is blank"),
        (b"  ", "line 2: the line is blank"),
        (b'{"text": "x', "line 2: not valid JSON"),
        (b"[" * 100_000, "line 2: not valid JSON"),
        (b'{"text": "x"} 1', "line 2: not valid JSON"),
        (b'{"txt": "x"}', "line 2: no field 'text'"),
        (b'["text"]', "line 2: expected an object, found an array"),
        (b'{"text": 5}', "line 2: the field 'text' holds a number; expected a string"),
        (b'{"text": null}', "line 2: the field 'text' holds null; expected a string"),
        (b'{"text": " \\n"}', "line 2: the field 'text' has no text"),
        (b'{"text": "a \\ud800"}', "line 2: character 2 of the text is half a surrogate pair"),
        (b'{"text": "\xff"}', "line 2: not UTF-8 at byte 10 of the line (0xff)"),
    ],
)
def test_a_line_that_is_no_passage_is_named(tmp_path, line, message):
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"text": "fine"}\n' + line + b'\n{"text": "fine"}\n')
    with pytest.raises(DataError) as caught:
        read_passages(str(path))
    assert one_line(caught.value, f"{path}, {message}")


@pytest.mark.parametrize(("content", "part"), [(b"", ": the file is empty"), (b"\n", ", line 1: the line is blank")])
def test_an_empty_file_of_passages(tmp_path, content, part):
    path = tmp_path / "p.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_passages(str(path))
    assert one_line(caught.value, f"{path}{part}")
