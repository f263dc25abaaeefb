import io
import time

from hypothesis import given
from hypothesis import strategies as st

from hornbook.text.documents import ReadOptions, read_documents
from hornbook.text.reading import read_lines

PIECES = st.sampled_from(
    [b"\n" * 63, b"\n" * 64, b"\n" * 200, b" \n\r\n\t\n" * 40, b"one\n", b" two\n", b"\x1c\n", b"  "]
)


def whole(lines):
    """Every single line with its number and offset."""
    for line in lines:
        offset = line.offset
        for number, content in enumerate(line.content.split(b"\n")[:-1] or [line.content], line.number):
            yield number, offset, content.removesuffix(b"\n")
            offset += len(content) + 1


@given(st.lists(PIECES, max_size=8), st.integers(1, 300))
def test_blank_lines_at_once_are_those_that_come_one_by_one(pieces, buffer):
    data = b"".join(pieces)
    at_once = list(read_lines(io.BufferedReader(io.BytesIO(data), buffer), 1000))
    one_by_one = list(read_lines(io.BytesIO(data), 1000))
    assert b"".join(line.content for line in at_once) == data
    assert list(whole(at_once)) == list(whole(one_by_one))
    assert all(line.content.count(b"\n") <= 1 or not line.content.strip() for line in at_once)


def test_millions_of_blank_lines_cost_next_to_nothing(tmp_path):
    (path := tmp_path / "a.txt").write_bytes(b"one\n" + b"\n" * 3_000_000 + b"two\n" + b" \r\n" * 1_000_000)
    for shape in ("lines", "blank-lines"):
        started = time.process_time()
        found = [(found.text, found.offset) for found in read_documents([path], ReadOptions(format=shape))]
        assert found == [("one", 0), ("two", 3_000_004)]
        assert time.process_time() - started < 1, "0.25 microseconds a line; one by one they take 1.2"
