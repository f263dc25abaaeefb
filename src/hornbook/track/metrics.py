"""The log of a run: one strict JSON object a line, in the order in which things happened.

    {"kind": "train", "step": 10, "loss": 7.1, "learning_rate": 0.001, ...}
    {"kind": "train", "step": 20, "loss": null, "non_finite": {"loss": "nan"}, ...}
    {"kind": "validation", "step": 20, "loss": 6.9, "loss/wiki": 6.7, "loss/books": 7.2, ...}   of a mixture
    {"kind": "train", "step": 20, "idle/0": 0.31, "idle/1": 0.18, ...}     of a pipeline, by rank; see `IDLE`
    {"kind": "topology", "step": 20, "layer": "blocks.0.attention.out", ...}    an update of a block-sparse pattern
    {"kind": "train", "step": 30, "lo        <- the process was killed here: a torn last line is no error

``step`` counts finished steps. ``samples.jsonl`` is kept by the same functions. A line reaches the operating system at
once, so that ``kill -9`` loses none, and the disk when ``sync`` is called, which the loop does at a checkpoint. The
price: a power cut may lose the rows since the last checkpoint, which are the rows that the resumed run writes again.

A full or failing disk stops no training: rows wait in memory until they can be written, at the price of that memory.
"""

import json
import logging
import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hornbook.errors import DataError, StorageError
from hornbook.storage.files import Appender, replace_file
from hornbook.storage.system import storage_errors
from hornbook.wording import counted

_logger = logging.getLogger("hornbook.track")

Row = dict[str, Any]
STORE_LOSS = "loss/"
"""What a column begins with that holds the validation loss of one store; the rest is the store's name."""
IDLE = "idle/"
"""What a column begins with that holds the share of a step's forward and backward passes for which a rank of a pipeline
waited for another; the rest is the rank within the pipeline."""


def store_losses(row: Mapping[str, Any]) -> dict[str, str]:
    """The columns of a validation row that hold the loss of one store, by the store's name."""
    return {key.removeprefix(STORE_LOSS): key for key in row if key.startswith(STORE_LOSS)}


class MetricsLog:
    """Appends rows to ``path``, after the last whole line that is there; the rest of a torn one is cut off.

    A row that cannot be written waits in memory, and so do the rows after it, until a later ``append``, ``sync`` or
    ``close`` writes them in their order.

    Args:
        path: the log; created where missing.
        warn: is told once when rows begin to wait, when the disk cannot be waited for, and when rows are lost.

    Attributes:
        also: is called with each row as well, if given.

    Raises:
        StorageError: the file cannot be opened.
    """

    def __init__(self, path: Path, warn: Callable[[str], None] = _logger.warning) -> None:
        self._appender, self._warn = Appender(path), warn
        self.also: Callable[[Mapping[str, Any]], None] | None = None
        self._waiting: deque[str] = deque()

    def append(self, row: Mapping[str, Any]) -> None:
        """Writes one row and hands it to the operating system; ``row`` holds a whole number ``step``."""
        self._waiting.append(encode(row))
        if (error := self._write_waiting()) and len(self._waiting) == 1:
            self._warn(f"{error}; rows are kept in memory until they can be written")
        if self.also is not None:
            self.also(row)

    def sync(self) -> None:
        """Waits until all rows are on the disk; a disk that fails is a warning."""
        error = self._write_waiting()
        try:
            self._appender.sync()
        except StorageError as failure:
            error = failure
        if error:
            self._warn(f"a power cut would lose rows: {error}")

    def close(self) -> None:
        """Closes the file; rows that still cannot be written are lost, with a warning."""
        if error := self._write_waiting():
            self._warn(f"{counted(len(self._waiting), 'row')} lost: {error}")
            self._waiting.clear()
        self._appender.close()

    def _write_waiting(self) -> StorageError | None:
        try:
            while self._waiting:
                self._appender.append(self._waiting[0])
                self._waiting.popleft()
        except StorageError as error:
            return error
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def encode(row: Mapping[str, Any]) -> str:
    """One row as a line of strict JSON, without its newline: a number that is not finite becomes null and is named.

    ``{"step": 3, "loss": nan}`` -> ``{"step": 3, "loss": null, "non_finite": {"loss": "nan"}}``
    """
    odd = {key: str(value) for key, value in row.items() if isinstance(value, float) and not math.isfinite(value)}
    if not odd:
        return json.dumps(row, allow_nan=False)
    cleaned = {key: None if key in odd else value for key, value in row.items()}
    return json.dumps({**cleaned, "non_finite": odd}, allow_nan=False)


