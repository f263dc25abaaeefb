import bz2
import gzip
import io
import json
import lzma
import sys

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_text import SHARED, one_line

from hornbook.errors import DataError, UserError
from hornbook.text.documents import Document, ReadOptions, Tally, read_documents

SKIP = ReadOptions(on_error="skip")


def write(path, data):
    path.write_bytes(data)
    return str(path)


def jsonl(*records):
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def read(*inputs, **options):
    return list(read_documents(inputs, ReadOptions(**options)))


class StandardInput:
    def __init__(self, data):
        self.buffer = io.BytesIO(data)


def test_a_plain_file_is_one_document_taken_as_it_is_but_for_its_line_ends(tmp_path):
    text = " Ünï\r\ncode\r\x1c\n\r\r\n"
    path = write(tmp_path / "a.txt", text.encode())
    assert read(path, keep_crlf=True) == [Document(text, path, 0, len(text.encode()))]
    plain = " Ünï\ncode\n\x1c\n\n\n"
    assert read(path) == [Document(plain, path, 0, len(plain.encode()))]


@pytest.mark.parametrize(("keep_crlf", "texts", "count"), [(False, ["a\nb\n", "c"], 2), (True, ["a\r\nb\r", "c"], 0)])
def test_line_ends_that_become_lf_are_counted_where_a_document_is_handed_out(tmp_path, keep_crlf, texts, count):
    path = write(
        tmp_path / "a.jsonl", jsonl({"text": "a\r\nb\r"}, {"text": "\ud800\r"}, {"text": "c"}).replace(b"\n", b"\r\n")
    )
    tally, options = Tally(), ReadOptions(keep_crlf=keep_crlf, on_error="skip")
    assert [document.text for document in read_documents([path], options, tally)] == texts
    assert (tally.line_ends, tally.faults) == (count, 1)
    assert tally.num_bytes == sum(len(text) for text in texts)


def test_a_folder_named_twice_is_read_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "a.txt", b"one")
    assert [document.source for document in read("in", "./in", str(tmp_path / "in"), "in/*")] == ["in/a.txt"]


def test_a_byte_order_mark_is_dropped(tmp_path):
    path = write(tmp_path / "a.txt", b"\xef\xbb\xbfa\xef\xbb\xbf")
    lines = write(tmp_path / "b.jsonl", b"\xef\xbb\xbf" + jsonl({"text": "one"}, {"text": "two"}))
    assert read(path) == [Document("a\ufeff", path, 3, 4)]
    assert [(document.text, document.offset) for document in read(lines)] == [("one", 3), ("two", 19)]


def test_of_jsonl_each_line_is_a_document(tmp_path):
    data = jsonl({"text": "one"}, {"id": 7, "text": "zwölf\n\0"}) + b"\r\n   \n" + b'{"text": "last"}'
    path = write(tmp_path / "a.jsonl", data)
    found = read(path)
    assert [(document.text, document.num_bytes) for document in found] == [("one", 3), ("zwölf\n\0", 8), ("last", 4)]
    lines = [data[document.offset :].split(b"\n")[0] for document in found]
    assert [json.loads(line)["text"] for line in lines] == [document.text for document in found]


@pytest.mark.parametrize(
    ("ending", "compress"),
    [
        ("gz", gzip.compress),
        ("bz2", bz2.compress),
        ("xz", lzma.compress),
        ("zst", zstandard.ZstdCompressor().compress),
    ],
)
def test_compressed_files(tmp_path, ending, compress):
    plain = write(tmp_path / f"a.txt.{ending}", compress(b"some text"))
    lines = write(tmp_path / f"b.json.{ending}", compress(jsonl({"text": "one"}, {"text": "two"})))
    found = [(document.text, document.offset) for document in read(plain, lines)]
    assert found == [("some text", 0), ("one", 0), ("two", 16)]


def test_the_format_may_be_said(tmp_path):
    path = write(tmp_path / "a.jsonl", jsonl({"body": "one"}, {"body": "two"}))
    other = write(tmp_path / "b.data", jsonl({"body": "one"}))
    assert [document.text for document in read(path, format="text")] == ['{"body": "one"}\n{"body": "two"}\n']
    assert [document.text for document in read(other, format="jsonl", field="body")] == ["one"]


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", StandardInput(b"some text"))
    assert read("-") == [Document("some text", "-", 0, 9)]
    monkeypatch.setattr(sys, "stdin", StandardInput(gzip.compress(jsonl({"text": "one"}))))
    assert read("-", format="jsonl") == [Document("one", "-", 0, 3)]
    monkeypatch.setattr(sys, "stdin", StandardInput(b"\xff"))
    with pytest.raises(DataError, match=r"^standard input: not UTF-8 at byte 0"):
        read("-")


LINE_FAULTS = [
    (b'{"text": "x"', "not valid JSON (", "`format='text'`"),
    (b"[1]", "expected an object", "an array"),
    (b"[", "not valid JSON (", "`jq -c '.[]'`"),
    (b'{"body": "x", "id": 1}', "no field 'text' (fields: 'body', 'id')", "`field`"),
    (b"{}", "fields: none", "`field`"),
    (b'{"text": 5}', "'text' holds a number", "string"),
    (b'{"text": "a\xff"}', "not UTF-8 at byte 11", "0xff"),
    (b'{"text": "a\\ud83d"}', "character 1", "surrogate"),
    (b"[" * 100_000, "not valid JSON (", "recursion"),
    (b'{"text": ' + b"9" * 5000 + b"}", "not valid JSON (", "digits"),
    (b'{"text": "' + b"x" * 200_000 + b'"}', "longer than", "split"),
]


