import struct

import numpy as np
import pytest
from tiny_formats import lists
from tiny_text import one_line

from hornbook.corpora.store import open_store
from hornbook.errors import DataError
from hornbook.interop.convert.token_documents import split_at_end_of_text
from hornbook.interop.convert.token_files import how_to_convert, read_llmc, read_nanogpt
from hornbook.interop.formats.tfrecord import write_records

TOKENS = [50_256, 5, 6, 50_256, 65_535, 7]


def llmc(tokens, magic=20240520, version=1, count=None, kind="H"):
    """A file of llm.c, by hand."""
    header = struct.pack("<3i", magic, version, len(tokens) if count is None else count).ljust(1024, b"\0")
    return header + struct.pack(f"<{len(tokens)}{kind}", *tokens)


def test_raw_tokens_are_one_document(tmp_path):
    (tmp_path / "train.bin").write_bytes(struct.pack("<6H", *TOKENS))
    content = read_nanogpt(tmp_path / "train.bin")
    assert lists(content) == [TOKENS] and content.dtype == np.uint16


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (llmc(TOKENS), TOKENS),
        (llmc([128_000, 7], 20240801, 7, kind="I"), [128_000, 7]),
    ],
)
def test_files_of_llmc(tmp_path, data, expected):
    (tmp_path / "x.bin").write_bytes(data)
    (document,) = read_llmc(tmp_path / "x.bin")
    assert (document.tokens.tolist(), document.offset) == (expected, 1024)


@pytest.mark.parametrize("piece", [1, 2, 5, 100])
def test_a_stream_is_split_in_pieces(tmp_path, monkeypatch, piece):
    monkeypatch.setattr("hornbook.interop.convert.token_documents._PIECE", piece)
    (tmp_path / "x.bin").write_bytes(struct.pack("<6H", *TOKENS))
    content = read_nanogpt(tmp_path / "x.bin")
    object.__setattr__(content, "end_of_text_id", 50_256)
    assert lists(split_at_end_of_text(content)) == [[50_256], [5, 6, 50_256], [65_535, 7]]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (llmc(TOKENS)[:-1], "1035 bytes, but the header expects 1036"),
        (llmc(TOKENS) + b"\0\0", "1038 bytes, but the header expects 1036"),
        (llmc(TOKENS, count=-1), "the header expects 1022"),
        (llmc(TOKENS, version=2), "expects|not a token file of llm.c"),
        (llmc(TOKENS, magic=20240522), "not a token file of llm.c, which begins with 20240520, version 1 or"),
        (llmc(TOKENS)[:1023], "not a token file of llm.c"),
        (b"", "not a token file of llm.c"),
        (llmc([2**31], 20240801, 7, kind="I"), "has 2147483648, which is not a token id"),
    ],
)
def test_headers_that_lie(tmp_path, data, message):
    (tmp_path / "x.bin").write_bytes(data)
    with pytest.raises(DataError, match=message) as caught:
        lists(read_llmc(tmp_path / "x.bin"))
    assert one_line(caught.value, "x.bin")


def test_raw_tokens_that_are_none(tmp_path):
    (tmp_path / "x.bin").write_bytes(b"123")
    with pytest.raises(DataError, match="3 bytes are not a whole number of uint16 tokens"):
        read_nanogpt(tmp_path / "x.bin")
    (tmp_path / "x.bin").write_bytes(llmc(TOKENS))
    with pytest.raises(DataError, match=r"begins with the header of llm\.c; read it with `source_format='llm\.c'`"):
        read_nanogpt(tmp_path / "x.bin")
    for read in (read_nanogpt, read_llmc):
        with pytest.raises(DataError):
            read(tmp_path / "missing.bin")


def test_what_a_file_may_be(tmp_path):
    for name, data in (("a.bin", llmc(TOKENS)), ("b.bin", bytes(8)), ("c.npy", b""), ("d.txt", b"text")):
        (tmp_path / name).write_bytes(data)
    messages = [how_to_convert(tmp_path / name) for name in ("a.bin", "b.bin", "c.npy", "d.txt", "e.bin")]
    assert "is a token file of llm.c" in messages[0] and "--from" not in messages[0]
    assert "b.bin has no b.idx beside it" in messages[1] and "--from nanogpt" in messages[1]
    assert "is an array" in messages[2] and messages[3:] == [None, None]


def test_records_and_pickles_are_no_text(tmp_path):
    (tmp_path / "folder").mkdir()
    write_records(tmp_path / "folder" / "data_0.tfrecord", [b"record"])
    (tmp_path / "records").write_bytes((tmp_path / "folder" / "data_0.tfrecord").read_bytes())
    (tmp_path / "x.pkl").write_bytes(b"")
    for name, what in (("folder", "has TFRecords"), ("records", "has TFRecords"), ("x.pkl", "is a pickle")):
        advice = how_to_convert(tmp_path / name)
        assert f"{tmp_path / name} {what}; if it" in advice.replace("they have", "it has")
        assert f"`hornbook corpus convert {tmp_path / name} FOLDER --to store --tokenizer TOKENIZER" in advice
        with pytest.raises(DataError, match=what):
            open_store(tmp_path / name)
