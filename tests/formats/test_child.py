"""What happens in a child process stays there: an end by a signal, a loop, a flood, an error."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_text import one_line

from hornbook.errors import DataError, HornbookError, UserError
from hornbook.formats import child
from hornbook.formats.child import records


def numbers(count):
    for number in range(count):
        yield b"n", number, b"x" * number


def flood(sizes):
    for size in sizes:
        yield b"n", 0, b"x" * size


def end_by(number):
    yield b"n", 0, b""
    os.kill(os.getpid(), number)


def leave(code):
    os._exit(code)
    yield


def loop():
    time.sleep(600)
    yield


def raise_user_error():
    raise UserError("what went wrong")
    yield


def take_memory():
    yield b"n", len(bytearray(5 << 30)), b""


def ask(function, most=1 << 20, **arguments):
    return records("test_child", function.__name__, "a.parquet", arguments, most)


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """For a new child, which imports this file."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    while child._idle:
        child._idle.pop().kill()


def test_records_come_in_order_and_a_child_reads_the_next_file_too():
    assert list(ask(numbers, count=3)) == [(b"n", 0, b""), (b"n", 1, b"x"), (b"n", 2, b"xx")]
    [first] = child._idle
    assert len(list(ask(numbers, count=2000))) == 2000 and child._idle == [first]
    assert next(ask(numbers, count=5)) == (b"n", 0, b""), "and is dropped"
    assert child._idle == [], "a child in the middle of a file is ended"
    assert len(list(ask(numbers, count=2))) == 2


@pytest.mark.parametrize(
    ("function", "arguments", "part"),
    [
        (end_by, {"number": int(signal.SIGSEGV)}, "a.parquet: pyarrow ended with signal 11; the file is d"),
        (end_by, {"number": int(signal.SIGABRT)}, "a.parquet: pyarrow ended with signal 6; the file is d"),
        (leave, {"code": 3}, "a.parquet: pyarrow ended with exit code 3"),
        (take_memory, {}, "a.parquet: pyarrow ended with exit code 1"),
        (
            flood,
            {"sizes": [5, 65_536, 65_537]},
            "a.parquet: pyarrow returned a row of 65,537 bytes; the file is damaged",
        ),
    ],
)
def test_a_child_that_ends_or_floods_is_one_line(function, arguments, part):
    with pytest.raises(DataError) as caught:
        list(ask(function, most=1 << 16, **arguments))
    assert one_line(caught.value, part)
    assert len(list(ask(numbers, count=2))) == 2, "the next file has another child"


def test_a_loop_is_ended(monkeypatch):
    monkeypatch.setattr(child, "_MOST_SECONDS", 0.5)
    with pytest.raises(DataError, match=r"a\.parquet: pyarrow returned no row in 0\.5 seconds; the file is damaged"):
        list(ask(loop))


def test_errors_keep_their_class():
    with pytest.raises(UserError, match=r"^what went wrong$"):
        list(ask(raise_user_error))
    assert len(child._idle) == 1, "the child lives"
    assert issubclass(UserError, HornbookError)


ORPHAN = """
import sys
sys.path.insert(0, {folder!r})
from hornbook.formats import child
rows = child.records("test_child", "loop", "a.parquet", {{}}, 1)
process = child._Child()
process.ask({{"module": "test_child", "function": "loop", "arguments": {{}}}})
print(process._process.pid, flush=True)
process.receive("a.parquet", 1)
"""


def test_a_child_ends_with_its_parent_whatever_it_is_at():
    words = [sys.executable, "-c", ORPHAN.format(folder=str(Path(__file__).parent))]
    parent = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    number = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 120
    while Path(f"/proc/{number}").exists() and _is_alive(number):
        assert time.monotonic() < deadline, "the child outlives its parent"
        time.sleep(0.05)


def _is_alive(number):
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
