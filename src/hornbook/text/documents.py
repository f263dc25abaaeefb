"""Documents, one after the other, out of whatever the user names.

    poems/a.txt     "Tyger Tyger"                        Document("Tyger Tyger", "poems/a.txt", offset 0, 11 bytes)
    b.jsonl.gz      {"text": "one"}                      Document("one", "b.jsonl.gz", offset 0, 3 bytes)
                    {"text": "two", "id": 7}             Document("two", "b.jsonl.gz", offset 16, 3 bytes)
    dump.xml.bz2    <page> ... <text>'''a''' [[b]]       Document("a b", "dump.xml.bz2", offset 1189, 3 bytes)

Inputs become a list of sources, each file once. Folders are searched recursively, in the order of names; hidden files
and folders are skipped, links are followed.

The reader of a source's format (`hornbook.text.readers`) makes documents of it. Text is UTF-8. A byte-order mark at the
very beginning goes, and CRLF becomes LF, as does CR alone, unless ``keep_crlf`` is set; the rest is taken as it is. A
document that cannot be read is an error, or is counted and skipped, as the user says. Memory holds one document at a
time, or some megabytes of rows.
"""

import glob
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Final, Literal

from hornbook.errors import DataError, UserError
from hornbook.formats.arrow import is_dataset, list_dataset_files
from hornbook.storage.decompress import InputMeter
from hornbook.text import hub_datasets as hub
from hornbook.text.readers.columns import read_columns
from hornbook.text.readers.csv_tables import read_table
from hornbook.text.readers.jsonl import JSONL_SUFFIXES, read_jsonl
from hornbook.text.readers.plain import read_between_blank_lines, read_each_line, read_whole
from hornbook.text.readers.wiki import read_wikiextractor, read_wikipedia
from hornbook.text.readers.wikitext import read_wikitext
from hornbook.text.reading import (
    DEFAULT_FIELD,
    HUB_SCHEME,
    STANDARD_INPUT,
    Document,
    Outcome,
    Position,
    Reader,
    ReadOptions,
    Skipped,
    Source,
    StreamReader,
    Tally,
    after,
    content_suffix,
    has_suffix,
    is_excluded,
    open_stream,
    with_plain_line_ends,
)
from hornbook.wording import counted

STREAM_READERS: Final[dict[str, StreamReader]] = {
    "text": read_whole,
    "lines": read_each_line,
    "blank-lines": read_between_blank_lines,
    "wikitext": read_wikitext,
    "jsonl": read_jsonl,
    "csv": partial(read_table, ".csv"),
    "tsv": partial(read_table, ".tsv"),
    "wikiextractor": read_wikiextractor,
}
READERS: Final[dict[str, Reader]] = {
    "parquet": partial(read_columns, "parquet"),
    "arrow": partial(read_columns, "arrow"),
    "wikipedia": read_wikipedia,
}
"""Formats that open their files themselves."""

_BY_SUFFIX: Final = dict.fromkeys(JSONL_SUFFIXES, "jsonl") | {
    f".{name}": name for name in ("csv", "tsv", "parquet", "arrow")
}
_WITH_FIELDS: Final = ("jsonl", "csv", "tsv", "parquet", "arrow")
_SUFFIXES: Final = {"parquet": (".parquet",), "arrow": (".arrow",)}
"""Of formats whose documents are rows, which nothing but such a file can have: all others in a folder are left out."""


OnNotice = Callable[[str], None]


def read_documents(
    inputs: Sequence[str | Path],
    options: ReadOptions | None = None,
    tally: Tally | None = None,
    on_notice: OnNotice = lambda line: None,
) -> Iterator[Document]:
    """Read the documents of what the user names, in that order; ``tally`` is kept up to date.

    Raises:
        UserError: an input names nothing, or a file may not be read.
        DataError: a document cannot be read, unless ``options.on_error`` is ``"skip"``.
        HornbookError: the Hugging Face hub failed half-way.
    """
    options = options or ReadOptions()
    return read_sources(list_sources(inputs, options, on_notice), options, Tally() if tally is None else tally)


