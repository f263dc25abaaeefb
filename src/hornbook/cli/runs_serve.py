"""``hornbook runs serve``: serve a live page of runs until Ctrl-C.

hornbook runs serve
hornbook runs serve runs/mine runs/other --port 8800
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from hornbook.errors import UserError


def add_arguments(commands: "argparse._SubParsersAction[Any]") -> None:
    """Declare ``serve``."""
    served = commands.add_parser(
        "serve",
        help="show runs in a browser while they train",
        description="Serve a page that shows runs while they train. Press Ctrl-C to stop.",
    )
    served.add_argument(
        "folders", nargs="*", default=["runs"], metavar="FOLDER", help="runs, or folders with runs (default: runs)"
    )
    served.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s, this machine)")
    served.add_argument("--port", type=_port, default=0, metavar="N", help="port; 0: a free one (default: 0)")
    served.set_defaults(handler=serve_command)


def serve_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Print the URL and serve until Ctrl-C.

    Raises:
        UserError: a folder does not exist, or the address is not available.
    """
    from hornbook.config.suggest import did_you_mean_path
    from hornbook.track.board import Board
    from hornbook.track.serve import BoardServer

    folders = [Path(folder) for folder in arguments.folders]
    for folder in folders:
        if not folder.is_dir():
            hint = did_you_mean_path(folder) or "; `hornbook train` makes the folder runs; or name another"
            raise UserError(f"no folder {folder} here{hint}")
    with BoardServer(Board(folders), arguments.host, arguments.port) as server:
        if not server.is_loopback:
            print("hornbook: warning: other machines can read these runs, without a password", file=sys.stderr)
        print(f"{server.url}   Ctrl-C ends it", flush=True)
        try:
            server.serve_forever(poll_interval=0.1)
        except KeyboardInterrupt:
            print()
        return {"url": server.url}


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 1 << 16):
        raise argparse.ArgumentTypeError(f'"{text}": expected a port, 0 to 65535')
    return int(text)
