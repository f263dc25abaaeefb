r"""Cutting a list of sources into slices, which several processes read independently.

    a.txt  b.txt  c.jsonl (200 MB)  d.gz (200 MB)
    ----------->  ---> ---> --->    ------------>      the slices: 32 MiB, or several small files, or a file

Lines of uncompressed files can be read from any line on; every other file is read from its beginning, so it is in one
slice. The slices are a function of the sources, not of the number of processes, so another number of processes resumes
a build. The documents of the slices, one after the other, are those of the sources.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from hornbook.storage.decompress import is_plain, open_source
from hornbook.text.documents import format_of
from hornbook.text.reading import ReadOptions, Slice, Span

SLICE_BYTES: Final = 32 << 20
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
    for number, (source, size) in enumerate(zip(sources, sizes, strict=True)):
        if size is not None and num_bytes + size <= SLICE_BYTES:
            num_bytes += size
            continue
        if first < number:
            slices.append(Slice(first, number))
        first, num_bytes = number, size or 0
        if size is None or size > SLICE_BYTES:
            spans: list[Span | None] = [None]
            if size is not None and format_of(source, options) in _BY_LINES and is_plain(Path(source)):
                spans = list(_spans(Path(source), size))
            slices += [Slice(number, number + 1, span) for span in spans]
            first, num_bytes = number + 1, 0
    if first < len(sources):
        slices.append(Slice(first, len(sources)))
    return slices


def _spans(path: Path, size: int) -> Iterator[Span]:
    """Cut a file at the first ends of lines after each 32 MiB."""
    start = 0
    with open_source(path) as file:
        while start < size:
            end = start + SLICE_BYTES
            file.seek(end)
            while (block := file.read(_BLOCK)) and b"\n" not in block:
                end += len(block)
            end = end + block.index(b"\n") + 1 if block else size
            yield Span(start, min(end, size))
            start = end
