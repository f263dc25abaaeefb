"""The choice and order of quality filters, all off by default, and the detection of suspicious results.

    QualityOptions(exact_duplicates=True, near_duplicates=0.8)      drop copies, and documents similar to an earlier one

    length -> patterns -> exact duplicates -> evaluation sets -> language -> near duplicates

A dropped document counts for the first filter that drops it. Cheap filters come first. Near duplicates come last,
although the language filter is slower, since they are compared with kept documents only, those that pass all filters.
Filters that look at one document run where it is read, in any process; duplicates are found when all is read
(`hornbook.corpora.building.duplicates`), so no result depends on the number of processes.

A corpus of the wrong files trains as smoothly as one of the right files, so a build with a suspicious result fails
unless its kind is allowed:

    a file without documents             "empty-file"
    a file without kept documents        "unused-file"
    61 % of the documents dropped        "dropped"
    1.3 tokens per byte of text          "tokens-per-byte"
    half of a wiki's list items empty    "empty-list-items"

Imports only the standard library, since the help of a command shows the defaults.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from hornbook.config.options import option
from hornbook.wording import counted, counted_kind

if TYPE_CHECKING:
    from hornbook.text.quality.filters import Filter

KINDS: Final = ("empty-file", "unused-file", "dropped", "tokens-per-byte", "empty-list-items")
EXACT: Final = "exact duplicates"
NEAR: Final = "near duplicates"
_SHOWN_FILES: Final = 3
_LEAST_LIST_ITEMS: Final = 20
_MOST_EMPTY_LIST_ITEMS: Final = 0.4
"""Share of a wiki's list items; encyclopedias have some, such as references that consist of a template."""
_LEAST_TOKENS_PER_BYTE: Final = 0.05
"""English has 0.2 to 0.3 with a usual vocabulary; fewer mean that text was lost."""
_MOST_TOKENS_PER_BYTE: Final = 1.05
"""A byte-level tokenizer gives at most 1, without end-of-text tokens."""


@dataclass(frozen=True, kw_only=True)
class QualityOptions:
    """The options of the quality filters."""

    min_characters: int = option(0, help="drop shorter documents", minimum=0)
    """Leading and trailing white space does not count."""
    min_words: int = option(0, help="drop documents with fewer words", minimum=0)
    keep_matching: tuple[str, ...] = option(
        (), help="drop documents without a match of this regular expression (RE2 syntax); repeatable"
    )
    drop_matching: tuple[str, ...] = option(
        (), help="drop documents with a match of this regular expression; repeatable"
    )
    languages: tuple[str, ...] = option(
        (), help="drop documents in other languages than this one, such as en; repeatable, for several languages"
    )
    """Codes of ISO 639, as detected by py3langid."""
    language_probability: float = option(0.5, help="minimum probability of the languages", minimum=0, maximum=1)
    language_from: Literal["text", "record"] = option(
        "text", help="record: by the first language in a web archive's record (WET), if any; text: by its text"
    )
    exact_duplicates: bool = option(False, help="drop copies of an earlier document, ignoring white space")
    near_duplicates: float | None = option(
        None,
        help="drop documents whose 5-word shingles overlap with those of a kept document by this share "
        "(Jaccard similarity), such as 0.8",
        above=0,
        maximum=1,
    )
    decontaminate: tuple[str, ...] = option(
        (), help="drop documents that overlap with this evaluation set, a file (text, JSONL, Parquet); repeatable"
    )
    decontaminate_field: str = option("text", help="field of the evaluation set's records with the text")
    decontaminate_words: int = option(13, help="length of the compared n-grams in words", minimum=1)
    """At least 8; a shorter passage, from 8 words on, is one n-gram."""
    decontaminate_overlap: int = option(1, help="number of common n-grams from which a document is dropped", minimum=1)


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """The limits of suspicious results."""

    max_dropped: float = option(0.5, help="maximum share of dropped and unreadable documents", minimum=0, maximum=1)
    allow: tuple[str, ...] = option((), help=f"accept this suspicion: {', '.join(KINDS)}; repeatable")


@dataclass(frozen=True, kw_only=True)
class Filters:
    """The filters of a build, in order.

    Attributes:
        before: filters of single documents.
        exact_duplicates: whether to drop the copies of documents that these filters keep.
        after: filters of single documents, for the documents that are no copies.
        near_duplicates: minimum similarity to an earlier document that all filters keep; None to keep similar ones.
    """

    before: list["Filter"]
    exact_duplicates: bool
    after: list["Filter"]
    near_duplicates: float | None

    @property
    def names(self) -> list[str]:
        """The names of the filters, in order."""
        return [
            *(each.name for each in self.before),
            *[EXACT] * self.exact_duplicates,
            *(each.name for each in self.after),
            *[NEAR] * (self.near_duplicates is not None),
        ]

    @property
    def compare(self) -> bool:
        """Whether documents are compared with each other, which is done when all are read."""
        return self.exact_duplicates or self.near_duplicates is not None