@pytest.mark.parametrize(("line", "what", "remedy"), LINE_FAULTS)
def test_a_bad_line_of_jsonl(tmp_path, line, what, remedy):
    path = write(tmp_path / "a.jsonl", jsonl({"text": "one"}, {"text": "two"}) + line + b"\n" + jsonl({"text": "end"}))
    with pytest.raises(DataError) as caught:
        read(path, max_line_bytes=150_000)
    assert one_line(caught.value, f"{path}, line 3: ", what, remedy)
    tally = Tally()
    options = ReadOptions(on_error="skip", max_line_bytes=150_000)
    found = list(read_documents([path], options, tally))
    assert [document.text for document in found] == ["one", "two", "end"]
    assert (tmp_path / "a.jsonl").read_bytes()[found[2].offset :] == jsonl({"text": "end"})
    assert (tally.documents, tally.faults, tally.messages) == (3, 1, [str(caught.value)])


FILE_FAULTS = [
    ("a.txt", b"caf\xe9 au lait", "not UTF-8 at byte 3 (0xe9)"),
    ("a.txt", b"\xef\xbb\xbfcaf\xe9", "not UTF-8 at byte 6"),
    ("a.txt", "text".encode("utf-16"), "a zero byte at offset 3"),
    ("a.bin", b"\x7fELF\0\xff", "a zero byte at offset 4"),
    ("a.txt", b"x" * 2001, "more than 2.0 KiB, but a text file is one document"),
    ("a.txt.gz", gzip.compress(b"some text", mtime=0)[:-9], "the gzip data is truncated"),
    ("a.txt.gz", b"some text", "by the suffix"),
]


@pytest.mark.parametrize(("name", "data", "what"), FILE_FAULTS)
def test_a_bad_file(tmp_path, name, data, what):
    path = write(tmp_path / name, data)
    good = write(tmp_path / "good.txt", b"good")
    with pytest.raises(DataError) as caught:
        read(path, good, max_document_bytes=2000)
    assert one_line(caught.value, path, what)
    tally = Tally()
    options = ReadOptions(on_error="skip", max_document_bytes=2000)
    assert [document.text for document in read_documents([path, good], options, tally)] == ["good"]
    assert (tally.documents, tally.num_bytes, tally.faults, tally.messages) == (1, 4, 1, [str(caught.value)])


def test_ten_messages_are_kept_and_all_faults_counted(tmp_path):
    path = write(tmp_path / "a.jsonl", b"x\n" * 25)
    tally = Tally()
    assert list(read_documents([path], SKIP, tally)) == []
    assert (tally.faults, len(tally.messages)) == (25, 10)


def test_a_truncated_archive_keeps_what_came_before(tmp_path):
    data = jsonl(*({"text": f"{number} " * 100} for number in range(20_000)))
    path = write(tmp_path / "a.jsonl.gz", gzip.compress(data)[:-20])
    tally = Tally()
    found = list(read_documents([path], SKIP, tally))
    assert len(found) > 10_000 and tally.faults == 1
    assert found[9_999].text == "9999 " * 100


def test_empty_documents_are_counted(tmp_path):
    lines = write(tmp_path / "a.jsonl", jsonl({"text": ""}, {"text": " "}))
    empty, mark = write(tmp_path / "b.txt", b""), write(tmp_path / "c.txt", b"\xef\xbb\xbf")
    tally = Tally()
    assert [document.text for document in read_documents([lines, empty, mark], tally=tally)] == [" "]
    assert (tally.documents, tally.empty) == (1, 3)


def test_null_is_an_empty_document(tmp_path):
    path = write(tmp_path / "a.jsonl", jsonl({"text": None}, {"text": "x"}, {"id": 1}))
    tally = Tally()
    assert [document.text for document in read_documents([path], SKIP, tally)] == ["x"]
    assert (tally.documents, tally.empty, tally.faults) == (1, 1, 1)
    path = write(tmp_path / "b.jsonl", jsonl({"meta": None}, {"meta": {"text": None}}, {"meta": {"text": "x"}}))
    assert [document.text for document in read(path, field="meta.text")] == ["x"]


def test_a_file_that_is_not_there(tmp_path):
    (tmp_path / "dangling.txt").symlink_to(tmp_path / "nothing")
    with pytest.raises(UserError) as caught:
        read(str(tmp_path))
    assert one_line(caught.value, "dangling.txt", "No such file")


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=200), as_lines=st.booleans())
def test_any_bytes_give_documents_or_one_line(tmp_path_factory, data, as_lines):
    path = write(tmp_path_factory.getbasetemp() / "any.bin", data)
    options = {"format": "jsonl" if as_lines else "text"}
    try:
        found = read(path, keep_crlf=True, **options)
    except DataError as error:
        assert one_line(error, path)
    else:
        assert as_lines or b"".join(document.text.encode() for document in found) == data.removeprefix(b"\xef\xbb\xbf")


@pytest.mark.skipif(not SHARED.exists(), reason="../shared/data is not there")
def test_real_files():
    [book] = read(SHARED / "text/books/moby_dick.txt")
    data = (SHARED / "text/books/moby_dick.txt").read_bytes()
    assert book.text.encode() == data[book.offset :].replace(b"\r\n", b"\n") and "\r" not in book.text
    web = read(SHARED / "text/openwebtext-1000.jsonl")
    assert len(web) == 1000 and sum(len(document.text) for document in web) > 4_500_000
