"""Libraries that only some commands need: each is an extra, imported where it is used.

require("pyarrow", extra="arrow", purpose="reading Parquet files")    the module, or one line that names the command

The command names the Python that runs, since another one's pip would install into another environment.
"""

import importlib
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from hornbook.errors import UserError


def require(module: str, *, extra: str, purpose: str) -> Any:
    """Import a module that comes with an extra.

    Args:
        module: as in an import, ``"pyarrow"`` or ``"py3langid.langid"``.
        extra: its name in ``pyproject.toml``.
        purpose: what needs it, as in ``"reading Parquet files"``.

    Raises:
        UserError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        library = module.partition(".")[0]
        raise UserError(f"{purpose} needs {library}: {_python()} -m pip install 'hornbook[{extra}]'") from None


def _python() -> str:
    """The interpreter that runs, as a shell takes it: from here on if it lies in a folder below this one."""
    python, here = Path(sys.executable or "python"), Path.cwd()
    shown = str(python.relative_to(here)) if python.is_relative_to(here) else str(python)
    return shlex.quote(shown if os.sep in shown else str(python))
