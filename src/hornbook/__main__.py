"""The entry point of ``hornbook`` and ``python -m hornbook``."""

import sys

try:
    from hornbook.cli.main import main
except KeyboardInterrupt:  # `main` answers later ones
    sys.stderr.write("hornbook: error: interrupted\n")
    sys.exit(130)

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
