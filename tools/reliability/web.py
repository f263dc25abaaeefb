"""The live board under attack: ``hornbook runs serve`` in a process of its own, and clients that mean no good.

After each attack, an honest client gets the page and the data; no attacker has seen anything that it may not see; and
the server has no more threads, descriptors or memory than before, but for a margin.
"""

import contextlib
import http.client
import json
import os
import re
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from urllib.parse import quote

from fake_run import default_rows, make_run, train_row
from trials import Part, Trial, fork

from hornbook.cli.main import main
from hornbook.track.curves import run_id

_PATIENCE = 30.0
"""Seconds for which an honest client waits, on a busy machine; and the server for slow ones, with some room."""
_MOST_MEMORY = 256 << 20
"""Bytes by which the server may grow."""
_SECRET, _SECRET_LOSS = "a-secret-of-another-file", 1234.5
_SCRIPT = "<script>alert(1)</script>"
_HOSTILE = (
    _SCRIPT, f'"><img src=x onerror=alert(1)>{_SCRIPT}', f"</title></style>{_SCRIPT}", f"'{_SCRIPT}\u202e\x1b[31m\0",
    f"{_SCRIPT}--><!--", "a" * 100_000 + _SCRIPT,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running board.

    Attributes:
        process: its id.
        port: on the loopback address.
        token: what requests must have.
    """

    process: int
    port: int
    token: str

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        """Return the status and the content of an address."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE)
        try:
            connection.request("GET", path, headers=headers)
            reply = connection.getresponse()
            assert "Access-Control-Allow-Origin" not in reply.headers, "pages of other sites may read this"
            return reply.status, reply.read().decode()
        finally:
            connection.close()

    def cookie(self, token: str | None = None) -> str:
        """Return the cookie with the token."""
        return f"hornbook-{self.port}={self.token if token is None else token}"

    def data(self, query: str = "") -> str:
        """Return the data, as an honest client gets it."""
        status, text = self.get(f"/data?{query}", Cookie=self.cookie())
        assert status == 200, f"an honest client got {status}: {text[:200]}"
        json.loads(text)
        return text

    def connect(self, first: bytes) -> socket.socket:
        """Open a connection and send the first bytes."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=_PATIENCE)
        with contextlib.suppress(OSError):
            connection.sendall(first)
        return connection

    @property
    def held(self) -> tuple[int, int, int]:
        """Descriptors, threads and bytes of memory of the process."""
        folder = Path("/proc", str(self.process))
        status = dict(line.split(":\t", 1) for line in (folder / "status").read_text().splitlines() if ":\t" in line)
        return len(list((folder / "fd").iterdir())), int(status["Threads"]), int(status["VmRSS"].split()[0]) << 10


@contextmanager
def _serving(runs: Path, log: Path) -> Iterator[Server]:
    reader, writer = os.pipe()
    process = fork()
    if process == 0:
        os.dup2(writer, 1)
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        os._exit(main(["runs", "serve", str(runs)]))
    os.close(writer)
    try:
        with os.fdopen(reader) as said:
            found = re.match(r"http://127\.0\.0\.1:(\d+)/\?token=(\S+)", said.readline())
        assert found, "the server gave no address"
        yield Server(process=process, port=int(found[1]), token=found[2])
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


Attack = Callable[[Server, Path, Random], None]


def _slow_readers(server: Server, runs: Path, draws: Random) -> None:
    """Send a request a byte at a time, or all of it, and read nothing."""
    whole = f"GET /data HTTP/1.1\r\nHost: localhost\r\nCookie: {server.cookie()}\r\n\r\n".encode()
    held = [server.connect(whole[: draws.choice((0, 1, 20, len(whole) - 2, len(whole)))]) for _ in range(200)]
    _require_answers(server)
    for number in range(5):
        for connection in held:
            with contextlib.suppress(OSError):
                connection.sendall(b"X"[: number % 2])
        server.data()
    _close(held)


def _many_connections(server: Server, runs: Path, draws: Random) -> None:
    held = []
    for _ in range(3000):
        with contextlib.suppress(OSError):
            held.append(server.connect(b"GET / HT"))
    _require_answers(server)
    _close(held)


def _close(connections: list[socket.socket]) -> None:
    for connection in connections:
        connection.close()


def _random_requests(server: Server, runs: Path, draws: Random) -> None:
    whole = f"GET /data?run=x HTTP/1.1\r\nHost: localhost\r\nCookie: {server.cookie()}\r\n\r\n".encode()
    for _ in range(200):
        data = bytearray(whole)
        for _ in range(draws.choice((1, 3, 30))):
            at = draws.randrange(len(data))
            data[at : at + draws.choice((0, 1, 4))] = draws.choice((b"\0", b"\r\n", b"%", b"\xff", b":", b"a" * 70_000))
        with server.connect(bytes(data)) as connection, contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass


def _pipes(server: Server, runs: Path, draws: Random) -> None:
    for name in draws.sample(_FILES, 3):
        (runs / "one" / name).unlink()
        os.mkfifo(runs / "one" / name)
    _ask_for_all(server, runs)


def _links(server: Server, runs: Path, draws: Random) -> None:
    """Make runs with a link each, to a file of a run outside the folder, all of whose texts and losses are secret."""
    secret = make_run(runs.parent / "secret", rows=[train_row(step, loss=_SECRET_LOSS) for step in range(1, 10)])
    for name in _FILES:
        file, link = secret / name, make_run(runs / f"linked-{name}") / name
        file.write_text(re.sub("demo|corpora/mine|Test CPU|def", _SECRET, file.read_text()))
        link.unlink()
        link.symlink_to(file)
    (runs / "three").symlink_to(secret)
    for part, text in _ask_for_all(server, runs).items():
        assert _SECRET not in text and str(_SECRET_LOSS) not in text, f"a link showed another file in {part}"


def _huge_files(server: Server, runs: Path, draws: Random) -> None:
    for name in draws.sample(_FILES, 2):
        if draws.random() < 0.5:
            os.truncate(runs / "one" / name, 1 << 40)
        else:
            (runs / "one" / name).write_bytes(draws.choice((b"[", b"x", b'{"step": 1}\n', b"\n")) * (40 << 20))
    _ask_for_all(server, runs)


def _hostile_runs(server: Server, runs: Path, draws: Random) -> None:
    text = draws.choice(_HOSTILE)
    name = text.replace("/", "_").replace("\0", "")[:80]
    rows = [{**row, draws.choice(("kind", "note", "loss", text[:200])): text} for row in default_rows()[:9]]
    run = make_run(runs / name, recipe=f"name = {json.dumps(text)}\n[model]\nfamily = {json.dumps(text)}\n")
    for file in draws.sample(_FILES, 3):
        content = json.dumps({text[:200]: text, "tasks": [{"name": text, "rows": [{"metric": text, "value": text}]}]})
        lines = "\n".join(json.dumps(row) for row in rows) + "\n"
        (run / file).write_text(lines if file.endswith("l") else content)
    for part, html in _ask_for_all(server, runs).items():
        if part.startswith("curves"):  # data, whose texts the page's script shows as such
            continue
        at = next((html.index(tag) for tag in ("<script>alert", "<img src=x") if tag in html), None)
        assert at is None, f"a run's text became a part of {part}: {html[max(0, at - 80) : at + 40]}"


def _other_origins(server: Server, runs: Path, draws: Random) -> None:
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example", "localhost."):
        status, text = server.get("/data", Host=host, Cookie=server.cookie(), Origin="http://evil.example")
        assert status == 403 and "one" not in text, f"Host {host} got {status}"
    status, _ = server.get("/data", Cookie=server.cookie(), Origin="http://evil.example")
    assert status == 200, "an Origin alone is not refused; its page cannot read the answer"


def _other_users(server: Server, runs: Path, draws: Random) -> None:
    """Ask without the token of the board's owner."""
    for _ in range(50):
        wrong = draws.choice(
            ("", server.token[:-1], server.token + "x", server.token.swapcase(), "é", "%00", "a" * 9000)
        )
        path = draws.choice(("/", "/data", f"/?token={quote(wrong)}", f"/data?token={quote(wrong)}", "/../one", "/one"))
        status, text = server.get(path, Cookie=server.cookie(quote(wrong)))
        assert status == 403 and str(runs) not in text, f"{path} with a wrong token got {status}"


_FILES = ("metrics.jsonl", "samples.jsonl", "evaluation.json", "environment.json", "recipe.toml", "run.json")


def _ask_for_all(server: Server, runs: Path) -> dict[str, str]:
    """Return all that the board answers, by part: the page, all runs together and each alone, once it found them."""
    time.sleep(5.1)  # for which it holds its list
    asked = [f"run={quote(run_id(run), errors='replace')}" for run in runs.iterdir()]
    answered = {"page": server.get("/", Cookie=server.cookie())[1]}
    for query in dict.fromkeys(["&".join(asked)[:16000], *asked]):
        answer = json.loads(server.data(query))
        parts = {**answer["parts"], "curves": json.dumps(answer["curves"])}
        answered.update({f"{part} of {query:.100}": text for part, text in parts.items()})
    return answered


def _require_answers(server: Server) -> None:
    start = time.monotonic()
    server.data()
    assert server.get("/", Cookie=server.cookie())[0] == 200
    assert time.monotonic() - start < _PATIENCE, "an honest client waited too long"


ATTACKS: dict[str, Attack] = {
    "other users": _other_users,
    "other origins": _other_origins,
    "hostile runs": _hostile_runs,
    "links": _links,
    "pipes": _pipes,
    "random requests": _random_requests,
    "huge files": _huge_files,
    "slow readers": _slow_readers,
    "3,000 connections": _many_connections,
}


def _run(trial: Trial) -> str:
    name = list(ATTACKS)[trial.number % len(ATTACKS)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    runs = trial.folder / "runs"
    for run in ("one", "two"):
        make_run(runs / run)
    with _serving(runs, trial.log) as server:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
        server.data()
        descriptors, threads, memory = server.held
        ATTACKS[name](server, runs, trial.draws)
        _require_answers(server)
        until = time.monotonic() + _PATIENCE
        while server.held[:2] > (descriptors + 8, threads + 8) and time.monotonic() < until:
            time.sleep(0.2)
        after = server.held
        assert after[0] <= descriptors + 8 and after[1] <= threads + 8, f"descriptors and threads grew to {after[:2]}"
        assert after[2] <= memory + _MOST_MEMORY, f"memory grew by {after[2] - memory:,} bytes"
    assert "Traceback" not in trial.log.read_text(), "the server printed a traceback"
    return name


WEB = Part(
    name="web",
    promise="the live board answers an honest client under each attack, shows nothing to others, and holds no more "
    "descriptors, threads and memory afterwards",
    run=_run,
    trials=90,
    short=0,
)