def build_filters(options: QualityOptions) -> Filters:
    """Return the filters of the options. Raises UserError for an invalid option, DataError for an evaluation set."""
    before: list[Filter] = []
    after: list[Filter] = []
    if options.min_characters or options.min_words:
        from hornbook.text.quality.filters import Length

        before.append(Length(options.min_characters, options.min_words))
    if options.keep_matching or options.drop_matching:
        from hornbook.text.quality.filters import Pattern

        before += [Pattern(pattern, "keep") for pattern in options.keep_matching]
        before += [Pattern(pattern, "drop") for pattern in options.drop_matching]
    if options.languages:
        from hornbook.text.quality.filters import Language

        after.append(Language(options.languages, options.language_probability, options.language_from))
    if options.near_duplicates is not None:
        from hornbook.text.quality.duplicates import check_threshold

        check_threshold(options.near_duplicates)
    if options.decontaminate:  # last, since it reads the evaluation sets and other options may be invalid
        from hornbook.text.quality.decontamination import Decontamination

        given = options.decontaminate, options.decontaminate_field
        after.insert(0, Decontamination(*given, options.decontaminate_words, options.decontaminate_overlap))
    if not options.exact_duplicates:
        before, after = [*before, *after], []
    return Filters(
        before=before,
        exact_duplicates=options.exact_duplicates,
        after=after,
        near_duplicates=options.near_duplicates,
    )


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
    max_dropped: float = Tolerance.max_dropped,
) -> dict[str, str]:
    """Return the suspicious results of a build: a message with its remedy for each kind, also for allowed ones.

    Args:
        empty_files: the files without documents.
        unused_files: the files whose documents were all dropped.
        documents: number of documents read, unreadable ones included.
        dropped: number of documents dropped by each filter, in order, and of unreadable ones.
        tokens: number of tokens of the kept documents.
        num_bytes: number of bytes of their text.
        list_items: number of list items in the wikitext.
        empty_list_items: number of those that are empty after cleaning.
        max_dropped: share of the documents that may be dropped.
    """
    found = {}
    if empty_files:
        remedy = "exclude empty files, or check `format` and `field`"
        found["empty-file"] = f"{_name_files(empty_files)} gave no documents; {remedy}"
    if unused_files:
        remedy = "loosen the filters, or exclude such files"
        found["unused-file"] = f"all documents of {_name_files(unused_files)} were dropped; {remedy}"
    num_dropped = sum(dropped.values())
    if num_dropped > max_dropped * documents:
        steps = ", ".join(counted_kind(count, name) for name, count in dropped.items() if count)
        found["dropped"] = (
            f"{num_dropped:,} of {counted(documents, 'document')} were dropped ({steps}), more than {max_dropped:.0%}; "
            "check the input, loosen the filters, or raise `max_dropped`"
        )
    # allow one end-of-text token per document, so that short documents do not exceed the limit
    most = _MOST_TOKENS_PER_BYTE * num_bytes + documents - num_dropped
    if num_bytes and not _LEAST_TOKENS_PER_BYTE * num_bytes <= tokens <= most:
        found["tokens-per-byte"] = (
            f"{tokens:,} tokens are {tokens / num_bytes:.3f} per byte of text, expected {_LEAST_TOKENS_PER_BYTE:g} to "
            f"{_MOST_TOKENS_PER_BYTE:g}; check that the tokenizer was trained on such text"
        )
    if list_items >= _LEAST_LIST_ITEMS and empty_list_items > _MOST_EMPTY_LIST_ITEMS * list_items:
        found["empty-list-items"] = (
            f"{empty_list_items:,} of {counted(list_items, 'list item')} are empty: their text is in templates, which "
            "are dropped (as in a Wiktionary); drop lists (`lists='drop'`), or use text with expanded templates"
        )
    return {kind: f"{message} (`allow='{kind}'`)" for kind, message in found.items()}


def _name_files(names: Sequence[str]) -> str:
    shown = ["standard input" if name == "-" else name for name in names[:_SHOWN_FILES]]
    more = ["..."] * (len(names) > _SHOWN_FILES)
    return shown[0] if len(names) == 1 else f"{len(names):,} files ({', '.join(shown + more)})"