def read(path: Path) -> list[Row]:
    """All whole rows of a log; none where there is no file, since a run that has not logged yet is no error.

    Raises:
        DataError: a line before the last is no JSON object with a whole number ``step``; names file and line.
        StorageError: the file cannot be read.
    """
    return [row for _, row in _lines(path, _content(path))]


class Tail:
    """Reads a log that grows, each whole line once.

    Args:
        path: the log, which may not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode, self._offset, self._num_lines = 0, 0, 0

    def new_rows(self) -> tuple[list[Row], bool]:
        """Return the rows after those of the last call, and whether the log begins anew and these are all it has.

        A log is replaced when a resume cuts rows off. A last line without its end is left for the next call.

        Raises:
            DataError: a line is malformed; the next call begins with the same lines.
            StorageError: the log cannot be read.
        """
        offset, num_lines, inode, content = self._offset, self._num_lines, self._inode, b""
        with storage_errors("read", self.path), suppress(FileNotFoundError), self.path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_ino != inode or status.st_size < offset:
                inode, offset, num_lines = status.st_ino, 0, 0
            file.seek(offset)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        rows = [row for _, row in _lines(self.path, whole, num_lines + 1, is_torn=False)]
        self._inode, self._offset, self._num_lines = inode, offset + len(whole), num_lines + whole.count(b"\n")
        return rows, offset == 0


def cut_back(path: Path, step: int, measured: Mapping[str, int] | None = None) -> None:
    """Rewrites the log, atomically, without the rows of steps after ``step``; other lines keep their bytes.

    Args:
        path: the log.
        step: the step from which the run goes on.
        measured: by kind of row, the last step of which the resumed run has it already; it writes later ones again.

    Raises:
        DataError: as ``read``.
        StorageError: the log cannot be read or written; the old one is then untouched.
    """
    last, before = measured or {}, _content(path)
    kept = (line for line, row in _lines(path, before) if row["step"] <= last.get(str(row.get("kind")), step))
    after = b"".join(line + b"\n" for line in kept)
    if after != before:
        replace_file(path, after)


def _lines(path: Path, content: bytes, first: int = 1, *, is_torn: bool = True) -> Iterator[tuple[bytes, Row]]:
    """Every whole line with its row, blank ones passed over; ``first`` is the number of the first in its file.

    With ``is_torn``, a last line that does not parse was torn and is no error.
    """
    lines = content.split(b"\n")
    while lines and not lines[-1].strip():
        lines.pop()
    for position, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            yield line, _parse(line)
        except (ValueError, RecursionError) as reason:
            if is_torn and position == len(lines) - 1:
                return
            raise DataError(
                f"{path}:{first + position}: {reason}; expected one JSON object a line with a whole number `step`; "
                "remove that line or restore the file"
            ) from reason


def _parse(line: bytes) -> Row:
    try:
        row = json.loads(line.decode("utf-8"), parse_constant=lambda name: None)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at column {error.colno})") from error
    if not isinstance(row, dict):
        raise ValueError(f"a row is {type(row).__name__}")
    step = row.get("step")
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 2**63:
        raise ValueError(f"`step` is {step!r:.40}")
    return row


def _content(path: Path) -> bytes:
    with storage_errors("read", path), suppress(FileNotFoundError):
        return path.read_bytes()
    return b""
