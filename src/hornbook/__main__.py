"""The entry point of ``hornbook`` and ``python -m hornbook``."""

import sys

from hornbook.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