def list_sources(
    inputs: Sequence[str | Path], options: ReadOptions, on_notice: OnNotice = lambda line: None
) -> list[str]:
    """List what ``read_sources`` shall read, each source once.

    Args:
        inputs: files, folders, globs, ``"-"`` for standard input; folders that ``save_to_disk`` made; data sets of the
            Hugging Face hub, ``"hf:owner/name"`` or ``"hf:owner/name@revision"``.
        options: which files to take, and of a data set which split and configuration.
        on_notice: gets a line about files that several inputs name.

    Raises:
        UserError: an input names nothing, or an option does not apply.
        DataError: a data set is damaged.
        HornbookError: the Hugging Face hub failed.
    """
    check_patterns(options.exclude)
    sources: list[str] = []
    chosen = {"split": False, "config": False}
    for item in inputs or find_sources(inputs):
        if str(item).startswith(HUB_SCHEME):
            sources += hub.list_files(str(item), options)
            chosen = {"split": True, "config": True}
        elif options.format in ("auto", "arrow") and Path(item).is_dir() and is_dataset(Path(item)):
            sources += map(str, list_dataset_files(Path(item), options.split))
            chosen["split"] = True
        else:
            suffixes = options.suffixes or _SUFFIXES.get(options.format, ())
            sources += find_sources([item], suffixes=suffixes, exclude=options.exclude)
    for name, used in chosen.items():
        if getattr(options, name) is not None and not used:
            where = "a data set of the Hugging Face hub" + ", or a folder that save_to_disk made" * (name == "split")
            raise UserError(f"--{name} applies to {where}; no input is one")
    once = each_once(sources)
    if not once:
        raise UserError(
            f"no input is left by --exclude {' --exclude '.join(options.exclude)}; name others, or loosen it"
        )
    if options.field != DEFAULT_FIELD and not any(format_of(name, options) in _WITH_FIELDS for name in once):
        raise UserError(
            f"--field {options.field!r:.80} does not apply: {_shown(once[0])} is read as "
            f"{format_of(once[0], options)}, which has no fields; leave it out, or say by --from what it is "
            f"({', '.join(_WITH_FIELDS)})"
        )
    if repeated := len(sources) - len(once):
        on_notice(f"{counted(repeated, 'file')} named more than once, to be read once")
    return once


def find_sources(
    inputs: Sequence[str | Path], *, suffixes: Sequence[str] = (), exclude: Sequence[str] = ()
) -> list[str]:
    """List the files to read, each once, by the first of its names; none where all inputs are left out by name.

    Args:
        inputs: files, folders, globs (``**`` goes through folders), ``"-"`` for standard input.
        suffixes: take only files of such an ending, as in ``".py"``, out of folders and globs; a compressed
            ``a.py.gz`` counts as ``.py``, too. A file named outright is always taken.
        exclude: patterns as in ``"test*"``; what has a name that fits one is left out, whether an input names it
            (as a shell does that expands a glob) or it is found below; the folders above an input, and above a glob's
            first wildcard, are not looked at.

    Raises:
        UserError: there is no input, one names nothing, or nothing is left below it.
    """
    if not inputs:
        raise UserError("no input was named: expected files, folders, globs, or - for standard input")
    sources: list[str] = []
    for name in (os.fspath(item) for item in inputs):
        if Path(name).exists() and is_excluded(PurePath(name).name, exclude):
            continue
        found = [path for path in _expand(name, exclude) if path == name or has_suffix(path, suffixes)]
        if not found:
            conditions = [f"suffix {' or '.join(suffixes)}"] * bool(suffixes) + [f"not {p}" for p in exclude]
            asked = f" ({', '.join(conditions)})" if conditions else ""
            raise UserError(f"{name}: there is no file to read{asked}; hidden files do not count")
        sources += found
    return each_once(sources)


def each_once(sources: Iterable[str]) -> list[str]:
    """Leave out sources that are a file by another name, through symbolic links too; the first name stays."""
    first: dict[str, str] = {}
    for name in sources:
        first.setdefault(name if name == STANDARD_INPUT else os.path.realpath(name), name)
    return list(first.values())


def check_patterns(exclude: Sequence[str]) -> None:
    """Raise UserError if a pattern has a slash, since no single name would fit it."""
    for pattern in exclude:
        if "/" in pattern:
            name = next((part for part in reversed(pattern.split("/")) if part.strip("*")), "*")
            raise UserError(
                f"--exclude {pattern!r:.120} would leave out nothing: a pattern is of one name, that of a file or of a "
                f"folder; say --exclude {shlex.quote(name):.120}"
            )


