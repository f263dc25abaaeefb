import io
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hornbook.errors import DataError, StorageError
from hornbook.storage import faults
from hornbook.track.metrics import MetricsLog, Tail, cut_back, encode, read


def write_rows(path: Path, *steps: int) -> None:
    with MetricsLog(path) as log:
        for step in steps:
            log.append({"kind": "train", "step": step, "loss": 1.5})


def refuse(name: str) -> None:
    raise AssertionError(f"{name} is not strict JSON")


@pytest.mark.parametrize("reader", [read, lambda path: Tail(path).new_rows()], ids=["whole", "growing"])
def test_a_log_larger_than_the_free_memory_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: Callable[[Path], object]
) -> None:
    class Huge(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            raise MemoryError

    path = tmp_path / "metrics.jsonl"
    write_rows(path, 10)
    monkeypatch.setattr("hornbook.track.metrics.open_regular", lambda path, follow: Huge(str(path)))
    with pytest.raises(DataError, match=r"metrics.jsonl: the log is larger than the memory that is free"):
        reader(path)


def test_rows_come_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_rows(path, 10, 20)
    write_rows(path, 30)
    assert [row["step"] for row in read(path)] == [10, 20, 30]
    assert read(path)[0] == {"kind": "train", "step": 10, "loss": 1.5}


def test_a_row_can_be_read_before_the_log_is_closed(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "m.jsonl") as log:
        log.append({"step": 1})
        assert read(tmp_path / "m.jsonl") == [{"step": 1}]


def test_sync_reaches_the_disk_and_append_alone_does_not(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "m.jsonl") as log:
        with faults.count_operations() as operations:
            log.append({"step": 1})
        assert "fsync" not in [operation.name for operation in operations]
        with faults.count_operations() as operations:
            log.sync()
        assert [operation.name for operation in operations] == ["fsync"]


def test_a_number_that_is_not_finite_is_null_and_named() -> None:
    line = encode({"step": 3, "loss": math.nan, "gradient_norm": -math.inf, "learning_rate": 0.1})
    row = json.loads(line, parse_constant=refuse)
    assert row == {
        "step": 3,
        "loss": None,
        "gradient_norm": None,
        "learning_rate": 0.1,
        "non_finite": {"loss": "nan", "gradient_norm": "-inf"},
    }


@given(
    st.dictionaries(
        st.text(max_size=8), st.none() | st.booleans() | st.integers() | st.floats() | st.text(), max_size=5
    ).filter(lambda row: "non_finite" not in row)
)
def test_every_row_is_one_line_of_strict_json(row: dict[str, object]) -> None:
    line = encode(row)
    assert "\n" not in line
    back = json.loads(line, parse_constant=refuse)
    odd = back.pop("non_finite", {})
    finite = {key: value for key, value in row.items() if not (isinstance(value, float) and not math.isfinite(value))}
    assert {key: value for key, value in back.items() if key not in odd} == finite
    assert back.keys() == row.keys()


def test_no_log_yet_means_no_rows(tmp_path: Path) -> None:
    assert read(tmp_path / "metrics.jsonl") == []
    cut_back(tmp_path / "metrics.jsonl", 5)
    assert not (tmp_path / "metrics.jsonl").exists()


@pytest.mark.parametrize("cut", range(1, 24))
def test_a_truncated_last_line_is_skipped_wherever_it_ends(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1}\n' + '{"step": 2, "x": "é"}'.encode()[:cut])
    assert [row["step"] for row in read(path)] in ([1], [1, 2])
    assert (len(read(path)) == 2) == (cut >= 22)


def test_a_log_continues_after_a_truncated_last_line(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "lo')
    write_rows(path, 2)
    assert [row["step"] for row in read(path)] == [1, 2]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{not json}", "not JSON"),
        ("[1, 2]", "a row is list"),
        ('{"loss": 1.0}', "`step` is None"),
        ('{"step": "7"}', "`step` is '7'"),
        ('{"step": -1}', "`step` is -1"),
        ('{"step": true}', "`step` is True"),
        ('{"step": 1e400}', "`step` is inf"),
        ('{"step": ' + "9" * 5000 + "}", "integer string"),
        ("[" * 100_000, "recursion"),
        ('{"step": 3, "x": "\udcff"}', "utf-8"),
    ],
    ids=lambda value: value[:12],
)
def test_a_malformed_line_in_the_middle_names_file_and_line(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line.encode(errors="surrogateescape") + b'\n{"step": 2}\n')
    with pytest.raises(DataError) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:2: ")
    assert reason in message
    assert "\n" not in message
    with pytest.raises(DataError):
        cut_back(path, 1)


