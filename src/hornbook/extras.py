"""Import optional dependencies, each of which is an extra of the package.

require("pyarrow", extra="arrow", purpose="reading Parquet files")    the module, or an error with the pip command

The command contains the path of this interpreter, since another one's pip would install into another environment.
"""

import importlib
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from hornbook.errors import UserError


def require(module: str, *, extra: str, purpose: str) -> Any:
    """Import a module of an extra.

    Args:
        module: full name, such as ``"pyarrow"`` or ``"py3langid.langid"``.
        extra: its name in ``pyproject.toml``.
        purpose: for the message, as in ``"reading Parquet files"``.

    Raises:
        UserError: the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        library = module.partition(".")[0]
        raise UserError(f"{purpose} needs {library}: {_python()} -m pip install 'hornbook[{extra}]'") from None


def _python() -> str:
    """Return the path of this interpreter, quoted for a shell, relative if it is below the working directory."""
    python, here = Path(sys.executable or "python"), Path.cwd()
    shown = str(python.relative_to(here)) if python.is_relative_to(here) else str(python)
    return shlex.quote(shown if os.sep in shown else str(python))
