"""Libraries that only some commands need: each is an extra, imported where it is used.

require("pyarrow", extra="arrow", purpose="reading Parquet files")    the module, or one line that names the command
"""

import importlib
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
        raise UserError(f"{purpose} needs {library}: pip install 'hornbook[{extra}]'") from None