def test_nan_in_a_foreign_log_is_read_as_null(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text('{"step": 1, "loss": NaN}\n')
    assert read(tmp_path / "m.jsonl") == [{"step": 1, "loss": None}]


def test_cut_back_drops_later_steps_and_the_truncated_line_and_keeps_the_other_bytes(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    kept = b'{"step":1,   "loss": 1.50}\n{"kind":"validation","step":2}\n'
    path.write_bytes(kept + b'{"step": 3}\n{"step": 4, "lo')
    cut_back(path, 2)
    assert path.read_bytes() == kept


def test_cut_back_leaves_a_log_alone_that_needs_no_cut(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    write_rows(path, 1, 2)
    with faults.count_operations() as operations:
        cut_back(path, 2)
    assert operations == []


@pytest.mark.parametrize("operation", ["open", "write", "fsync", "rename"])
def test_cut_back_that_fails_leaves_the_old_log(tmp_path: Path, operation: str) -> None:
    path = tmp_path / "m.jsonl"
    write_rows(path, 1, 2, 3)
    before = path.read_bytes()
    with faults.inject(operation, 1, "enospc"), pytest.raises(StorageError):
        cut_back(path, 1)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.jsonl"]


@pytest.mark.parametrize("later", ["append", "sync", "close"])
def test_rows_wait_while_the_disk_is_full_and_are_reported_once(tmp_path: Path, later: str) -> None:
    path, messages = tmp_path / "m.jsonl", list[str]()
    with MetricsLog(path, messages.append) as log:
        log.append({"step": 1})
        with faults.inject("write", 1, "enospc", lasting=True):
            log.append({"step": 2})
            log.append({"step": 3})
            assert [row["step"] for row in read(path)] == [1]
        if later == "append":
            log.append({"step": 4})
        elif later == "sync":
            log.sync()
        if later != "close":
            assert len(read(path)) == (4 if later == "append" else 3)
    assert [row["step"] for row in read(path)] == [1, 2, 3, 4][: 4 if later == "append" else 3]
    assert len(messages) == 1
    assert "kept in memory" in messages[0]


def test_rows_that_never_fit_are_reported_as_lost(tmp_path: Path) -> None:
    messages = list[str]()
    with faults.inject("write", 1, "enospc", lasting=True), MetricsLog(tmp_path / "m.jsonl", messages.append) as log:
        log.append({"step": 1})
        log.append({"step": 2})
    assert messages[1].startswith("2 rows lost: cannot append to ")


def test_a_disk_that_cannot_be_waited_for_is_a_warning(tmp_path: Path) -> None:
    messages = list[str]()
    with MetricsLog(tmp_path / "m.jsonl", messages.append) as log, faults.inject("fsync", 1, "eio"):
        log.append({"step": 1})
        log.sync()
    assert messages[0].startswith("a power loss would lose rows: cannot write ")


def test_cut_back_by_kind_drops_what_will_be_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    kinds = ("train", "validation", "task")
    with MetricsLog(path) as log:
        for step in (1, 2, 3):
            for kind in kinds:
                log.append({"kind": kind, "step": step})
    cut_back(path, 2, {"validation": 1, "task": 2})
    assert [(row["kind"], row["step"]) for row in read(path)] == [
        *((kind, 1) for kind in kinds),
        ("train", 2),
        ("task", 2),
    ]


def test_a_log_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot read"):
        read(tmp_path)
