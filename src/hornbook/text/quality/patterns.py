r"""Documents by regular expression: those where one is found stay, or go.

    keep  "(?i)\\bwhale"     "Call me Ishmael. ..."  stays if a whale comes up
    drop  "lorem ipsum"      "Lorem ipsum dolor"     stays, "... lorem ipsum ..." goes

A corpus is what strangers wrote, and with a backtracking engine (`re`, `regex`) one text can keep one pattern busy for
years. RE2 searches in time linear in the text, whatever the two are, and in 8 MiB; its makers, Google, publish the
wheels (``google-re2``), so it was chosen over ``regex`` with a time limit, by which a document's fate would depend on
the machine. The price: no backreferences and no look-around, and ``\w``, ``\d`` and ``\b`` mean ASCII (``\pL`` is any
letter).
"""

from typing import Any, Literal

from hornbook.errors import UserError
from hornbook.extras import require
from hornbook.text.documents import Document
from hornbook.text.quality.filter import StatelessFilter


class Pattern(StatelessFilter):
    """Keeps or drops the documents in which a pattern is found.

    Args:
        pattern: RE2's syntax; ``(?i)``, ``(?m)`` and ``(?s)`` at its beginning are its flags.
        action: what happens where it is found.

    Raises:
        UserError: it is no such pattern, or google-re2 is not installed.
    """

    def __init__(self, pattern: str, action: Literal["keep", "drop"]) -> None:
        self.name = f"{'without' if action == 'keep' else 'with'} {pattern!r}"
        self._search = _compile(pattern).search
        self._found_stays = action == "keep"

    def keeps(self, document: Document) -> bool:
        """Tell whether the pattern says that a document stays."""
        found = self._search(document.text.encode()) is not None
        return found == self._found_stays


def _compile(pattern: str) -> Any:
    re2 = require("re2", extra="patterns", purpose="searching for patterns")
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        raise UserError(
            f"the pattern {pattern!r} is not one of RE2's: {' '.join(reason.split())}; see "
            "https://github.com/google/re2/wiki/Syntax (no backreferences, no look-around)"
        ) from None
