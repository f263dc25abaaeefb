r"""Reader and writer of system B's pickled lists of articles, each a list of token ids, without unpickling.

    [[5, 300], [7]]     80 02  ]  (  ](K\x05M\x2c\x01e  ](K\x07e  e  .             protocol 2, without its memo marks
                        proto  list  mark and items, appended ...      stop

A pickle is a program for a stack machine. The machine here implements only lists, integers and appending; an import, a
call, a string, a tuple or a reference is an error before it has any effect. Python's pickle module is not used.
Articles are yielded when they are appended, so memory holds one batch of the writer, a thousand articles. A flat list
of integers is one document. The writer gives the same bytes as ``pickle.dump(lists, protocol=2)``.
"""

import mmap
import re
from array import array
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from hornbook.arrays import Int64s, Integers
from hornbook.errors import DataError
from hornbook.interop.convert.token_documents import TOKEN, Documents, TokenDocument, as_tokens
from hornbook.interop.formats.tfrecord import buffered
from hornbook.storage import replace_file
from hornbook.storage.system import open_regular, storage_errors

_BATCH: Final = 1000  # the batch size of CPython's pickler
_MOST_ON_STACK: Final = 1 << 16
_LONGEST_PROTOCOL: Final = 5

_INTEGER: Final = re.compile(rb"K.|M..|J....", re.DOTALL)
_INTEGERS: Final = re.compile(rb"(?:K.|M..|J....){1,65536}+", re.DOTALL)
_SKIPPED: Final = {b"q": 1, b"r": 4, b"\x94": 0, b"\x95": 8}
"""Ignored opcodes, which store to the memo or begin a frame, with the size of their argument in bytes."""
_LINE: Final = re.compile(rb"-?[0-9]{1,19}L?\n")
_REFUSED: Final = {b"g": "GET", b"h": "BINGET", b"j": "LONG_BINGET"}


class _List:
    """A list under construction, at ``offset`` in the file; it stores integers, but not the lists appended to it."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self._integers = array("q")

    def add(self, integers: Int64s) -> None:
        self._integers.frombytes(integers.tobytes())

    def article(self) -> "_Article":
        return _Article(np.array(self._integers, dtype=np.int64), self.offset)


class _Mark:
    """The mark below the items of a batch on the stack."""


_Entry = _List | _Mark | Int64s


class _Article(NamedTuple):
    tokens: Int64s
    offset: int


class _Refused(Exception):  # noqa: N818 - converted to a DataError that names the file
    """The pickle has other content than lists of integers, or is damaged."""


def read_pickle(path: Path) -> Documents:
    """Read the articles of a pickle as documents, without executing it. Raises DataError for any other content."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected a pickle of lists of token ids")

    def read() -> Iterator[TokenDocument]:
        with storage_errors("read", path), open_regular(path) as file:
            if not path.stat().st_size:
                raise DataError(f"{path}: the file is empty; expected a pickle of lists of token ids")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                try:
                    for number, article in enumerate(_Machine(data).run()):
                        tokens = as_tokens(article.tokens, f"{path}: list {number}")
                        yield TokenDocument(tokens.astype(TOKEN), 0, article.offset)
                except _Refused as error:
                    raise DataError(
                        f"{path}: {error}; expected a pickle of lists of token ids (nothing was executed)"
                    ) from None

    return Documents(files=(str(path),), read=read)


def write_pickle(path: Path, documents: Documents) -> None:
    """Write a list of lists of integers, byte for byte like ``pickle.dump(lists, file, protocol=2)``."""
    replace_file(path, buffered(_pickle(documents)))


