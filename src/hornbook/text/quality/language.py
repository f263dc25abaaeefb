"""Documents by language, which py3langid tells.

    languages=("de", "nl")      "Der Wal taucht auf."  stays       "The whale comes up."  goes

py3langid (Barbaresi's py3langid 0.4, after Lui and Baldwin's langid.py, ACL 2012) is a naive Bayes classifier over byte
n-grams for 140 languages. It carries its 4 MB model as plain arrays, needs numpy only, loads in half a second into 120
MB, and depends on no seed. Beside it stood lingua (better on single sentences; 0.6 MB/s instead of 5, 0.9 GB),
langdetect (random without a seed, not kept up) and fastText's (whose good models are downloads). The price is short
texts: below some 50 characters its word is worth little.

Only the 4,000 characters in the middle are looked at: headers, licenses and menus stand at the ends.
"""

from collections.abc import Sequence
from typing import Any, Final

from hornbook.config.suggest import did_you_mean
from hornbook.errors import UserError
from hornbook.extras import require
from hornbook.text.documents import Document
from hornbook.text.quality.filter import StatelessFilter

SAMPLED_CHARACTERS: Final = 4000


class Language(StatelessFilter):
    """Drops documents in other languages.

    Args:
        languages: ISO 639 codes, as py3langid has them.
        min_probability: that a document is in one of them, in 0..1.

    Raises:
        UserError: a language is not known, the probability is none, or py3langid is not installed.
    """

    name = "in other languages"

    def __init__(self, languages: Sequence[str], min_probability: float) -> None:
        if not 0 <= min_probability <= 1:
            raise UserError(f"the probability of a language is {min_probability:g}; expected 0 to 1")
        self._identifier = _load()
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


def _load() -> Any:
    langid = require("py3langid.langid", extra="language", purpose="telling languages")
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
