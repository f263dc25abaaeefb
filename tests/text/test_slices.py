import gzip
import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_text import one_line

from hornbook.errors import DataError
from hornbook.text import slices as module
from hornbook.text.documents import read_sources
from hornbook.text.reading import ReadOptions, Slice, Span, Tally
from hornbook.text.slices import cut_sources


def cut(paths, options=None):
    return cut_sources(list(map(str, paths)), [path.stat().st_size for path in paths], options or ReadOptions())


def read(paths, some, options=None):
    tally, sources = Tally(), list(map(str, paths))
    found = [list(read_sources(sources, options or ReadOptions(), tally, within=each)) for each in some]
    return [document for documents in found for document in documents], tally


def test_small_files_share_a_slice_and_large_ones_are_cut_at_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SLICE_BYTES", 100)
    paths = [tmp_path / name for name in ("a.txt", "b.txt", "c.txt", "d.jsonl", "e.jsonl.gz", "f.jsonl", "g.txt")]
    for path, size in zip(paths[:3], (60, 40, 30), strict=True):
        path.write_text("x" * size)
    lines = "".join(f'{{"text": "{number:030}"}}\n' for number in range(7))  # of 43 bytes
    paths[3].write_text(lines)
    paths[4].write_bytes(gzip.compress(("".join(f'{{"text": "{number}"}}\n' for number in range(999))).encode()))
    paths[5].write_text(lines[:43])
    paths[6].write_text("y" * 500)
    found = cut(paths)
    assert found == [
        Slice(0, 2),
        Slice(2, 3),
        *(Slice(3, 4, Span(start, end)) for start, end in ((0, 129), (129, 258), (258, 301))),
        Slice(4, 5),
        Slice(5, 6),
        Slice(6, 7),
    ]
    assert cut_sources(["hf:a/b@1/c.jsonl", str(paths[0])], [None, 60], ReadOptions()) == [Slice(0, 1), Slice(1, 2)]
    assert cut_sources([], [], ReadOptions()) == []


def test_the_last_slices_are_small_so_that_processes_end_together(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SLICE_BYTES", 100)
    monkeypatch.setattr(module, "_LEAST_BYTES", 20)
    paths = [tmp_path / f"{number}.jsonl" for number in range(40)]
    for number, path in enumerate(paths):
        path.write_text('{"text": "a"}\n' * (600 if number < 3 else 3))
    found = cut(paths)
    starts = [
        sum(path.stat().st_size for path in paths[:first]) + (span.start if span else 0) for first, _, span in found
    ]
    total = sum(path.stat().st_size for path in paths)
    sizes = [end - start for start, end in pairwise([*starts, total])]
    most = [min(100, max(20, (total - start) // 64)) for start in starts]
    assert all(size <= bytes_ + 14 for size, bytes_ in zip(sizes, most, strict=True))
    assert max(sizes) > 100 and max(sizes[-64:]) <= 34


@given(
    lines=st.lists(st.sampled_from(["", " ", "a", "é" * 9, "long " * 9, "\r"]), max_size=30),
    size=st.integers(1, 60),
    end=st.sampled_from(["", "\n"]),
    block=st.sampled_from([1, 7, 1 << 20]),
)
@settings(deadline=None, max_examples=100)
def test_the_documents_of_the_slices_are_those_of_the_file(tmp_path_factory, lines, size, end, block):
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    path.write_text("\n".join(lines) + end, newline="")
    options = ReadOptions(format="lines")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SLICE_BYTES", size)
        patch.setattr(module, "_BLOCK", block)
        found = cut([path], options)
    whole, tally = read([path], [Slice(0, 1)], options)
    assert read([path], found, options) == (whole, tally)
    assert len(found) >= min(2, len(path.read_bytes().split(b"\n")) - 1) or path.stat().st_size <= size + 46


def test_errors_have_the_line_in_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SLICE_BYTES", 50)
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": f"text {number}"}) for number in range(20)]
    lines[13] = "broken"
    path.write_bytes(b"\xef\xbb\xbf" + "\n".join(lines).encode())
    found = cut([path])
    assert len(found) > 4
    with pytest.raises(DataError) as caught:
        read([path], found)
    assert one_line(caught.value, "a.jsonl, line 14: not valid JSON")
    skip = ReadOptions(on_error="skip")
    whole = read([path], [Slice(0, 1)], skip)
    assert read([path], found, skip) == whole and whole[1].faults == 1


def test_a_compressed_file_is_not_cut_whatever_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SLICE_BYTES", 10)
    path = tmp_path / "a.jsonl"
    path.write_bytes(gzip.compress(b'{"text": "a"}\n' * 100))
    assert cut([path]) == [Slice(0, 1)]
