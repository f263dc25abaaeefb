"""Web archives: Common Crawl's WET and WARC files, and those of other crawlers."""

import gzip
import sys
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_text import one_line

from hornbook.errors import DataError, UserError
from hornbook.text.documents import Document, Position, ReadOptions, Tally, read_documents, read_sources
from hornbook.text.readers.web_archives import Page, PageFinder

WARC_INFO = b"software: a crawler\r\nformat: WARC File Format 1.0\r\n"
TEXT = "Привет, world.\nSecond line"
HTML = (
    "<html><head><title>Title</title><script>var x = 1</script></head><body><nav><a href='/'>Home</a></nav>"
    "<main><h1>Whales</h1><p>One café &amp; two.</p></main><footer>(c)</footer></body></html>"
)
EXTRACTED = "Whales\n\nOne café & two."


def record(kind: str, content: bytes, media: str = "text/plain", **headers: str) -> bytes:
    named = {
        "WARC-Type": kind,
        "WARC-Target-URI": "https://example.org/",
        "WARC-Identified-Content-Language": "rus,eng",
        "Content-Type": media,
        "Content-Length": str(len(content)),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return b"WARC/1.0\r\n" + lines.encode() + b"\r\n" + content + b"\r\n\r\n"


def response(body: bytes, *headers: str, status: str = "200 OK", **warc: str) -> bytes:
    head = "\r\n".join((f"HTTP/1.1 {status}", *headers))
    return record("response", head.encode() + b"\r\n\r\n" + body, "application/http; msgtype=response", **warc)


def write(path, *records: bytes, packed: bool = True):
    path.write_bytes(b"".join(gzip.compress(each) if packed else each for each in records))
    return path


def read(path, tally=None, **options):
    return [document.text for document in read_documents([path], ReadOptions(**options), tally)]


def fails(path, *parts, error=DataError, **options):
    with pytest.raises(error) as caught:
        read(path, **options)
    assert one_line(caught.value, *parts), str(caught.value)


@pytest.mark.parametrize("packed", [True, False])
def test_the_texts_of_a_wet_file_with_their_offsets(tmp_path, packed):
    first = record("warcinfo", WARC_INFO, "application/warc-fields")
    texts = [record("conversion", text.encode()) for text in (TEXT, "", "Other.")]
    name = "CC-MAIN-1.warc.wet.gz" if packed else "CC-MAIN-1.wet"
    path = write(tmp_path / name, first, *texts, packed=packed)
    tally = Tally()
    found = list(read_documents([path], ReadOptions(), tally))
    offsets = [len(first), len(first) + len(texts[0]) + len(texts[1])]
    assert found == [
        Document(text, str(path), offset, len(text.encode()), "rus,eng")
        for text, offset in zip((TEXT, "Other."), offsets, strict=True)
    ]
    assert tally.empty == 1 and tally.skipped == {}
    rest = read_sources([str(path)], ReadOptions(), Tally(), skip=Position(0, 2))
    assert [document.text for document in rest] == ["Other."]


@pytest.mark.parametrize("packed", [True, False])
def test_pages_are_found_by_the_offsets_of_their_records(tmp_path, packed):
    urls = [f"https://example.org/{number}" for number in range(5)]
    records = [record("conversion", TEXT.encode() * number, WARC_Target_URI=url) for number, url in enumerate(urls)]
    bare = b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: 1\r\n\r\nx\r\n\r\n"
    path = str(write(tmp_path / ("a.wet.gz" if packed else "a.wet"), *records, bare, packed=packed))
    offsets = [sum(map(len, records[:number])) for number in range(6)]
    finder = PageFinder()
    for number in (0, 1, 4, 2, 2, 3):
        assert finder.find(path, offsets[number]) == Page(urls[number], "rus,eng")
    assert finder.find(path, offsets[5]) == Page(None, None)
    for offset in (1, offsets[2] + 1, offsets[5] + len(bare), 1 << 62, -1):
        assert finder.find(path, offset) is None
        assert finder.find(path, offsets[1]) == Page(urls[1], "rus,eng")
    (tmp_path / "text").write_text("no archive")
    for other in (str(tmp_path / "text"), str(tmp_path / "gone"), str(tmp_path), "-", "hf:a/b@c/d.wet", "a\0b"):
        assert finder.find(other, 0) is None


def test_a_damaged_archive_has_no_pages(tmp_path):
    path = write(tmp_path / "a.wet.gz", *(record("conversion", b"text") for _ in range(3)))
    path.write_bytes(path.read_bytes()[:-40])
    size = len(record("conversion", b"text"))
    finder = PageFinder()
    assert finder.find(str(path), size) is not None and finder.find(str(path), 2 * size) is None
    finder.close()


def test_a_file_may_have_more_members_than_other_files(tmp_path, monkeypatch):
    from hornbook.storage.decompress import Limits

    monkeypatch.setattr(Limits.__init__, "__kwdefaults__", {**Limits.__init__.__kwdefaults__, "num_members": 3})
    path = write(tmp_path / "a.warc.gz", *(record("conversion", b"text") for _ in range(9)))
    assert len(read(path)) == 9
    fails(write(tmp_path / "a.txt.gz", *[b"line\n"] * 9), "more than 3 compressed members")


def test_pages_of_responses(tmp_path):
    pytest.importorskip("resiliparse", reason="resiliparse, the extra 'warc', is not installed")
    html, kind = HTML.encode(), "Content-Type: text/html; charset=utf-8"
    chunks = b"%x\r\n%s\r\n%x;a=b\r\n%s\r\n0\r\n\r\n" % (30, html[:30], len(html) - 30, html[30:])
    latin = HTML.replace("<head>", "<head><meta charset=iso-8859-1>").encode("latin-1")
    path = write(
        tmp_path / "a.warc.gz",
        record("request", b"GET / HTTP/1.1\r\n\r\n", "application/http; msgtype=request"),
        response(html, kind),
        response(chunks, kind, "Transfer-Encoding: chunked"),
        response(html, kind, "Transfer-Encoding: chunked"),
        response(gzip.compress(html), kind, "Content-Encoding: gzip"),
        response(zlib.compress(html), kind, "Content-Encoding: deflate"),
        response(html, kind, "Content-Encoding: gzip"),
        response(HTML.encode("latin-1"), "Content-Type: text/html; charset=ISO-8859-1"),
        response(latin, "Content-Type: text/html"),
        response(html, "Content-Type: application/octet-stream", WARC_Identified_Payload_Type="text/html"),
        record("resource", html, "text/html"),
        record("metadata", b"{}", "application/json"),
    )
    tally = Tally()
    assert read(path, tally) == [EXTRACTED] * 10
    assert tally.skipped == {}


def test_plain_text_needs_no_library_and_other_content_is_counted(tmp_path, monkeypatch):
    for name in ("resiliparse", "resiliparse.extract.html2text", "resiliparse.parse.encoding"):
        monkeypatch.setitem(sys.modules, name, None)
    plain = "Content-Type: text/plain"
    records = [
        response(TEXT.encode(), plain),
        response(b"gone", plain, status="404 Not Found"),
        response(b"\x89PNG", "Content-Type: image/png"),
        response(b"\x1b\x00", plain, "Content-Encoding: br"),
        record("response", b"no HTTP", "text/dns"),
    ]
    tally = Tally()
    assert read(write(tmp_path / "a.warc.gz", *records), tally) == [TEXT]
    assert tally.skipped == {"records without text": 4}
    path = write(tmp_path / "b.warc.gz", response(HTML.encode(), "Content-Type: text/html"))
    fails(path, "reading HTML of web archives needs resiliparse", "hornbook[warc]", error=UserError)


def test_deep_nesting_is_skipped(tmp_path):
    pytest.importorskip("resiliparse")
    deep, flat = b"<div>" * 100_000 + b"text", b"<p>one<br><b>two</b><ul><li>x</ul>" * 5_000
    path = write(tmp_path / "a.warc.gz", *(response(body, "Content-Type: text/html") for body in (deep, flat)))
    tally = Tally()
    assert len(read(path, tally)) == 1 and tally.skipped == {"records without text": 1}


def test_unreadable_records_are_one_line(tmp_path):
    whole = record("conversion", b"text")
    start = len(whole)
    bad = record("conversion", b"\xff")
    path = write(tmp_path / "a.wet", whole, bad, whole, packed=False)
    fails(path, f"a.wet, the record at byte {start}: not UTF-8")
    tally = Tally()
    assert read(path, tally, on_error="skip") == ["text", "text"] and tally.faults == 1
    long = write(tmp_path / "b.wet", record("conversion", b"x" * 101), whole, packed=False)
    fails(long, "the record at byte 0: longer than 100 B; split the document", max_document_bytes=100)
    assert read(long, max_document_bytes=100, on_error="skip") == ["text"]
    film = response(b"x" * 2000, "Content-Type: video/mp4")
    tally = Tally()
    assert read(write(tmp_path / "e.warc", film, whole), tally, max_document_bytes=1000) == ["text"]
    assert tally.skipped == {"records without text": 1}
    packed = response(gzip.compress(b"x" * 10**6), "Content-Type: image/svg+xml", "Content-Encoding: gzip")
    assert read(write(tmp_path / "f.warc", packed, whole), max_document_bytes=10**5) == ["text"]
    bomb = response(gzip.compress(b"x" * 10**6), "Content-Type: text/plain", "Content-Encoding: gzip")
    fails(write(tmp_path / "c.warc", bomb, packed=False), "too long when unpacked", max_document_bytes=10**5)
    torn = response(b"\x1f\x8bgarbage", "Content-Type: text/plain", "Content-Encoding: gzip")
    fails(write(tmp_path / "d.warc", torn, packed=False), "corrupt compressed response")


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"hello\n", "expected a WARC record at byte 0, found b'hello\\n'; the file is damaged, or not a WARC file"),
        (b"WARC/1.0\r\nWARC-Type: conversion\r\n\r\n", "has no Content-Length"),
        (b"WARC/1.0\r\nContent-Length: -4\r\n\r\n", "has no Content-Length"),
        (b"WARC/1.0\r\nContent-Length: 9\r\n", "the record at byte 0 is truncated; download the file again"),
        (record("conversion", b"text")[:-7], "the record at byte 0 is truncated"),
        (record("conversion", b"text") + b"junk", "expected a WARC record at byte"),
        (b"WARC/1.0\r\n" + b"a: b\r\n" * 2000, "are too long"),
        (b"WARC/1.0\r\nx: " + b"a" * 70_000, "are too long"),
    ],
)
def test_damage_is_one_line(tmp_path, data, part):
    path = tmp_path / "a.warc"
    path.write_bytes(data)
    fails(path, f"{path}: ", part)


def test_a_truncated_member_is_damage(tmp_path):
    path = write(tmp_path / "a.wet.gz", record("conversion", b"text"), record("conversion", b"more text"))
    path.write_bytes(path.read_bytes()[:-9])
    fails(path, "the gzip data is truncated")


def test_a_web_archive_is_no_text_file(tmp_path):
    path = write(tmp_path / "a.txt", record("conversion", b"text"), packed=False)
    fails(path, "a.txt: is a web archive; use `format='warc'`, or `format='text'` to read it as plain text")
    assert read(path, format="warc") == ["text"]
    assert read(path, format="text") == [path.read_bytes().decode().replace("\r\n", "\n")]


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 400), st.integers(0, 255))
def test_mutated_files_are_read_or_refused(tmp_path_factory, noise, place, byte):
    data = bytearray(record("conversion", TEXT.encode()) + response(TEXT.encode() + noise, "Content-Type: text/plain"))
    data[place % len(data)] = byte
    path = tmp_path_factory.mktemp("mutated") / "a.warc"
    path.write_bytes(data)
    try:
        assert len(read(path)) <= 2
    except (DataError, UserError) as error:
        assert one_line(error, str(path))
