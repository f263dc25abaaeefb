"""The log of a run: one strict JSON object a line, in the order in which things happened.

    {"kind": "train", "step": 10, "loss": 7.1, "learning_rate": 0.001, ...}
    {"kind": "train", "step": 20, "loss": null, "non_finite": {"loss": "nan"}, ...}
    {"kind": "validation", "step": 20, "loss": 6.9, ...}
    {"kind": "train", "step": 30, "lo        <- the process was killed here: a torn last line is no error

``step`` counts finished steps. ``samples.jsonl`` is kept by the same functions. A line reaches the operating system at
once, so that ``kill -9`` loses none, and the disk when ``sync`` is called, which the loop does at a checkpoint. The
price: a power cut may lose the rows since the last checkpoint, which are the rows that the resumed run writes again.
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hornbook.errors import DataError
from hornbook.storage.files import Appender, replace_file
from hornbook.storage.system import translated

Row = dict[str, Any]


class MetricsLog:
    """Appends rows to ``path``, after the last whole line that is there; the rest of a torn one is cut off."""

    def __init__(self, path: Path) -> None:
        self._appender = Appender(path)

    def append(self, row: Mapping[str, Any]) -> None:
        """Writes one row and hands it to the operating system; ``row`` holds a whole number ``step``."""
        self._appender.append(encode(row))

    def sync(self) -> None:
        """Waits until all rows are on the disk."""
        self._appender.sync()

    def close(self) -> None:
        """Closes the file; rows stay where they are."""
        self._appender.close()

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


def cut_back(path: Path, step: int) -> None:
    """Rewrites the log, atomically, without the rows of steps after ``step``; other lines keep their bytes.

    Raises:
        DataError: as ``read``.
        StorageError: the log cannot be read or written; the old one is then untouched.
    """
    before = _content(path)
    after = b"".join(line + b"\n" for line, row in _lines(path, before) if row["step"] <= step)
    if after != before:
        replace_file(path, after)


def _lines(path: Path, content: bytes) -> Iterator[tuple[bytes, Row]]:
    """Every whole line with its row. Blank lines are passed over, a last line that does not parse was torn."""
    lines = content.split(b"\n")
    while lines and not lines[-1].strip():
        lines.pop()
    for position, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield line, _parse(line)
        except (ValueError, RecursionError) as reason:
            if position == len(lines):
                return
            raise DataError(
                f"{path}:{position}: {reason}; expected one JSON object a line with a whole number `step`; "
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
    with translated("read", path), suppress(FileNotFoundError):
        return path.read_bytes()
    return b""
