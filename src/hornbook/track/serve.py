"""A web server for the live board, with the standard library and two addresses.

    GET /            the page
    GET /data?...    changes, as JSON; see ``Board.answer``

Requests name runs in the board's list, never paths. Pages of other sites cannot read responses: none allows it (no
CORS), and requests through another site's name (DNS rebinding) are rejected by the Host header, which must be
``localhost``, an IP address, or the name that the server was started with.
"""

import ipaddress
import json
import socket
import socketserver
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from hornbook.errors import UserError
from hornbook.track.board import Board

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_LONGEST_QUERY = 1 << 14
_TIMEOUT_SECONDS = 10


class BoardServer(ThreadingHTTPServer):
    """A server of a board, until ``shutdown``.

    Args:
        board: the board to serve.
        host: host name or IP address to listen on.
        port: port number; 0 for any free one.

    Attributes:
        url: address of the page.

    Raises:
        UserError: the host is unknown, or the port is taken.
    """

    daemon_threads = True

    def __init__(self, board: Board, host: str, port: int) -> None:
        self.board, self.lock = board, threading.Lock()
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self.address_family = family
            super().__init__(address[:2], _Handler)  # type: ignore[arg-type]
        except (OSError, OverflowError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"cannot serve on {host} port {port}: {reason}; choose another `host` or `port`") from None
        self.names = {"localhost", host.lower(), socket.gethostname().lower()}
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.server_address[1]}/"

    def server_bind(self) -> None:
        """Bind without resolving the machine's name, which blocks without a network."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return ipaddress.ip_address(str(self.server_address[0]).partition("%")[0]).is_loopback

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore closed connections, which are not errors of the server."""

    def allows(self, host: str) -> bool:
        """Return whether a Host header names this server, rather than another site (DNS rebinding)."""
        name = ""
        try:
            name = urlsplit(f"//{host}").hostname or ""
            ipaddress.ip_address(name)
        except ValueError:
            return name in self.names
        return True


class _Handler(BaseHTTPRequestHandler):
    server: BoardServer
    timeout = _TIMEOUT_SECONDS
    server_version, sys_version = "hornbook", ""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if not self.server.allows(self.headers.get("Host", "")):
            self._reply(HTTPStatus.FORBIDDEN, "text/plain", b"unknown Host\n")
        elif path == "/":
            self._reply(HTTPStatus.OK, "text/html", self.server.board.page().encode("utf-8"))
        elif path == "/data" and len(query) <= _LONGEST_QUERY:
            with self.server.lock:
                answer = self.server.board.answer(parse_qs(query, keep_blank_values=True, errors="replace"))
            self._reply(HTTPStatus.OK, "application/json", json.dumps(answer, allow_nan=False).encode("utf-8"))
        else:
            self._reply(HTTPStatus.NOT_FOUND, "text/plain", b"no such page\n")

    def _reply(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Log nothing: the page sends a request every second."""
