"""A server of dumps on this machine that misbehaves as configured."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PREFIX = "/xxwiki/20260101/xxwiki-20260101-"
NAME = "xxwiki-20260101-pages-articles-multistream.xml.bz2"


class Mirror:
    """What the server has, what it is to do wrong next, and what it was asked for.

    Attributes:
        files: content by path.
        moods: taken one by one, by each request of a dump: a number is a status, ``"cut:N"`` ends the connection after
            N bytes, ``"stall:N"`` waits there for ``go_on``, or ten seconds, ``"whole"`` ignores the range, ``"other"``
            answers with another part; nothing wrong after the last.
        go_on: set by a test that has seen enough of a stall.
        asked: (path, range) of every request.
    """

    def __init__(self, dump: bytes, wiki: str) -> None:
        self.prefix = PREFIX.replace("xxwiki", wiki)
        self.name = NAME.replace("xxwiki", wiki)
        self.dump = f"/{wiki}/20260101/{self.name}"
        self.files = {self.dump: dump}
        self.moods: list[str] = []
        self.go_on = threading.Event()
        self.asked: list[tuple[str, str | None]] = []
        self.url = ""
        self.publish("sha1", dump)

    def publish(self, algorithm: str, dump: bytes) -> None:
        """Put the sum of a dump beside it, among others."""
        digest = hashlib.new(algorithm, dump).hexdigest()
        other = hashlib.new(algorithm, b"other").hexdigest()
        lines = f"{other}  xxwiki-20260101-pages-meta.xml.7z\n{digest}  {self.name}\n{other}  {self.name}-rss.xml\n"
        self.files[f"{self.prefix}{algorithm}sums.txt"] = lines.encode()

    @property
    def ranges(self) -> list[str | None]:
        """Which part of the dump each request asked for."""
        return [part for path, part in self.asked if path == self.dump]


def _handler(mirror: Mirror) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            part = self.headers.get("Range")
            mirror.asked.append((self.path, part))
            mood = mirror.moods.pop(0) if mirror.moods and self.path == mirror.dump else ""
            data = mirror.files.get(self.path)
            if data is None or mood.isdecimal():
                self.send_error(int(mood or 404))
                return
            start = int(part.removeprefix("bytes=").removesuffix("-")) if part and mood != "whole" else 0
            if start >= len(data) and start:
                self.send_error(416)
                return
            start += mood == "other"
            self.send_response(206 if part and mood != "whole" else 200)
            if part and mood != "whole":
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            kind, _, count = mood.partition(":")
            end = start + int(count) if kind in ("cut", "stall") else len(data)
            self.wfile.write(data[start:end])
            if kind == "stall":
                mirror.go_on.wait(10)
                self.wfile.write(data[end:])

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    return Handler


@contextmanager
def serve(dump: bytes, wiki: str = "xxwiki") -> Iterator[Mirror]:
    """Run a mirror that has one dump, for the length of the block."""
    mirror = Mirror(dump, wiki)
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler(mirror)) as server:
        server.daemon_threads = True
        mirror.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield mirror
        finally:
            server.shutdown()
            thread.join()
