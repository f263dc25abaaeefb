"""Decompression of dumps, with several bzip2 streams in parallel.

    multistream .xml.bz2:  |BZh9 header|BZh9 100 pages|BZh9 100 pages|...     cut where streams begin, some 1 MiB each
                                 thread 1       thread 2      thread 3   ->   blocks of XML, in order

Streams are found by their first ten bytes, so no index is needed, and any file of several streams benefits. A thread
decompresses at most 8 MiB ahead and the rest when its turn comes, so memory is bounded. A single thread processes the
same streams one by one, so reading a damaged file ends at the same byte with any number of threads. An ordinary
.xml.bz2 is one stream and uses one thread, some 30 MB per second.
"""

import io
import re
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final

from hornbook.errors import DataError
from hornbook.storage import Limits, open_text_source
from hornbook.storage.decompress import InputMeter, open_source
from hornbook.text.reading import STANDARD_INPUT

LIMITS: Final = Limits(member_bytes=1 << 40, num_members=1 << 24)
"""Larger than the default, since a whole Wikipedia may be one bzip2 stream."""

_BLOCK: Final = 256 << 10
_STREAM: Final = re.compile(rb"BZh[1-9]1AY&SY")
_STREAM_MARK: Final = 10
_PIECE: Final = 1 << 20
_LONG_STREAM: Final = 16 << 20
_MOST_AHEAD: Final = 8 << 20
_MAX_THREADS: Final = 4


def read_blocks(source: str, threads: int, meter: InputMeter | None = None) -> Iterator[bytes]:
    """Yield the decompressed content of a file, or of standard input for ``"-"``, in blocks of at most 256 KiB.

    Up to four threads decompress bzip2; more would not help, since one thread parses the XML. Raises UserError if the
    file is not accessible, and DataError if it is damaged or its expansion ratio is implausible, at the same byte for
    any number of threads.
    """
    if source == STANDARD_INPUT:
        with open_text_source(sys.stdin.buffer, LIMITS, name="standard input", meter=meter) as stream:
            yield from _blocks(stream)
        return
    with open_source(Path(source)) as file:
        if _STREAM.match(file.read(_STREAM_MARK)):
            file.seek(0)
            yield from _unpack_streams(file, source, min(threads, _MAX_THREADS), meter)
            return
    with open_text_source(source, LIMITS, meter=meter) as stream:
        yield from _blocks(stream)


def _blocks(stream: io.BufferedReader) -> Iterator[bytes]:
    while block := stream.read(_BLOCK):
        yield block


def _unpack_streams(file: BinaryIO, name: str, threads: int, meter: InputMeter | None) -> Iterator[bytes]:
    sections = _sections(file)
    if threads == 1:
        for start, section in sections:
            yield from _unpack(section, name, start, meter)
        return
    waiting: deque[Future[tuple[list[bytes], Iterator[bytes] | DataError]]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="hornbook-bzip2") as executor:
        try:
            while True:
                for start, section in islice(sections, threads - len(waiting)):
                    waiting.append(executor.submit(_look_ahead, _unpack(section, name, start, meter)))
                if not waiting:
                    return
                blocks, rest = waiting.popleft().result()
                yield from blocks
                if isinstance(rest, DataError):
                    raise rest
                yield from rest
        finally:
            executor.shutdown(wait=False, cancel_futures=True)


def _sections(file: BinaryIO) -> Iterator[tuple[int, BinaryIO]]:
    """Yield (offset, data) of sections of bzip2 streams; a stream over 16 MiB and the rest after it are the file."""
    start, held = 0, b""
    while piece := file.read(_PIECE):
        searched = max(1, len(held) - _STREAM_MARK)
        held += piece
        cut = max((match.start() for match in _STREAM.finditer(held, searched)), default=0)
        if cut:
            yield start, io.BytesIO(held[:cut])
            start, held = start + cut, held[cut:]
        elif len(held) > _LONG_STREAM:
            file.seek(start)
            yield start, file
            return
    if held:
        yield start, io.BytesIO(held)


def _unpack(section: BinaryIO, name: str, start: int, meter: InputMeter | None) -> Iterator[bytes]:
    with open_text_source(section, LIMITS, name=name, start=start, meter=meter) as stream:
        yield from _blocks(stream)


def _look_ahead(blocks: Iterator[bytes]) -> tuple[list[bytes], Iterator[bytes] | DataError]:
    """Return the first blocks, and an iterator over the others or the error that comes after the first ones."""
    ahead: list[bytes] = []
    try:
        for block in islice(blocks, _MOST_AHEAD // _BLOCK):
            ahead.append(block)
    except DataError as error:
        return ahead, error
    return ahead, blocks
