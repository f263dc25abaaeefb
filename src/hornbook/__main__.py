"""``hornbook`` and ``python -m hornbook``: the command line's front door."""

import sys

from hornbook.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
