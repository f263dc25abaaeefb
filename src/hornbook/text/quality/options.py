"""Which documents stay, as data: everything is off unless asked for.

    QualityOptions()                                             every document
    QualityOptions(exact_duplicates=True, near_duplicates=0.8)   every one that resembles no other

The standard library only: a command's help shows the defaults.
"""

from dataclasses import dataclass
from typing import Final

DEFAULT_OVERLAP_WORDS: Final = 13
DEFAULT_LANGUAGE_PROBABILITY: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class QualityOptions:
    """What a document has to be to stay.

    Attributes:
        min_characters: at least so many, white space at both ends not counted.
        min_words: at least so many pieces between white space.
        keep_matching: regular expressions (RE2's) each of which has to be found in it.
        drop_matching: regular expressions none of which may be found in it.
        languages: ISO 639 codes as in ``"en"``; it has to be in one of them, which py3langid decides.
        language_probability: that it is in one of them, at least; in 0..1.
        exact_duplicates: drop what is equal to an earlier document but for white space.
        near_duplicates: drop what resembles a document that stayed: the least share of 5-word sequences in common
            (their Jaccard similarity, estimated), in 0.3..1.
        decontaminate: evaluation sets, files or folders; drop what shares sequences of words with them.
        decontaminate_field: where a record of theirs has its text.
        decontaminate_words: how long such a sequence is, at least 8; shorter passages count as a whole, from 8 words.
        decontaminate_overlap: so many different sequences in common are too many.
    """

    min_characters: int = 0
    min_words: int = 0
    keep_matching: tuple[str, ...] = ()
    drop_matching: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    language_probability: float = DEFAULT_LANGUAGE_PROBABILITY
    exact_duplicates: bool = False
    near_duplicates: float | None = None
    decontaminate: tuple[str, ...] = ()
    decontaminate_field: str = "text"
    decontaminate_words: int = DEFAULT_OVERLAP_WORDS
    decontaminate_overlap: int = 1
