r"""Thrift's compact protocol, as far as the heads of Parquet go: bytes to numbers, strings, structs and lists.

    b"\x15\x04\x15\x1a\x00"   field 1: number 2, field 2 (one further): number 13, end    ->   {1: 2, 2: 13}

A struct is a dict from the numbers of its fields; their names are in the format's own description. Nothing is taken at
its word: a length beyond the data, a depth or a number of values that no head has is an error. The price: half a
microsecond a byte. The protocol: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md
"""

import struct
from typing import Final, TypeAlias, Union

Value: TypeAlias = Union[int, float, bytes, "Struct", "list[Value]"]
Struct: TypeAlias = dict[int, Value]

_MOST_DEPTH: Final = 16
_MOST_VALUES: Final = 4_000_000
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12


class Reader:
    """Reads values one after the other; ``place`` is where the next one begins.

    Every method raises ValueError if the data is malformed, and EOFError if it ends too soon.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = _MOST_VALUES
        self.place = 0

    def read_struct(self, depth: int = 0) -> Struct:
        """Read a struct."""
        fields: Struct = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            kind = head & 15
            fields[number] = int(kind == _TRUE) if kind in (_TRUE, _FALSE) else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Value:
        self._left -= 1
        if self._left < 0 or depth > _MOST_DEPTH:
            raise ValueError("more values, or deeper ones, than any head has")
        if kind in (_I16, _I32, _I64):
            return self._integer()
        if kind == _BINARY:
            return self._bytes(self._varint())
        if kind == _STRUCT:
            return self.read_struct(depth + 1)
        if kind in (_LIST, _SET):
            return self._list(depth)
        if kind in (_BYTE, _TRUE, _FALSE):  # in a list, a boolean takes a byte
            return self._byte()
        if kind == _DOUBLE:
            value: float = struct.unpack("<d", self._bytes(8))[0]
            return value
        raise ValueError(f"a value of the unknown kind {kind}")

    def _list(self, depth: int) -> "list[Value]":
        head = self._byte()
        size = self._varint() if head >> 4 == 15 else head >> 4
        if size > len(self._data) - self.place:
            raise EOFError("a list goes on behind the end")
        return [self._value(head & 15, depth + 1) for _ in range(size)]

    def _integer(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)

    def _varint(self) -> int:
        number = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
        raise ValueError("a number of more than ten bytes")

    def _bytes(self, size: int) -> bytes:
        if size > len(self._data) - self.place:
            raise EOFError("a value goes on behind the end")
        self.place += size
        return self._data[self.place - size : self.place]

    def _byte(self) -> int:
        if self.place >= len(self._data):
            raise EOFError("the data ends")
        self.place += 1
        return self._data[self.place - 1]
