r"""Cutting a list of sources into slices, which several processes read independently.

    a.txt  b.txt  c.jsonl (200 MB)  d.gz (200 MB)
    ----------->  ---> ---> --->    ------------>      the slices: some MiB, or several small files, or a file

Lines of uncompressed files can be read from any line on; every other file is read from its beginning, so it is in one
slice. A slice has 1/64 of the bytes from its beginning on, but 2 to 32 MiB: the last ones are small, so that processes
that take one after the other end at about the same time (guided self-scheduling, Polychronopoulos and Kuck 1987).
The slices are a function of the sources, not of the number of processes, so another number of processes resumes
a build. The documents of the slices, one after the other, are those of the sources.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from hornbook.storage.decompress import is_plain, open_source
from hornbook.text.documents import format_of
from hornbook.text.reading import ReadOptions, Slice, Span

SLICE_BYTES: Final = 32 << 20
_LEAST_BYTES: Final = 2 << 20
_SHARE: Final = 64
_BY_LINES: Final = ("lines", "jsonl")
_BLOCK: Final = 1 << 20


def cut_sources(sources: Sequence[str], sizes: Sequence[int | None], options: ReadOptions) -> list[Slice]:
    """Return the slices of the sources, in order.

    Args:
        sources: the sources.
        sizes: the size of each in bytes; None for one that is not a local file, which becomes a slice of its own.
        options: how they are read.

    Raises:
        UserError: a file is not accessible.
    """
    slices: list[Slice] = []
    first = num_bytes = 0
    remaining = sum(size or 0 for size in sizes)  # bytes of the sources from ``first`` on
    for number, (source, size) in enumerate(zip(sources, sizes, strict=True)):
        if size is not None and num_bytes + size <= _slice_bytes(remaining):
            num_bytes += size
            continue
        if first < number:
            slices.append(Slice(first, number))
            remaining -= num_bytes
        first, num_bytes = number, size or 0
        if size is None or size > _slice_bytes(remaining):
            spans: list[Span | None] = [None]
            if size is not None and format_of(source, options) in _BY_LINES and is_plain(Path(source)):
                spans = list(_spans(Path(source), size, remaining))
            slices += [Slice(number, number + 1, span) for span in spans]
            first, num_bytes = number + 1, 0
            remaining -= size or 0
    if first < len(sources):
        slices.append(Slice(first, len(sources)))
    return slices


def _slice_bytes(remaining: int) -> int:
    """Return the size of a slice, in bytes, with so many bytes of inputs from its beginning on."""
    return min(SLICE_BYTES, max(_LEAST_BYTES, remaining // _SHARE))


def _spans(path: Path, size: int, remaining: int) -> Iterator[Span]:
    """Cut a file at the first ends of lines after each slice's bytes, of ``remaining`` ones from its beginning on."""
    start = 0
    with open_source(path) as file:
        while start < size:
            end = start + _slice_bytes(remaining - start)
            file.seek(end)
            while (block := file.read(_BLOCK)) and b"\n" not in block:
                end += len(block)
            end = end + block.index(b"\n") + 1 if block else size
            yield Span(start, min(end, size))
            start = end
