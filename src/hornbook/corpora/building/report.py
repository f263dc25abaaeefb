"""The counts of a part of a corpus: what was read, dropped and written; the counts of a corpus are the sum of them.

sum(part.report for part in parts)      the report of the corpus, whatever the parts are
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Self

from hornbook.text.documents import offset_unit
from hornbook.text.reading import Document, Position, Tally
from hornbook.wording import as_text, one_line

EXAMPLES_PER_FILTER: Final = 3
_EXAMPLE_CHARACTERS: Final = 80


@dataclass(frozen=True, kw_only=True)
class SplitCounts:
    """The counts of a split: documents, tokens (stored end-of-text tokens included), bytes of text in UTF-8."""

    documents: int = 0
    tokens: int = 0
    num_bytes: int = 0

    def __add__(self, other: "SplitCounts") -> "SplitCounts":
        """Return the sum of each field."""
        return SplitCounts(
            documents=self.documents + other.documents,
            tokens=self.tokens + other.tokens,
            num_bytes=self.num_bytes + other.num_bytes,
        )


@dataclass(frozen=True, kw_only=True)
class Example:
    """A document that a filter dropped.

    Attributes:
        source, offset: its origin, see `hornbook.text.reading.Document`.
        text: its first 80 characters on one line, with control characters escaped.
    """

    source: str
    offset: int
    text: str


def beginning(document: Document) -> str:
    """Return the ``text`` of the example of a document."""
    return one_line(document.text[:_EXAMPLE_CHARACTERS])


@dataclass(kw_only=True)
class Report:
    """What was read and dropped.

    Attributes:
        tally: the counts of the reader, and the position after the last document.
        dropped: number of documents that each filter dropped, by its name.
        examples: the first three documents that each filter dropped, by its name.
        lost: number of dropped documents, by index of the source.
    """

    tally: Tally = field(default_factory=Tally)
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[Example]] = field(default_factory=dict)
    lost: Counter[int] = field(default_factory=Counter)

    def add_dropped(self, document: Document, source: int, name: str) -> None:
        """Count a document that the named filter dropped, and record it if it is one of the first three."""
        self.dropped[name] += 1
        self.lost[source] += 1
        examples = self.examples.setdefault(name, [])
        if len(examples) < EXAMPLES_PER_FILTER:
            source_name = as_text(document.source)
            examples.append(Example(source=source_name, offset=document.offset, text=beginning(document)))

    def __add__(self, later: Self) -> "Report":
        """Return the counts of this and of what was read after it."""
        names = [*self.examples, *(name for name in later.examples if name not in self.examples)]
        return Report(
            tally=self.tally + later.tally,
            dropped=self.dropped + later.dropped,
            examples={
                name: (self.examples.get(name, []) + later.examples.get(name, []))[:EXAMPLES_PER_FILTER]
                for name in names
            },
            lost=self.lost + later.lost,
        )

    def to_json(self) -> dict[str, Any]:
        """Return values for JSON; invalid UTF-8 in file names is written with backslash escapes."""
        tally = {each.name: getattr(self.tally, each.name) for each in fields(self.tally)}
        special = {
            "messages": list(map(as_text, self.tally.messages)),
            "faulty": sorted(self.tally.faulty),
            "skipped": dict(self.tally.skipped),
            "totals": dict(self.tally.totals),
            "position": asdict(self.tally.position),
        }
        counters = {name: list(getattr(self, name).items()) for name in ("dropped", "lost")}
        examples = {name: [asdict(example) for example in found] for name, found in self.examples.items()}
        return {"tally": tally | special, "examples": examples} | counters

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Return the report that ``to_json`` wrote. Raises KeyError, TypeError or ValueError for other values."""
        tally = dict(values["tally"])
        tally |= {
            "faulty": set(tally["faulty"]),
            "skipped": Counter(tally["skipped"]),
            "totals": Counter(tally["totals"]),
            "position": Position(**tally["position"]),
        }
        counters = {name: Counter(dict(values[name])) for name in ("dropped", "lost")}
        examples = {name: [Example(**each) for each in found] for name, found in values["examples"].items()}
        return cls(tally=Tally(**tally), examples=examples, **counters)


def example_lines(examples: Mapping[str, Sequence[Mapping[str, Any]]], format_name: str) -> list[str]:
    """Return a line for each example of `Report.to_json`: filter, source, offset and text."""
    return [
        f"{name}: {one_line(each['source'])} at {offset_unit(each['source'], format_name)} {each['offset']:,}: "
        f"{each['text']}"
        for name, found in examples.items()
        for each in found
    ]
