import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_text import SHARED, one_line

from hornbook.errors import DataError
from hornbook.text.documents import Document, ReadOptions, Tally, read_documents
from hornbook.text.readers import plain
from hornbook.text.readers.plain import (
    begins_with_object,
    read_between_blank_lines,
    read_each_line,
    read_whole,
    read_wikitext,
)
from hornbook.text.reading import Source

BERT = b"First sentence.\nSecond one.\r\n\r\n  \n\nThird.\n\nLast\n"
WIKI = b" \n = Du Fu = \n \n Du Fu was ... \n = = Life = = \n \n = = = Early = = = \n \n = Bob = \n \n Bob was ... \n"
TITLE = b"\n\n = T = \n"
MARK = b"\xef\xbb\xbf"
READERS = {
    "text": read_whole,
    "lines": read_each_line,
    "blank-lines": read_between_blank_lines,
    "wikitext": read_wikitext,
}


def read(data, shape, **options):
    return list(READERS[shape](io.BytesIO(data), Source("a.txt", None), ReadOptions(**options)))


def texts(data, shape, **options):
    return [document.text for document in read(data, shape, **options)]


def test_a_line_a_document():
    found = read(MARK + BERT, "lines")
    assert [document.text for document in found] == ["First sentence.", "Second one.", "Third.", "Last"]
    assert found[1] == Document("Second one.", "a.txt", 19, 11)


def test_documents_between_blank_lines_keep_the_line_ends_in_them():
    found = read(BERT, "blank-lines")
    assert [document.text for document in found] == ["First sentence.\nSecond one.", "Third.", "Last"]
    assert [BERT[document.offset :][:5] for document in found] == [b"First", b"Third", b"Last\n"]
    assert texts(BERT.replace(b"\n", b"\r\n"), "blank-lines")[0] == "First sentence.\r\nSecond one.\r"


def test_wikitext_by_article():
    found = read(WIKI, "wikitext")
    assert [document.text.split(" = ")[1] for document in found] == ["Du Fu", "Bob"]
    assert [document.offset for document in found] == [2, WIKI.index(b" = Bob")]
    assert "".join(document.text for document in found).encode() == WIKI[2:]
    crlf = WIKI.replace(b"\n", b"\r\n")
    assert "".join(texts(crlf, "wikitext")).encode() == crlf[3:] and len(texts(crlf, "wikitext")) == 2


