r"""What a filter is, and the filters that look at nothing but the document: length, patterns, language.

    keeps("one") -> True    keeps("two") -> True    new_memory() -> [[hash of one], [hash of two]]
    ... killed, started again: remember([[hash of one], [hash of two]]) ...
    keeps("one") -> False

A build keeps the memory with each part that it finishes, so a resumed one decides as if it had not stopped.
"""

from collections.abc import Sequence
from typing import Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hornbook.config.suggest import did_you_mean
from hornbook.errors import UserError
from hornbook.extras import require
from hornbook.text.reading import Document

SAMPLED_CHARACTERS: Final = 4000
_NOTHING: Final = np.empty((0, 1), dtype=np.uint64)


class Filter(Protocol):
    """A decision on documents, one after the other in the order of the corpus.

    Attributes:
        name: what was dropped, for the report: ``"12 exact duplicates"``; `hornbook.wording` has a plural's singular.
    """

    name: str

    def keeps(self, document: Document) -> bool:
        """Tell whether a document stays; it counts as seen from now on."""
        ...

    def new_memory(self) -> NDArray[np.uint64]:
        """Return what was learned since the last call, uint64 [rows, width]; no rows if there is nothing."""
        ...

    def remember(self, memory: NDArray[np.uint64]) -> None:
        """Take back what ``new_memory`` gave, in order, before the first document. Raises DataError if that fails."""
        ...


class StatelessFilter:
    """A filter whose decision depends on nothing but the document."""

    def new_memory(self) -> NDArray[np.uint64]:
        """Return no rows."""
        return _NOTHING

    def remember(self, memory: NDArray[np.uint64]) -> None:
        """Do nothing: there is nothing to remember."""


class Length(StatelessFilter):
    """Drops documents with fewer characters (without white space at both ends) or words than that.

    Raises UserError if a bound is negative.
    """

    name = "too short"

    def __init__(self, min_characters: int = 0, min_words: int = 0) -> None:
        if (least := min(min_characters, min_words)) < 0:
            raise UserError(f"a document cannot have {least} characters or words; expected 0 or more")
        self._min_characters, self._min_words = min_characters, min_words

    def keeps(self, document: Document) -> bool:
        """Tell whether a document is long enough."""
        text = document.text.strip()
        least = self._min_words
        return len(text) >= self._min_characters and len(text.split(maxsplit=least)) >= least


class Pattern(StatelessFilter):
    r"""Keeps or drops the documents in which a regular expression of RE2 is found.

    RE2 (``google-re2``) searches in time linear in the text; a backtracking engine (`re`, `regex`) may take years. It
    has no backreferences and no look-around, and ``\w``, ``\d`` and ``\b`` mean ASCII (``\pL`` is any letter). Raises
    UserError if the pattern is invalid, or google-re2 is not installed.
    """

    def __init__(self, pattern: str, action: Literal["keep", "drop"]) -> None:
        self.name = f"{'without' if action == 'keep' else 'with'} {pattern!r}"
        self._keeps_found = action == "keep"
        re2 = require("re2", extra="patterns", purpose="searching for patterns")
        options = re2.Options()
        options.log_errors = False
        try:
            self._search = re2.compile(pattern, options).search
        except (re2.error, UnicodeEncodeError) as error:
            reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
            raise UserError(
                f"the pattern {pattern!r} is not one of RE2's: {' '.join(reason.split())}; see "
                "https://github.com/google/re2/wiki/Syntax (no backreferences, no look-around)"
            ) from None

    def keeps(self, document: Document) -> bool:
        """Tell whether the pattern says that a document stays."""
        return (self._search(document.text.encode()) is not None) == self._keeps_found


class Language(StatelessFilter):
    """Drops documents in other languages, as py3langid tells them.

    py3langid (Barbaresi's py3langid 0.4, after Lui and Baldwin's langid.py, ACL 2012) is a naive Bayes classifier over
    byte n-grams for 140 languages. Below some 50 characters the result is unreliable. Only the 4,000 characters in the
    middle are read: headers, licenses and menus stand at the ends.

    Args:
        languages: ISO 639 codes, as py3langid has them.
        min_probability: that a document is in one of them, in 0..1.

    Raises:
        UserError: a language is not known, the probability is out of its range, or py3langid is not installed.
    """

    name = "in other languages"

    def __init__(self, languages: Sequence[str], min_probability: float) -> None:
        if not 0 <= min_probability <= 1:
            raise UserError(f"the probability of a language is {min_probability:g}; expected 0 to 1")
        langid = require("py3langid.langid", extra="language", purpose="telling languages")
        self._identifier = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
        known = self._identifier.labels
        for language in languages:
            if language not in known:
                raise UserError(
                    f"{language!r} is no language that py3langid knows{did_you_mean(language, known)}; expected a code "
                    f"such as de, en or zh (it knows {len(known)})"
                )
        self._languages, self._min_probability = frozenset(languages), min_probability

    def keeps(self, document: Document) -> bool:
        """Tell whether a document is in one of the languages."""
        probabilities = self._identifier.rank(middle(document.text))
        probability = sum(share for language, share in probabilities if language in self._languages)
        return bool(probability >= self._min_probability)


def middle(text: str) -> str:
    """Return the 4,000 characters in the middle of a text."""
    start = max(0, (len(text) - SAMPLED_CHARACTERS) // 2)
    return text[start : start + SAMPLED_CHARACTERS]
