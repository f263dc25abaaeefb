"""Which documents of a corpus stay, and which outcome looks wrong; everything is off unless asked for.

    QualityOptions(exact_duplicates=True, near_duplicates=0.8)      documents that resemble no other stay

    length -> patterns -> exact duplicates -> evaluation sets -> language -> near duplicates

A document is counted under the first filter that drops it. The cheap filters come first, but near duplicates last,
although languages cost more: they compare with documents that stayed, and a document stays if nothing else drops it.

A corpus of the wrong files trains as smoothly as one of the right ones, so a build that looks wrong fails unless the
kind was allowed:

    a file gave no document              "empty-file"
    a file gave some, but none stayed    "unused-file"
    61 % of the documents were dropped   "dropped"
    1.3 tokens a byte of text            "tokens-per-byte"
    half of a wiki's list items empty    "empty-list-items"

Only the standard library is imported, since a command's help shows the defaults.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hornbook.wording import counted, counted_kind

if TYPE_CHECKING:
    from hornbook.text.quality.filters import Filter

DEFAULT_OVERLAP_WORDS: Final = 13
DEFAULT_LANGUAGE_PROBABILITY: Final = 0.5
MOST_DROPPED: Final = 0.5
KINDS: Final = ("empty-file", "unused-file", "dropped", "tokens-per-byte", "empty-list-items")
_SHOWN_FILES: Final = 3
_LEAST_LIST_ITEMS: Final = 20
_MOST_EMPTY_LIST_ITEMS: Final = 0.4
"""Of a wiki's; encyclopedias have some, sources that are cited by a template alone."""
_LEAST_TOKENS_PER_BYTE: Final = 0.05
"""English has 0.2 to 0.3 with a usual vocabulary; below this, text got lost on the way."""
_MOST_TOKENS_PER_BYTE: Final = 1.05
"""A byte-level tokenizer cannot make more than 1; the end-of-text tokens do not count."""


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


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """What is not suspicious.

    Attributes:
        max_dropped: of the documents; in 0..1.
        allow: kinds, out of `KINDS`, that the user accepts.
    """

    max_dropped: float = MOST_DROPPED
    allow: tuple[str, ...] = ()


def build_filters(options: QualityOptions) -> list["Filter"]:
    """Return the filters of the options. Raises UserError for a wrong option, DataError for an evaluation set."""
    cheap: list[Filter] = []
    thorough: list[Filter] = []
    if options.min_characters or options.min_words:
        from hornbook.text.quality.filters import Length

        cheap.append(Length(options.min_characters, options.min_words))
    if options.keep_matching or options.drop_matching:
        from hornbook.text.quality.filters import Pattern

        cheap += [Pattern(pattern, "keep") for pattern in options.keep_matching]
        cheap += [Pattern(pattern, "drop") for pattern in options.drop_matching]
    if options.exact_duplicates:
        from hornbook.text.quality.exact import ExactDuplicates

        cheap.append(ExactDuplicates())
    if options.languages:
        from hornbook.text.quality.filters import Language

        thorough.append(Language(options.languages, options.language_probability))
    if options.near_duplicates is not None:
        from hornbook.text.quality.near import NearDuplicates

        thorough.append(NearDuplicates(options.near_duplicates))
    if options.decontaminate:  # evaluation sets are read when no other option can be wrong
        from hornbook.text.quality.decontamination import Decontamination

        given = options.decontaminate, options.decontaminate_field
        cheap.append(Decontamination(*given, options.decontaminate_words, options.decontaminate_overlap))
    return [*cheap, *thorough]


def find_suspicions(
    *,
    empty_files: Sequence[str] = (),
    unused_files: Sequence[str] = (),
    documents: int,
    dropped: Mapping[str, int],
    tokens: int,
    num_bytes: int,
    list_items: int = 0,
    empty_list_items: int = 0,
    max_dropped: float = MOST_DROPPED,
) -> dict[str, str]:
    """Return what looks wrong about a corpus, whether allowed or not: a message with its remedy for each kind.

    Args:
        empty_files: those that gave no document.
        unused_files: those of whose documents none stayed.
        documents: read, including those that could not be read.
        dropped: by filter, in the order in which they apply, or because they could not be read.
        tokens: of the documents that stayed.
        num_bytes: of their text.
        list_items: of the wikitext that was read.
        empty_list_items: those of which no word stayed.
        max_dropped: share of the documents that may be dropped.
    """
    found = {}
    if empty_files:
        remedy = "leave out what is empty, or check --from and --field"
        found["empty-file"] = f"{_name_files(empty_files)} gave no document; {remedy}"
    if unused_files:
        found["unused-file"] = f"of {_name_files(unused_files)} no document stayed; loosen the filters, or leave it out"
    num_dropped = sum(dropped.values())
    if num_dropped > max_dropped * documents:
        steps = ", ".join(counted_kind(count, name) for name, count in dropped.items() if count)
        found["dropped"] = (
            f"{num_dropped:,} of {counted(documents, 'document')} did not stay ({steps}), more than {max_dropped:.0%}; "
            "look at the input, loosen the filters, or raise --max-dropped"
        )
    # an end-of-text token a document is not counted, so that short documents do not tip the ratio
    most = _MOST_TOKENS_PER_BYTE * num_bytes + documents - num_dropped
    if num_bytes and not _LEAST_TOKENS_PER_BYTE * num_bytes <= tokens <= most:
        found["tokens-per-byte"] = (
            f"{tokens:,} tokens are {tokens / num_bytes:.3f} a byte of text, expected {_LEAST_TOKENS_PER_BYTE:g} to "
            f"{_MOST_TOKENS_PER_BYTE:g}; check that the tokenizer is made for such text"
        )
    if list_items >= _LEAST_LIST_ITEMS and empty_list_items > _MOST_EMPTY_LIST_ITEMS * list_items:
        found["empty-list-items"] = (
            f"{empty_list_items:,} of {counted(list_items, 'list item')} came out empty: their text is in templates, "
            "which are dropped (as a Wiktionary's are); drop lists (--lists drop), or take text with templates expanded"
        )
    return {kind: f"{message} (--allow {kind})" for kind, message in found.items()}


def _name_files(names: Sequence[str]) -> str:
    shown = ["standard input" if name == "-" else name for name in names[:_SHOWN_FILES]]
    more = ["..."] * (len(names) > _SHOWN_FILES)
    return shown[0] if len(names) == 1 else f"{len(names):,} files ({', '.join(shown + more)})"