def read_sources(
    sources: Sequence[str],
    options: ReadOptions,
    tally: Tally,
    *,
    skip: Position | None = None,
    find_fault: Callable[[str], str | None] = lambda text: None,
    meter: InputMeter | None = None,
) -> Iterator[Document]:
    """Read the documents of the sources that ``list_sources`` found; raises as ``read_documents``.

    Args:
        sources: what to read, in this order.
        options: how.
        tally: is kept up to date, ``tally.position`` too: whenever a document was handed out, it counts this one and
            what came before it, and nothing beyond.
        skip: leave out what lies before this position, which is not counted either; a tally and its position as they
            were after some document let the reading go on as if it had not stopped.
        find_fault: says why a text cannot be used, which counts as a document that cannot be read; None if it can.
        meter: counts the bytes that are read, where a reader can tell.
    """
    first = skip or Position()
    for number, name in enumerate(sources[first.source :], first.source):
        count = first.documents if number == first.source else 0
        for outcome in _outcomes(name, options, count, meter):
            if isinstance(outcome, Skipped):
                tally.add_skipped(outcome)
                continue
            count += 1
            num_line_ends = 0
            if isinstance(outcome, Document) and not options.keep_crlf:
                outcome, num_line_ends = with_plain_line_ends(outcome)
            if isinstance(outcome, Document) and (fault := find_fault(outcome.text)):
                unit = offset_unit(name, options.format)
                outcome = DataError(f"{_shown(name)}, the document at {unit} {outcome.offset}: {fault}")
            if isinstance(outcome, DataError):
                if options.on_error == "stop":
                    raise outcome
                tally.add_fault(number, outcome)
            elif outcome.text:
                tally.documents += 1
                tally.num_bytes += outcome.num_bytes
                tally.line_ends += num_line_ends
                tally.position = Position(number, count)
                yield outcome
            else:
                tally.empty += 1


def offset_unit(source: str, format_name: str | None = None) -> Literal["byte", "row"]:
    """Return what ``Document.offset`` counts in a source that was read as a format; None: by its name."""
    known = _BY_SUFFIX.get(content_suffix(source)) if format_name in (None, "auto") else format_name
    return "row" if known in _SUFFIXES else "byte"


def format_of(source: str, options: ReadOptions) -> str:
    """Return the format in which a source is read, a key of ``STREAM_READERS`` or ``READERS``."""
    return _BY_SUFFIX.get(content_suffix(source), "text") if options.format == "auto" else options.format


def _outcomes(name: str, options: ReadOptions, start: int, meter: InputMeter | None) -> Iterator[Outcome]:
    """Read a source from its document ``start`` on; an error that ends it comes last."""
    kind = format_of(name, options)
    try:
        path = None if name == STANDARD_INPUT else Path(name)
        if name.startswith(HUB_SCHEME) and hub.is_file_name(name):
            path = hub.fetch(name)
        source = Source(name, path, meter)
        if kind in READERS:
            yield from READERS[kind](source, options, start)
        else:
            with open_stream(source) as stream:
                yield from after(STREAM_READERS[kind](stream, source, options), start)
    except DataError as error:
        yield error


def _shown(source: str) -> str:
    """Return what messages call a source."""
    return "standard input" if source == STANDARD_INPUT else source


def _expand(name: str, exclude: Sequence[str]) -> list[str]:
    path = Path(name)
    if name == STANDARD_INPUT:
        return [name]
    if path.is_dir():
        return list(_walk(name, exclude, set()))
    if path.exists():
        return [name]
    if not glob.has_magic(name):
        raise UserError(f"{name}: no such file or folder; check the path")
    found = sorted(glob.glob(name, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
    named = next(place for place, part in enumerate(path.parts) if glob.has_magic(part))
    matches = [match for match in found if not is_excluded(PurePath(*PurePath(match).parts[named:]), exclude)]
    entered: set[tuple[int, int]] = set()
    return [
        path for match in matches for path in (_walk(match, exclude, entered) if Path(match).is_dir() else (match,))
    ]


def _walk(folder: str, exclude: Sequence[str], entered: set[tuple[int, int]]) -> Iterator[str]:
    """Yield the files below a folder in the order of names; a folder is entered once, however many links lead to it.

    ``entered`` has device and inode of those folders, and is added to.
    """
    try:
        status = Path(folder).stat()
        if (identity := (status.st_dev, status.st_ino)) in entered:
            return
        entered.add(identity)
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(f"cannot read the folder {folder}: {error.strerror}; check its permissions") from error
    for entry in entries:
        if entry.name.startswith(".") or is_excluded(entry.name, exclude):
            continue
        place = Path(entry.path) if entry.is_symlink() else entry  # of a link to itself, an entry raises OSError
        if place.is_dir():
            yield from _walk(entry.path, exclude, entered)
        elif place.is_file() or entry.is_symlink():  # a dangling link is an error when it is opened, not a gap
            yield entry.path
