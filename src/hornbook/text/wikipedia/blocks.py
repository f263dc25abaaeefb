"""The bytes of a dump, whatever packs it, with several bzip2 streams unpacked at once.

    multistream .xml.bz2:  |BZh9 header|BZh9 100 pages|BZh9 100 pages|...     cut where a stream begins, some 1 MiB each
                                 thread 1       thread 2      thread 3   ->   blocks of XML, in their order

A stream is found by the ten bytes that begin one, so no index is needed, and any file of several streams gains. Each
thread stops at 8 MiB, and what it then has left is unpacked when its turn comes, so memory is bounded. One thread goes
by the same streams, so that a damaged file ends at the same byte with any number of threads. The one stream of an
ordinary .xml.bz2 takes one thread, some 30 MB a second.
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
"""A whole Wikipedia may be one bzip2 stream; the bounds on its size and on the ratio stay."""

_BLOCK: Final = 256 << 10
_STREAM: Final = re.compile(rb"BZh[1-9]1AY&SY")
_STREAM_MARK: Final = 10
_PIECE: Final = 1 << 20
_LONG_STREAM: Final = 16 << 20
_MOST_AHEAD: Final = 8 << 20
_MAX_THREADS: Final = 4


def read_blocks(source: str, threads: int, meter: InputMeter | None = None) -> Iterator[bytes]:
    """Read a file, or standard input for ``"-"``, in blocks of at most 256 KiB, unpacked.

    Up to four threads unpack bzip2: more gain nothing, since XML is read in one. Raises UserError if the file cannot be
    read, and DataError if it is damaged or unpacks out of all proportion, at the same place for any number of threads.
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
    """Cut bzip2 data where streams begin; a stream of more than 16 MiB is left in the file with all that follows."""
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
    """Make the first blocks now, the others when they are asked for; or say what is wrong behind the first ones."""
    ahead: list[bytes] = []
    try:
        for block in islice(blocks, _MOST_AHEAD // _BLOCK):
            ahead.append(block)
    except DataError as error:
        return ahead, error
    return ahead, blocks
