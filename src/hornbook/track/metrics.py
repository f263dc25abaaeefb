"""The log of a run: one strict JSON object per line, in chronological order.

    {"kind": "train", "step": 10, "loss": 7.1, "learning_rate": 0.001, ...}
    {"kind": "train", "step": 20, "loss": null, "non_finite": {"loss": "nan"}, ...}
    {"kind": "validation", "step": 20, "loss": 6.9, "loss/wiki": 6.7, "loss/books": 7.2, ...}   of a mixture
    {"kind": "final", "step": 90, "loss": 2.9, ...}      of a run of `hornbook train auto`, on more text
    {"kind": "train", "step": 20, "idle/0": 0.31, "idle/1": 0.18, ...}     of a pipeline, by rank; see `IDLE`
    {"kind": "topology", "step": 20, "layer": "blocks.0.attention.out", ...}    an update of a block-sparse pattern
    {"kind": "train", "step": 30, "lo        <- the process was killed here: a truncated last line is not an error

``step`` counts finished steps. ``samples.jsonl`` uses the same functions. A line reaches the operating system at once,
so that ``kill -9`` loses none, and the disk when ``sync`` is called, which the loop does at checkpoints. The price: a
power loss may lose the rows since the last checkpoint, which the resumed run writes again.

A full or failing disk does not stop training: rows are kept in memory until they can be written.
"""

import io
import json
import logging
import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from hornbook.errors import DataError, StorageError
from hornbook.storage.files import Appender, replace_file
from hornbook.storage.system import open_regular, storage_errors
from hornbook.wording import counted

_logger = logging.getLogger("hornbook.track")

Row = dict[str, Any]
KINDS = ("train", "validation", "task", "topology", "final")
"""Of rows."""
STORE_LOSS = "loss/"
"""Prefix of the columns with the validation loss of one store, before the store's name."""
IDLE = "idle/"
"""Prefix of the columns with the share of a step's forward and backward passes for which a pipeline rank waited for
others, before the rank within the pipeline."""


def store_losses(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the columns of a validation row with the losses of stores, by store name."""
    return {key.removeprefix(STORE_LOSS): key for key in row if key.startswith(STORE_LOSS)}


class MetricsLog(AbstractContextManager["MetricsLog"]):
    """A log to which rows are appended after the last complete line; a truncated line is removed.

    A row that cannot be written is kept in memory, and so are later rows, until an ``append``, ``sync`` or ``close``
    writes them in order.

    Args:
        path: the log; created if missing.
        warn: called when rows are first kept in memory, when syncing fails, and when rows are lost.

    Attributes:
        also: called with each row, if set.

    Raises:
        StorageError: the file cannot be opened.
    """

    def __init__(self, path: Path, warn: Callable[[str], None] = _logger.warning) -> None:
        self._appender, self._warn = Appender(path), warn
        self.also: Callable[[Mapping[str, Any]], None] | None = None
        self._waiting: deque[str] = deque()

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one row to the operating system; ``row`` must have an integer ``step``."""
        self._waiting.append(encode(row))
        if (error := self._write_waiting()) and len(self._waiting) == 1:
            self._warn(f"{error}; rows are kept in memory until they can be written")
        if self.also is not None:
            self.also(row)

    def sync(self) -> None:
        """Wait until all rows are on disk; warn if the disk fails."""
        error = self._write_waiting()
        try:
            self._appender.sync()
        except StorageError as failure:
            error = failure
        if error:
            self._warn(f"a power loss would lose rows: {error}")

    def close(self) -> None:
        """Close the file; warn if rows cannot be written and are lost."""
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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def encode(row: Mapping[str, Any]) -> str:
    """Return a row as strict JSON without a newline; non-finite values become null and are listed.

    ``{"step": 3, "loss": nan}`` -> ``{"step": 3, "loss": null, "non_finite": {"loss": "nan"}}``
    """
    odd = {key: str(value) for key, value in row.items() if isinstance(value, float) and not math.isfinite(value)}
    if not odd:
        return json.dumps(row, allow_nan=False)
    cleaned = {key: None if key in odd else value for key, value in row.items()}
    return json.dumps({**cleaned, "non_finite": odd}, allow_nan=False)


def read(path: Path) -> list[Row]:
    """Return all complete rows of a log; none if there is no file, as before the first row.

    Raises:
        DataError: a line before the last is not a JSON object with an integer ``step``, which names file and line; or
            the path is a link, a pipe or a device.
        StorageError: the file cannot be read.
    """
    return [row for _, row in _lines(path, _content(path))]


class Tail:
    """A reader of a growing log, which returns each complete line once.

    Args:
        path: the log, which may not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode, self._offset, self._num_lines = 0, 0, 0

    def new_rows(self) -> tuple[list[Row], bool]:
        """Return the rows after those of the last call, and whether the log was replaced and these are all its rows.

        A resume that removes rows replaces the log. An incomplete last line is left for the next call.

        Raises:
            DataError: a line is malformed; the next call starts with the same lines.
            StorageError: the log cannot be read.
        """
        offset, num_lines, inode, content = self._offset, self._num_lines, self._inode, b""
        with (
            storage_errors("read", self.path),
            suppress(FileNotFoundError),
            open_regular(self.path, follow=False) as file,
        ):
            status = os.fstat(file.fileno())
            if status.st_ino != inode or status.st_size < offset:
                inode, offset, num_lines = status.st_ino, 0, 0
            file.seek(offset)
            content = _rest(self.path, file)
        whole = content[: content.rfind(b"\n") + 1]
        rows = [row for _, row in _lines(self.path, whole, num_lines + 1, is_torn=False)]
        self._inode, self._offset, self._num_lines = inode, offset + len(whole), num_lines + whole.count(b"\n")
        return rows, offset == 0


def cut_back(path: Path, step: int, measured: Mapping[str, int] | None = None) -> None:
    """Rewrite the log, atomically, without rows after ``step``; other lines are unchanged.

    Args:
        path: the log.
        step: the step from which the run resumes.
        measured: by kind of row, the last step that the resumed run counts as measured; it writes later ones again.

    Raises:
        DataError: see ``read``.
        StorageError: the log cannot be read or written; the old one is then unchanged.
    """
    last, before = measured or {}, _content(path)
    kept = (line for line, row in _lines(path, before) if row["step"] <= last.get(str(row.get("kind")), step))
    after = b"".join(line + b"\n" for line in kept)
    if after != before:
        replace_file(path, after)


def _lines(path: Path, content: bytes, first: int = 1, *, is_torn: bool = True) -> Iterator[tuple[bytes, Row]]:
    """Yield every complete, non-blank line with its row; ``first`` is the first line's number in the file.

    With ``is_torn``, a last line that does not parse was truncated and is not an error.
    """
    content = content.rstrip()
    lines = io.BytesIO(content)  # one at a time: a list of all would need many times the file's size if most are short
    for number, line in enumerate(lines, first):
        if not line.strip():
            continue
        try:
            yield line.removesuffix(b"\n"), _parse(line)
        except (ValueError, RecursionError) as reason:
            if is_torn and lines.tell() == len(content):
                return
            raise DataError(
                f"{path}:{number}: {reason}; expected one JSON object per line with an integer `step`; "
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
    with storage_errors("read", path), suppress(FileNotFoundError), open_regular(path, follow=False) as file:
        return _rest(path, file)
    return b""


def _rest(path: Path, file: BinaryIO) -> bytes:
    """Return what follows the position in an open log."""
    try:
        return file.read()
    except MemoryError as error:
        raise DataError(f"{path}: the log is larger than the memory that is free; end other programs") from error
