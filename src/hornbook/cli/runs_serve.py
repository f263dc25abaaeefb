"""``hornbook runs serve``: serve a live page of runs until Ctrl-C.

hornbook runs serve
hornbook runs serve runs/mine runs/other --port 8800
"""

import argparse
import secrets
import sys
from pathlib import Path
from typing import Any

from hornbook.cli.arguments import Number
from hornbook.config.options import Bounds, Spec
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
    served.add_argument(
        "--port",
        type=Number(Spec(type=int, bounds=Bounds(minimum=0, maximum=65535))),
        default=0,
        metavar="N",
        help="port; 0: a free one (default: 0)",
    )
    served.add_argument(
        "--no-token", action="store_true", help="let everyone who can connect read the runs, other users included"
    )
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
    token = "" if arguments.no_token else secrets.token_urlsafe(24)
    with BoardServer(Board(folders), arguments.host, arguments.port, token) as server:
        if not server.is_loopback:
            who = "can read these runs" if arguments.no_token else "with this address can read these runs, unencrypted"
            print(f"hornbook: warning: other machines {who}", file=sys.stderr)
        elif arguments.no_token:
            print("hornbook: warning: other users of this machine can read these runs", file=sys.stderr)
        print(f"{server.url}   Ctrl-C ends it", flush=True)
        try:
            server.serve_forever(poll_interval=0.1)
        except KeyboardInterrupt:
            print()
        return {"url": server.url}
