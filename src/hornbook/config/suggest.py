"""The nearest known word to a misspelt one, for error messages.

did_you_mean("lerning_rate", ["learning_rate", "beta1"]) -> '; did you mean "learning_rate"?'
"""

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word closest to ``word``, or None where nothing is near."""
    from difflib import get_close_matches  # 4 ms that only a mistake has to pay

    matches = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of an error message: a suggestion, or nothing."""
    suggestion = nearest(word, known)
    return f'; did you mean "{suggestion}"?' if suggestion else ""
