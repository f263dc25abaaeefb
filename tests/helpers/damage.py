"""Damaged files, the same ones every time, and what a reader may make of them: its content, or an error of one line."""

import random
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tiny_text import one_line

from hornbook.errors import DataError

ODD_NUMBERS = (0, 1, 2, 127, 128, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


def mutated(original: bytes, count: int, seed: int, words: Iterable[bytes] = ()) -> Iterator[bytes]:
    """``count`` damaged copies; ``words`` are bytes that mean something in the format."""
    rng = random.Random(seed)
    words = [*words, *(struct.pack("<Q", number) for number in ODD_NUMBERS)]
    for _ in range(count):
        data = bytearray(original)
        for _ in range(rng.choice((1, 1, 2, 3, 8))):
            _mutate(data, rng, words)
        yield bytes(data)


def _mutate(data: bytearray, rng: random.Random, words: list[bytes]) -> None:
    place, other = rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)
    match rng.randrange(8):
        case 0 | 1 if place < len(data):
            data[place] ^= 1 << rng.randrange(8)
        case 2:
            data[place : place + 1] = rng.randbytes(1)
        case 3:
            word = rng.choice(words)
            data[place : place + len(word)] = word
        case 4:
            data[place:place] = rng.choice(words)
        case 5:
            del data[place : place + rng.choice((1, 2, 8, 1000))]
        case 6:
            data[place:place] = data[other : other + rng.choice((1, 4, 16, 64))]
        case 7 if rng.random() < 0.3:
            del data[place:]


def survive(
    read: Callable[[Path], Iterable[object]], path: Path, contents: Iterable[bytes], error_type: type = DataError
) -> tuple[int, int]:
    """Read each content to its end; return how many were refused, in one line each, and how many were read."""
    refused = accepted = 0
    for content in contents:
        path.write_bytes(content)
        started = time.process_time()
        try:
            for _ in read(path):
                pass
            accepted += 1
        except error_type as error:
            assert one_line(error, str(path.parent)), error
            refused += 1
        assert time.process_time() - started < 5, "a damaged file must not hang its reader"
    return refused, accepted
