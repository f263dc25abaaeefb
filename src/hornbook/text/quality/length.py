"""Too short to learn from: documents below a number of characters or words.

    min_words=3:  "Page not found" stays, "Login  " goes

White space at the ends counts for nothing, and words are what stands between white space.
"""

from hornbook.errors import UserError
from hornbook.text.documents import Document
from hornbook.text.quality.filter import StatelessFilter


class Length(StatelessFilter):
    """Drops short documents.

    Args:
        min_characters: Unicode's characters, without white space at both ends.
        min_words: pieces between white space.

    Raises:
        UserError: a bound is negative.
    """

    name = "too short"

    def __init__(self, min_characters: int = 0, min_words: int = 0) -> None:
        if (least := min(min_characters, min_words)) < 0:
            raise UserError(f"a document cannot have {least} characters or words; expected 0 or more")
        self._min_characters, self._min_words = min_characters, min_words

    def keeps(self, document: Document) -> bool:
        """Tell whether a document is long enough."""
        text = document.text.strip()
        return len(text) >= self._min_characters and self._has_words(text)

    def _has_words(self, text: str) -> bool:
        """Split no further than it takes to know."""
        return len(text.split(maxsplit=self._min_words)) >= self._min_words