class _Machine:
    """The stack machine; see the module's docstring."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._position = 0
        self._stack: list[_Entry] = []
        self._items: type | None = None

    def run(self) -> Iterator[_Article]:
        """Yield each article when it is appended to the outer list."""
        while (opcode := self._take(1)) != b".":
            if opcode in b"KMJ":
                self._push(self._integers())
            elif opcode in b"IL" or opcode == b"\x8a":
                self._push(self._long_integer(opcode))
            elif opcode == b"]":
                self._push(_List(self._position - 1))
            elif opcode == b"(":
                self._push(_Mark())
            elif opcode in b"ael":
                yield from self._append(opcode)
            else:
                self._skip(opcode)
        if len(self._stack) != 1 or not isinstance(self._stack[0], _List):
            raise _Refused("it does not end with one list")
        if self._position != len(self._data):
            raise _Refused(f"{len(self._data) - self._position} bytes follow its end")
        if self._items is np.ndarray:
            yield self._stack[0].article()

    def _take(self, size: int) -> bytes:
        taken = self._data[self._position : self._position + size]
        if len(taken) < size:
            raise _Refused(f"it is cut off at byte {self._position}")
        self._position += size
        return taken

    def _push(self, entry: _Entry) -> None:
        if len(self._stack) >= _MOST_ON_STACK:
            raise _Refused(f"at byte {self._position} it is nested too deeply")
        self._stack.append(entry)

    def _integers(self) -> Int64s:
        """Return a run of integers, whose first opcode was already read."""
        match = _INTEGERS.match(self._data, self._position - 1)
        if match is None:
            raise _Refused(f"it is cut off at byte {self._position}")
        self._position = match.end()
        run = match[0]
        lengths = np.fromiter(map(len, _INTEGER.findall(run)), dtype=np.int64)
        # pad with zeros, so that four bytes can be read for each integer
        values = np.frombuffer(run + bytes(3), dtype=np.uint8)
        starts = np.cumsum(lengths) - lengths
        numbers: Int64s = values[starts + 1].astype(np.int64)
        numbers += np.where(lengths >= 3, values[starts + 2].astype(np.int64) << 8, 0)
        is_long = np.flatnonzero(lengths == 5)
        numbers[is_long] += values[starts[is_long] + 3].astype(np.int64) << 16
        numbers[is_long] += values[starts[is_long] + 4].astype(np.int8).astype(np.int64) << 24
        return numbers

    def _long_integer(self, opcode: bytes) -> Int64s:
        """Return an integer written as text, or in up to eight bytes, as some picklers write even small ones."""
        if opcode == b"\x8a":
            size = self._take(1)[0]
            if size > 8:
                raise _Refused(f"at byte {self._position} is an integer of {size} bytes")
            return np.array([int.from_bytes(self._take(size), "little", signed=True)], dtype=np.int64)
        match = _LINE.match(self._data, self._position)
        if match is None or (opcode == b"I" and match[0] in (b"00\n", b"01\n")):
            raise _Refused(f"at byte {self._position} is no integer")
        self._position = match.end()
        number = int(match[0].rstrip(b"L\n"))
        if not -(2**63) <= number < 2**63:
            raise _Refused(f"at byte {self._position} is an integer of more than 64 bits")
        return np.array([number], dtype=np.int64)

    def _append(self, opcode: bytes) -> Iterator[_Article]:
        """Execute APPEND, APPENDS, or LIST, which makes a list of the items after the mark; yield finished articles."""
        items = [self._pop()]
        if opcode != b"a":
            while not isinstance(items[-1], _Mark):
                items.append(self._pop())
            items = items[-2::-1]
        if opcode == b"l":
            self._push(_List(self._position - 1))
        target = self._stack[-1] if self._stack else None
        is_run = opcode == b"a" and isinstance(items[0], np.ndarray) and len(items[0]) > 1
        if not isinstance(target, _List) or is_run:  # APPEND after a run would append its last integer to another one
            raise _Refused(f"at byte {self._position} an item is appended to something other than a list")
        is_outer = len(self._stack) == 1
        for item in items:
            if isinstance(item, _Mark) or (isinstance(item, _List) and not is_outer):
                raise _Refused(f"at byte {self._position} lists are nested more than twice")
            if is_outer:
                if self._items not in (None, type(item)):
                    raise _Refused(f"at byte {self._position} its items are both lists and integers")
                self._items = type(item)
            if isinstance(item, _List):
                yield item.article()
            else:
                target.add(item)

    def _pop(self) -> _Entry:
        if not self._stack:
            raise _Refused(f"at byte {self._position} an item is missing")
        return self._stack.pop()

    def _skip(self, opcode: bytes) -> None:
        """Skip the protocol, frames, and stores to the memo, which nothing may refer to; reject other opcodes."""
        if opcode == b"\x80":
            if (protocol := self._take(1)[0]) > _LONGEST_PROTOCOL:
                raise _Refused(f"its protocol is {protocol}; 0 to {_LONGEST_PROTOCOL} are known")
        elif opcode in _SKIPPED:
            self._take(_SKIPPED[opcode])
        elif opcode == b"p" and (match := _LINE.match(self._data, self._position)):
            self._position = match.end()
        else:
            name = f"opcode {_REFUSED.get(opcode, repr(opcode)[2:-1])}"
            raise _Refused(f"at byte {self._position - 1} it has more than lists of integers ({name})")


def _pickle(documents: Documents) -> Iterator[bytes]:
    """Yield the opcodes of a list of lists, including CPython's memo opcodes, which its unpickler does not need."""
    memo = count()
    yield b"\x80\x02]" + _put(next(memo))
    articles = iter(documents)
    is_first = True
    while batch := list(islice(articles, _BATCH)):
        is_alone = is_first and len(batch) == 1
        is_first = False
        yield b"" if is_alone else b"("
        for article in batch:
            tokens = article.tokens
            yield b"]" + _put(next(memo))
            if len(tokens) == 1:
                yield _pickle_integers(tokens) + b"a"
            else:
                parts = (tokens[start : start + _BATCH] for start in range(0, len(tokens), _BATCH))
                yield from (b"(" + _pickle_integers(part) + b"e" for part in parts)
        yield b"a" if is_alone else b"e"
    yield b"."


def _put(number: int) -> bytes:
    return b"q" + bytes((number,)) if number < 256 else b"r" + number.to_bytes(4, "little")


def _pickle_integers(tokens: Integers) -> bytes:
    """Return the integers in one, two or four bytes after the opcode K, M or J."""
    numbers = tokens.astype("<i4")
    rows = np.zeros((len(numbers), 5), dtype=np.uint8)
    rows[:, 1:] = numbers.view(np.uint8).reshape(-1, 4)
    is_short, is_tiny = numbers < 1 << 16, numbers < 1 << 8
    rows[:, 0] = np.where(is_tiny, ord("K"), np.where(is_short, ord("M"), ord("J")))
    is_used = np.ones(rows.shape, dtype=bool)
    is_used[:, 2] = ~is_tiny
    is_used[:, 3:] = ~is_short[:, None]
    return rows[is_used].tobytes()
