"""A web server for the live board, with the standard library and two addresses.

    GET /            the page
    GET /data?...    changes, as JSON; see ``Board.answer``

Every request needs the token that the address of the page ends with, since other users of this machine can connect,
too. The first visit exchanges it for a cookie, so the address that the browser shows and remembers has none. The price:
the cookie is also sent to servers on other ports of the same host, which no cookie without TLS can prevent.

Requests name runs in the board's list, never paths. Pages of other sites cannot read responses: none allows it (no
CORS), and requests through another site's name (DNS rebinding) are rejected by the Host header, which must be
``localhost``, an IP address, or the name that the server was started with.
"""

import ipaddress
import json
import secrets
import socket
import socketserver
import sys
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
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
_WITHOUT_TOKEN = b"Open the address that `hornbook runs serve` printed: it ends with a token.\n"
_LONGEST_QUERY = 1 << 14
_TIMEOUT_SECONDS = 10


class BoardServer(ThreadingHTTPServer):
    """A server of a board, until ``shutdown``.

    Args:
        board: the board to serve.
        host: host name or IP address to listen on.
        port: port number; 0 for any free one.
        token: what a request must have; an empty one lets everyone in.

    Attributes:
        cookie: name of the cookie with the token.
        url: address of the page, with the token.

    Raises:
        UserError: the host is unknown, or the port is taken.
    """

    daemon_threads = True
    request_queue_size = 128  # with 5, as by default, clients that connect at the same time wait for a second or more

    def __init__(self, board: Board, host: str, port: int, token: str = "") -> None:
        self.board, self.token = board, token
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self.address_family = family
            super().__init__(address[:2], _Handler)  # type: ignore[arg-type]
        except (OSError, OverflowError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"cannot serve on {host} port {port}: {reason}; choose another `host` or `port`") from None
        self.names = {"localhost", host.lower(), socket.gethostname().lower()}
        shown = f"[{host}]" if ":" in host else host
        self.cookie = f"hornbook-{self.server_address[1]}"
        self.url = f"http://{shown}:{self.server_address[1]}/{f'?token={token}' if token else ''}"

    def server_bind(self) -> None:
        """Bind without resolving the machine's name, which blocks without a network."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return ipaddress.ip_address(str(self.server_address[0]).partition("%")[0]).is_loopback

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report what failed, except closed connections, which are not errors of the server."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def allows(self, host: str) -> bool:
        """Return whether a Host header names this server, rather than another site (DNS rebinding)."""
        name = ""
        try:
            name = urlsplit(f"//{host}").hostname or ""
            ipaddress.ip_address(name)
        except ValueError:
            return name in self.names
        return True

    def knows(self, token: str) -> bool:
        """Return whether a token is that of this server, in a time that does not depend on where they differ."""
        return not self.token or secrets.compare_digest(token.encode(errors="replace"), self.token.encode())


class _Handler(BaseHTTPRequestHandler):
    server: BoardServer
    timeout = _TIMEOUT_SECONDS
    server_version, sys_version = "hornbook", ""

    def do_GET(self) -> None:
        path, _, text = self.path.partition("?")
        query = parse_qs(text[:_LONGEST_QUERY], keep_blank_values=True, errors="replace")
        token = query.get("token", [""])[0]
        if not self.server.allows(self.headers.get("Host", "")):
            self._reply(HTTPStatus.FORBIDDEN, "text/plain", b"unknown Host\n")
        elif not self.server.knows(token or self._cookie()):
            self._reply(HTTPStatus.FORBIDDEN, "text/plain", _WITHOUT_TOKEN)
        elif path == "/" and token:  # only the server's own token may become a part of a header
            cookie = f"{self.server.cookie}={self.server.token}; HttpOnly; SameSite=Lax; Path=/"
            self._reply(HTTPStatus.SEE_OTHER, "text/plain", b"", {"Location": "/", "Set-Cookie": cookie})
        elif path == "/":
            self._reply(HTTPStatus.OK, "text/html", self.server.board.page().encode("utf-8"))
        elif path == "/data" and len(text) <= _LONGEST_QUERY:
            answer = self.server.board.answer(query)
            self._reply(HTTPStatus.OK, "application/json", json.dumps(answer, allow_nan=False).encode("utf-8"))
        else:
            self._reply(HTTPStatus.NOT_FOUND, "text/plain", b"no such page\n")

    def _cookie(self) -> str:
        """Return the token in the cookie of this server; empty without one.

        Other servers on this host may have set cookies that the standard library's parser rejects, all of them.
        """
        cookies = (cookie.strip().partition("=") for cookie in self.headers.get("Cookie", "").split(";"))
        return next((value for name, _, value in cookies if name == self.server.cookie), "")

    def _reply(
        self, status: HTTPStatus, kind: str, content: bytes, headers: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Log nothing: the page sends a request every second."""
