"""A Hugging Face hub on this machine's loopback that serves data sets out of folders, and may break off or refuse."""

import hashlib
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

CONVERTED = "refs/convert/parquet"


class Loopback(ThreadingHTTPServer):
    """A server on this machine, and what it was asked for; ``handler`` answers."""

    daemon_threads = True

    def __init__(self, handler: type["Answering"]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.asked: list[str] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answering(BaseHTTPRequestHandler, ABC):
    """Answers GET and HEAD by ``answer``, and says nothing on the terminal."""

    def do_GET(self) -> None:
        self.answer()

    def do_HEAD(self) -> None:
        self.answer()

    @abstractmethod
    def answer(self) -> None: ...

    def send(self, data: bytes, *, status: int = 200, cut: int | None = None, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[:cut])
        self.close_connection = cut is not None

    def log_message(self, *arguments: object) -> None:
        pass


Server = TypeVar("Server", bound=Loopback)


class Hub(Loopback):
    """Data sets by name and revision, each a folder; what was asked for; and how to misbehave.

    Attributes:
        repositories: folder by (name, revision).
        cards: what a data set's card says, by name.
        gated: names of data sets that are for some only.
        breaks: files that are cut off in the middle when first asked for.
        fails: whether every request fails.
    """

    def __init__(self) -> None:
        super().__init__(Handler)
        self.repositories: dict[tuple[str, str], Path] = {}
        self.cards: dict[str, dict[str, object]] = {}
        self.gated: set[str] = set()
        self.breaks: set[str] = set()
        self.fails = False


class Handler(Answering):
    server: Hub

    def answer(self) -> None:
        path = unquote(self.path.partition("?")[0])
        self.server.asked.append(f"{self.command} {path}")
        if self.server.fails:
            return self.send(b"{}", status=500)
        for (name, revision), folder in self.server.repositories.items():
            commit = commit_of(name, revision)
            asks = {f"/api/datasets/{name}/revision/{known}" for known in (revision, commit)}
            if path in asks or (revision == "main" and path == f"/api/datasets/{name}"):
                if name in self.server.gated:
                    return self.send(b"{}", status=403, **{"X-Error-Code": "GatedRepo"})
                return self.send(json.dumps(self.description(name, folder, commit)).encode())
            prefix = f"/datasets/{name}/resolve/{commit}/"
            if path.startswith(prefix) and (file := folder / path.removeprefix(prefix)).is_file():
                return self.send_file(file, commit)
        known = any(
            path.startswith((f"/api/datasets/{name}", f"/datasets/{name}")) for name, _ in self.server.repositories
        )
        return self.send(b"{}", status=404, **{"X-Error-Code": "RevisionNotFound" if known else "RepoNotFound"})

    def description(self, name: str, folder: Path, commit: str) -> dict[str, object]:
        files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        card = self.server.cards.get(name, {}) if commit == commit_of(name, "main") else {}
        return {"id": name, "sha": commit, "siblings": [{"rfilename": file} for file in files], "cardData": card}

    def send_file(self, file: Path, commit: str) -> None:
        data = file.read_bytes()
        headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        if self.command == "GET" and file.name in self.server.breaks and not start:
            self.server.breaks.remove(file.name)
            return self.send(data, cut=len(data) // 2, **headers)
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        return self.send(data[start:], status=206 if start else 200, **headers)


def commit_of(name: str, revision: str) -> str:
    """A commit's hash, made up."""
    return hashlib.sha1(f"{name} {revision}".encode()).hexdigest()


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """Let a server answer inside the block."""
    with server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        try:
            yield server
        finally:
            server.shutdown()


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """A hub without data sets."""
    with serving(Hub()) as hub:
        yield hub