def test_a_file_without_a_title_is_no_wikitext(tmp_path):
    (path := tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    with pytest.raises(DataError) as caught:
        list(read_documents([path], ReadOptions(format="wikitext")))
    assert one_line(caught.value, str(path), "no line is a title of WikiText, ` = Title = `; use another `format`")


def test_what_is_no_title_stays_in_its_article():
    formula = b" a = b \n = 1 henry and capacitance C = \n so \n \n"
    assert len(texts(WIKI + formula, "wikitext")) == 2
    assert texts(b"some words\n" + WIKI, "wikitext")[0] == "some words\n \n", "what is before the first is kept"
    assert texts(b"\n\n = Alone = ", "wikitext") == [" = Alone = "]
    assert texts(b"= Stripped =\n\ntext\n\n= Twice =\n", "wikitext") == ["= Stripped =\n\ntext\n\n", "= Twice =\n"]
    assert texts(b"", "wikitext") == texts(b"\n \n", "wikitext") == []


@pytest.mark.skipif(not SHARED.exists(), reason="../shared/data is not there")
@pytest.mark.parametrize(
    "name",
    [
        "103/wiki.test.tokens",
        "103/wiki.valid.tokens",
        "2/wiki.test.tokens",
        "2/wiki.valid.tokens",
        "2-raw/wiki.test.raw",
    ],
)
def test_real_wikitext_has_sixty_articles_a_split(name):
    path = SHARED / f"wikitext/wikitext-{name}"
    found = list(read_documents([path], ReadOptions(format="wikitext")))
    assert len(found) == 60, "as the data set's page says, https://huggingface.co/datasets/Salesforce/wikitext"
    assert "".join(document.text for document in found).encode() == path.read_bytes()[found[0].offset :]


@pytest.mark.skipif(not SHARED.exists(), reason="../shared/data is not there")
def test_berts_sample_text():
    found = list(read_documents([SHARED / "text/bert_sample_text.txt"], ReadOptions(format="blank-lines")))
    assert len(found) == 3 and all("\n" in document.text for document in found)


PIECES = st.lists(
    st.sampled_from(
        ["\n", "\r\n", " ", "a", "é", "= ", " =", " = T = ", " = = S = = ", "\0", "\x0b", "word. ", "\n\n"]
    ),
    max_size=40,
).map(lambda pieces: "".join(pieces).encode())
DATA = st.tuples(st.sampled_from([b"", MARK]), PIECES).map(b"".join)


@given(data=DATA, shape=st.sampled_from(["lines", "blank-lines", "wikitext"]))
def test_a_document_is_found_at_its_offset(data, shape):
    data, end = data + TITLE * (shape == "wikitext"), 0
    for outcome in read(data, shape):
        if isinstance(outcome, DataError):
            assert one_line(outcome, "a zero byte")
            continue
        encoded = outcome.text.encode()
        assert data[outcome.offset :].startswith(encoded) and len(encoded) == outcome.num_bytes
        assert outcome.offset >= end, "in their order, and apart"
        end = outcome.offset + outcome.num_bytes


@given(data=DATA)
def test_only_white_space_is_between_documents(data):
    data = data.replace(b"\0", b"")
    for shape in READERS:
        data += TITLE * (shape == "wikitext")
        found = read(data, shape)
        end = len(MARK) if data.startswith(MARK) else 0
        for document in found:
            assert not data[end : document.offset].strip()
            end = document.offset + document.num_bytes
        assert not data[end:].strip()
        if shape == "wikitext" and found:
            assert data[found[0].offset :] == "".join(document.text for document in found).encode()


@given(data=DATA, limits=st.tuples(st.integers(1, 30), st.integers(1, 30)))
def test_limits_cost_the_long_documents_alone(data, limits):
    options = {"max_line_bytes": limits[0], "max_document_bytes": limits[1]}
    for shape in ("lines", "blank-lines", "wikitext"):
        found = [outcome for outcome in read(data, shape, **options) if isinstance(outcome, Document)]
        assert all(document.num_bytes <= max(limits) for document in found)
        if shape != "wikitext":  # there, a line that is too long may be a title
            assert set(found) <= set(read(data, shape))


def test_long_lines_and_documents_are_one_error_each(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n\n" + b"x" * 99 + b"\nnext\n\ntwo\n\n" + b"y\n" * 20 + b"\nthree")
    tally = Tally()
    options = ReadOptions(format="blank-lines", on_error="skip", max_line_bytes=50, max_document_bytes=30)
    assert [document.text for document in read_documents([path], options, tally)] == ["one", "two", "three"]
    long_line, long_document = tally.messages
    assert (
        "line 3: longer than 50 B" in long_line and "line 8: a document longer than 30 B begins here" in long_document
    )
    with pytest.raises(DataError) as caught:
        list(read_documents([path], ReadOptions(format="lines", max_line_bytes=50)))
    assert one_line(caught.value, str(path), "line 3", "split the document")


def test_articles_of_wikipedia_are_no_text_unless_they_are_said_to_be(tmp_path):
    for name, start in (("wikipedia", "<mediawiki xmlns='...'>"), ("wikiextractor", '<doc id="1" url="u" title="t">')):
        (path := tmp_path / name).write_text(start)
        with pytest.raises(DataError) as caught:
            list(read_documents([path], ReadOptions()))
        advice = (f"use `format='{name}'`, or `format='text'`", f"skip it with `exclude={path.name!r}`")
        assert one_line(caught.value, str(path), *advice)
        assert [document.text for document in read_documents([path], ReadOptions(format="text"))] == [start]


@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_lines_of_json_are_no_text_unless_they_are_said_to_be(tmp_path, monkeypatch, start):
    data = f'{start}{{"text": "one"}}\n{{"text": "two"}}\n'
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data.encode())))
    with pytest.raises(DataError) as caught:
        list(read_documents(["-"], ReadOptions()))
    assert one_line(
        caught.value, "standard input: begins with a JSON object; use `format='jsonl'`, or `format='text'` to"
    )
    assert "exclude" not in str(caught.value)
    (path := tmp_path / "a.txt").write_text(data)
    with pytest.raises(DataError, match=r"or skip it with `exclude='a\.txt'`$"):
        list(read_documents([tmp_path], ReadOptions()))
    assert len(list(read_documents([path], ReadOptions(format="text")))) == 1
    for text in ("{\n", "{x} is a set\n", '{"a": 1} {', "{" * 100_000):
        path.write_text(text)
        assert [document.text for document in read_documents([path], ReadOptions())] == [text]


def test_not_utf8_costs_one_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ncaf\xe9\ntwo\n")
    tally = Tally()
    found = list(read_documents([path], ReadOptions(format="lines", on_error="skip"), tally))
    assert [document.text for document in found] == ["one", "two"]
    assert tally.messages == [tally.messages[0]] and "line 2: not UTF-8 at byte 7 (0xe9)" in tally.messages[0]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"a": 1}\n{', True),
        (b'\xef\xbb\xbf{"a": 1}', True),
        (b"{}", True),
        (b'{"a": 1\n}', False),
        (b"{ a: 1 }", False),
        (b'[{"a": 1}]', False),
        (b"", False),
        (b"{" * 99_999, False),
    ],
)
def test_a_first_line_that_is_an_object(data, expected):
    assert begins_with_object(data) is expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"type":"FeatureCollection","features":[', True),
        (b'\xef\xbb\xbf{ "say \\"hi\\"\\\\" : [', True),
        (b'{"a", "b"} is a set; ', False),
        (b"{{Infobox}} ", False),
        (b'{"', False),
    ],
)
def test_of_a_long_first_line_the_first_key_decides(data, expected, monkeypatch):
    monkeypatch.setattr(plain.json, "loads", lambda line: pytest.fail(f"{len(line)} bytes are parsed"))
    assert begins_with_object(data + b"1, " * 400_000) is expected
