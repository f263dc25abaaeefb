"""A document of several lines while it is read: bounded, and an error in its place where it cannot be read."""

from collections.abc import Callable

from hornbook.errors import DataError
from hornbook.storage.system import format_bytes
from hornbook.text.reading import Line, Outcome, ReadOptions, Source, line_too_long, plain_document


class Passage:
    """Lines that are gathered, and taken as a document once the last of them is there."""

    def __init__(self, source: Source, options: ReadOptions) -> None:
        self._source, self._options = source, options
        self._first: Line | None = None
        self._data = bytearray()
        self._error: DataError | None = None

    def add(self, line: Line) -> None:
        """Gather a line; of a document that is too long, nothing is kept but where it began."""
        self._first = self._first or line
        if self._error is None:
            self._data += line.content or b""
            self._error = self._find_error(line, self._first)
        if self._error is not None:
            self._data.clear()

    def take(self, finish: Callable[[bytes], bytes] = bytes) -> list[Outcome]:
        """Hand out what was gathered, after ``finish``, and begin anew; nothing comes of blank lines alone."""
        first, data, error = self._first, bytes(self._data), self._error
        self._first, self._error = None, None
        self._data.clear()
        if error is not None:
            return [error]
        if first is None or not data.strip():
            return []
        try:
            return [plain_document(finish(data), self._source, self._place(first), first.offset)]
        except DataError as unreadable:
            return [unreadable]

    def _find_error(self, line: Line, first: Line) -> DataError | None:
        if line.content is None:
            return line_too_long(self._place(line), self._options.max_line_bytes)
        if len(self._data) > self._options.max_document_bytes:
            limit = format_bytes(self._options.max_document_bytes)
            return DataError(f"{self._place(first)}: a document of more than {limit} begins here; split it")
        return None

    def _place(self, line: Line) -> str:
        return f"{self._source}, line {line.number}"
