"""Reading with pyarrow in a child process, so that a crash on a damaged file becomes an error of one line.

    parent -> child     a line of JSON with the function to call and its arguments
    child -> parent     records (kind, number, bytes), each after a header of 17 bytes; the kind ``.`` ends a call

A child is started for the first file and reused for further ones. It may use 4 GiB of memory, and exits with its
parent, when its standard input closes. The pipe blocks a child that is faster than the parent.
"""

import atexit
import importlib
import json
import os
import select
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, TypeAlias

from hornbook import errors
from hornbook.errors import DataError, HornbookError

Record: TypeAlias = tuple[bytes, int, bytes]
"""The kind, one byte; a number, such as that of a row; and the content."""

_HEAD: Final = struct.Struct("<cqq")
_END: Final = b"."
_RAISED: Final = b"!"
_MOST_MEMORY: Final = 4 << 30
_MOST_SECONDS: Final = 300
_PIECE: Final = 1 << 20
_MOST_MESSAGE: Final = 1 << 16

_idle: list["_Child"] = []


def records(module: str, function: str, name: str, arguments: dict[str, Any], most: int) -> Iterator[Record]:
    """Call a function in a child process and yield its records.

    Args:
        module: the module of the function.
        function: the name of a function that takes ``arguments`` and yields records.
        name: the name of the file in errors.
        arguments: keyword arguments, of JSON's types.
        most: maximum number of bytes of a record.

    Raises:
        HornbookError: the error that the function raised, of the same class.
        DataError: the child crashed, or sent nothing for five minutes, so the file is damaged.
    """
    own = [child for child in _idle if child.owner == os.getpid()]
    child = own[0] if own else _Child()
    if own:
        _idle.remove(child)
    done = False
    try:
        child.ask({"folder": str(Path.cwd()), "module": module, "function": function, "arguments": arguments})
        while (record := child.receive(name, max(most, _MOST_MESSAGE)))[0] != _END:
            if record[0] == _RAISED:
                done = True
                error = json.loads(record[2])
                kind: Any = getattr(errors, str(error["class"]), None)
                is_known = isinstance(kind, type) and issubclass(kind, HornbookError)
                raise (kind if is_known else DataError)(str(error["message"]))
            yield record
        done = True
    finally:
        if done:
            _idle.append(child)
        else:
            child.kill()


class _Child:
    """The parent's handle of a child process."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hornbook.formats.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=os.environ | {"PYTHONPATH": paths, "ARROW_DEFAULT_MEMORY_POOL": "system"},
        )
        assert self._process.stdin and self._process.stdout, "both are pipes"
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._poll = select.poll()
        self._poll.register(self._stdout, select.POLLIN)

    def ask(self, question: dict[str, Any]) -> None:
        with suppress(BrokenPipeError):  # receive raises the error of a child that has ended
            self._stdin.write(json.dumps(question).encode() + b"\n")

    def receive(self, name: str, most: int) -> Record:
        kind, number, size = _HEAD.unpack(self._read(_HEAD.size, name))
        if not 0 <= size <= most:
            raise DataError(f"{name}: pyarrow returned a row of {size:,} bytes; the file is damaged")
        return kind, number, self._read(size, name)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._stdin.close()
        self._stdout.close()

    def _read(self, size: int, name: str) -> bytes:
        data = bytearray()
        while len(data) < size:
            if not self._poll.poll(_MOST_SECONDS * 1000):
                raise DataError(f"{name}: pyarrow returned no row in {_MOST_SECONDS} seconds; the file is damaged")
            piece = os.read(self._stdout.fileno(), min(_PIECE, size - len(data)))
            if not piece:
                code = self._process.wait()
                ending = f"signal {-code}" if code < 0 else f"exit code {code}"
                raise DataError(f"{name}: pyarrow ended with {ending}; the file is damaged")
            data += piece
        return bytes(data)


@atexit.register
def _kill_idle() -> None:
    for child in _idle:
        if child.owner == os.getpid():
            child.kill()


def _serve() -> None:
    """Run the child: execute calls until the parent closes standard input or exits."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY, _MOST_MEMORY))
    questions: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=_listen, args=(questions,), daemon=True).start()
    output = os.fdopen(os.dup(1), "wb", buffering=_PIECE)
    os.dup2(2, 1)  # so that a library that prints does not write into the records
    while True:
        question = json.loads(questions.get())
        os.chdir(question["folder"])  # relative paths refer to the parent's current folder
        function = getattr(importlib.import_module(question["module"]), question["function"])
        try:
            for kind, number, content in function(**question["arguments"]):
                output.write(_HEAD.pack(kind, number, len(content)) + content)
            output.write(_HEAD.pack(_END, 0, 0))
        except HornbookError as error:
            content = json.dumps({"class": type(error).__name__, "message": str(error)[:4000]}).encode()
            output.write(_HEAD.pack(_RAISED, 0, len(content)) + content)
        output.flush()


def _listen(questions: "SimpleQueue[bytes]") -> None:
    """Pass calls on to the main thread; exit at once when the parent is gone, even while pyarrow is busy."""
    with open(0, "rb", closefd=False) as pipe:  # not sys.stdin, whose lock would abort the exit
        while question := pipe.readline():
            questions.put(question)
    os._exit(0)


if __name__ == "__main__":
    try:
        _serve()
    finally:
        os._exit(1)  # a normal exit would wait for the listening thread
