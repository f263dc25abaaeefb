"""A last look at a corpus: what is probably not what the user wanted, each with its remedy.

    a file gave no document              "empty-file"
    a file gave some, but none stayed    "unused-file"
    61 % of the documents were dropped   "dropped"
    1.3 tokens a byte of text            "tokens-per-byte"
    half of a wiki's list items empty    "empty-list-items"

A corpus of the wrong files trains as smoothly as one of the right ones, so a build that looks wrong fails unless the
kind was allowed. The price: a folder of source code with an empty ``__init__.py`` asks for ``--allow empty-file`` once.
This module needs the standard library only: a command's help lists the kinds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from hornbook.errors import DataError
from hornbook.wording import counted, counted_kind

KINDS: Final = ("empty-file", "unused-file", "dropped", "tokens-per-byte", "empty-list-items")
MOST_DROPPED: Final = 0.5
_SHOWN_FILES: Final = 3
_LEAST_LIST_ITEMS: Final = 20
_MOST_EMPTY_LIST_ITEMS: Final = 0.4
"""Of a wiki's; encyclopedias have some, sources that are cited by a template alone."""
_LEAST_TOKENS_PER_BYTE: Final = 0.05
"""English has 0.2 to 0.3 with a usual vocabulary; below this, text got lost on the way."""
_MOST_TOKENS_PER_BYTE: Final = 1.05
"""A byte-level tokenizer cannot make more than 1; the end-of-text tokens do not count."""


@dataclass(frozen=True, kw_only=True)
class SourceCounts:
    """What became of one file.

    Attributes:
        source: the file.
        documents: read from it, with text in them.
        kept: of those, in the corpus.
        num_bytes: of text in the documents that were read.
        has_faults: whether there were documents that could not be read, which are counted as such.
    """

    source: str
    documents: int
    kept: int
    num_bytes: int
    has_faults: bool = False


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What became of all files.

    Attributes:
        documents: read, those that could not be read included.
        dropped: by filter, in the order in which they apply, or because they could not be read.
        tokens, num_bytes: of the documents that stayed.
        list_items: of the wikitext that was read.
        empty_list_items: those of which no word stayed.
    """

    documents: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    tokens: int
    num_bytes: int
    list_items: int = 0
    empty_list_items: int = 0


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """What is not suspicious.

    Attributes:
        max_dropped: of the documents; in 0..1.
        allow: kinds, out of `KINDS`, that the user accepts.
    """

    max_dropped: float = MOST_DROPPED
    allow: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """Something that looks wrong.

    Attributes:
        kind: one of `KINDS`.
        message: what and how to mend it, on one line.
    """

    kind: str
    message: str


def find_suspicions(sources: Sequence[SourceCounts], totals: Totals, tolerance: Tolerance) -> list[Suspicion]:
    """List what looks wrong about a corpus, at most one of each kind, allowed or not."""
    found = {
        "empty-file": _empty_files(sources),
        "unused-file": _unused_files(sources),
        "dropped": _dropped(totals, tolerance),
        "tokens-per-byte": _tokens_per_byte(totals),
        "empty-list-items": _empty_list_items(totals),
    }
    return [Suspicion(kind=kind, message=f"{text} (--allow {kind})") for kind, text in found.items() if text]


def refuse(suspicions: Sequence[Suspicion], tolerance: Tolerance) -> None:
    """Fail unless everything that looks wrong is allowed.

    Raises:
        DataError: something is not.
    """
    refused = [suspicion.message for suspicion in suspicions if suspicion.kind not in tolerance.allow]
    if refused:
        raise DataError(f"the corpus looks wrong: {'; '.join(refused)}")


def _empty_files(sources: Sequence[SourceCounts]) -> str:
    empty = [counts.source for counts in sources if not counts.documents and not counts.has_faults]
    return f"{_files(empty)} gave no document; leave out what is empty, or check --from and --field" if empty else ""


def _unused_files(sources: Sequence[SourceCounts]) -> str:
    unused = [counts.source for counts in sources if counts.documents and not counts.kept]
    return f"of {_files(unused)} no document stayed; loosen the filters, or leave it out" if unused else ""


def _dropped(totals: Totals, tolerance: Tolerance) -> str:
    num_dropped = sum(totals.dropped.values())
    if num_dropped <= tolerance.max_dropped * totals.documents:
        return ""
    steps = ", ".join(counted_kind(count, name) for name, count in totals.dropped.items() if count)
    return (
        f"{num_dropped:,} of {counted(totals.documents, 'document')} did not stay ({steps}), more than "
        f"{tolerance.max_dropped:.0%}; look at the input, loosen the filters, or raise --max-dropped"
    )


def _tokens_per_byte(totals: Totals) -> str:
    """Judge the ratio without an end-of-text token a document, so that short documents do not tip it."""
    if not totals.num_bytes:
        return ""
    kept = totals.documents - sum(totals.dropped.values())
    least, most = _LEAST_TOKENS_PER_BYTE * totals.num_bytes, _MOST_TOKENS_PER_BYTE * totals.num_bytes + kept
    if least <= totals.tokens <= most:
        return ""
    return (
        f"{totals.tokens:,} tokens are {totals.tokens / totals.num_bytes:.3f} a byte of text, expected "
        f"{_LEAST_TOKENS_PER_BYTE:g} to {_MOST_TOKENS_PER_BYTE:g}; check that the tokenizer is made for such text"
    )


def _empty_list_items(totals: Totals) -> str:
    few = totals.list_items < _LEAST_LIST_ITEMS
    if few or totals.empty_list_items <= _MOST_EMPTY_LIST_ITEMS * totals.list_items:
        return ""
    return (
        f"{totals.empty_list_items:,} of {counted(totals.list_items, 'list item')} came out empty, their text is in "
        "templates, which are dropped (as a Wiktionary's are); leave lists out by --lists drop, or take text with "
        "its templates expanded"
    )


def _files(names: Sequence[str]) -> str:
    shown = ", ".join(_shown(names))
    return shown if len(names) == 1 else f"{len(names):,} files ({shown})"


def _shown(names: Sequence[str]) -> Iterator[str]:
    yield from ("standard input" if name == "-" else name for name in names[:_SHOWN_FILES])
    if len(names) > _SHOWN_FILES:
        yield "..."
