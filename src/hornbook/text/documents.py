"""Reading the documents of files, folders, globs, standard input and Hugging Face data sets.

    poems/a.txt     "Tyger Tyger"                        Document("Tyger Tyger", "poems/a.txt", offset 0, 11 bytes)
    b.jsonl.gz      {"text": "one"}                      Document("one", "b.jsonl.gz", offset 0, 3 bytes)
                    {"text": "two", "id": 7}             Document("two", "b.jsonl.gz", offset 16, 3 bytes)
    dump.xml.bz2    <page> ... <text>'''a''' [[b]]       Document("a b", "dump.xml.bz2", offset 1189, 3 bytes)

Inputs are expanded into a list of sources, each file once. Folders are searched recursively, sorted by name; hidden
files and folders are skipped, links are followed.

Each source is read by the reader of its format (`hornbook.text.readers`). Text must be UTF-8. A leading byte-order mark
is removed, and CRLF and CR become LF unless ``keep_crlf`` is set; nothing else is normalized. An unreadable document is
an error or is counted and skipped, depending on ``on_error``. Memory holds one document at a time, or some megabytes of
rows.
"""

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path, PurePath
from typing import Final, Literal

from hornbook.config.options import is_url
from hornbook.config.suggest import did_you_mean_path
from hornbook.errors import DataError, UserError
from hornbook.formats.arrow import is_dataset, list_dataset_files
from hornbook.formats.foreign import name_foreign
from hornbook.plugs import plugged
from hornbook.storage.decompress import InputMeter
from hornbook.text import hub_datasets as hub
from hornbook.text.file_names import content_suffix, has_suffix, is_excluded
from hornbook.text.readers.columns import read_columns, read_table
from hornbook.text.readers.jsonl import JSONL_SUFFIXES, read_jsonl
from hornbook.text.readers.plain import read_between_blank_lines, read_each_line, read_whole, read_wikitext
from hornbook.text.readers.web_archives import WARC_LIMITS, WARC_SUFFIXES, read_web_archive
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
    Slice,
    Source,
    Span,
    StreamReader,
    Tally,
    after,
    open_stream,
    with_plain_line_ends,
)
from hornbook.text.remote import fetched, list_files
from hornbook.wording import counted

STREAM_READERS: Final[dict[str, StreamReader]] = {
    "text": read_whole,
    "lines": read_each_line,
    "blank-lines": read_between_blank_lines,
    "wikitext": read_wikitext,
    "jsonl": read_jsonl,
    "csv": partial(read_table, ".csv"),
    "tsv": partial(read_table, ".tsv"),
    "warc": read_web_archive,
}
READERS: Final[dict[str, Reader]] = {
    "parquet": partial(read_columns, "parquet"),
    "arrow": partial(read_columns, "arrow"),
}
"""Formats whose readers open the files themselves."""

_BY_SUFFIX: Final = {
    **dict.fromkeys(JSONL_SUFFIXES, "jsonl"),
    **dict.fromkeys(WARC_SUFFIXES, "warc"),
    **{f".{name}": name for name in ("csv", "tsv", "parquet", "arrow")},
}
_LIMITS: Final = {"warc": WARC_LIMITS}
"""Where those for a compressed file are not the default."""
_WITH_FIELDS: Final = ("jsonl", "csv", "tsv", "parquet", "arrow")
_SUFFIXES: Final = {"parquet": (".parquet",), "arrow": (".arrow",)}
"""Suffixes of the formats that only such files can have: other files in a folder are skipped. Offsets count rows."""

OnNotice = Callable[[str], None]


def read_documents(
    inputs: Sequence[str | Path],
    options: ReadOptions | None = None,
    tally: Tally | None = None,
    on_notice: OnNotice = lambda line: None,
) -> Iterator[Document]:
    """Read the documents of the inputs, in order, and update ``tally``; see ``list_sources`` for valid inputs.

    Raises:
        UserError: an input matches nothing, or a file is not accessible.
        DataError: a document is unreadable and ``options.on_error`` is ``"stop"``.
        HornbookError: a request to the Hugging Face hub failed.
    """
    options = options or ReadOptions()
    return read_sources(list_sources(inputs, options, on_notice), options, Tally() if tally is None else tally)


def list_sources(
    inputs: Sequence[str | Path], options: ReadOptions, on_notice: OnNotice = lambda line: None
) -> list[str]:
    """Return the sources of the inputs for ``read_sources``, each source once.

    Args:
        inputs: files, folders, globs, ``"-"`` for standard input, folders written by ``save_to_disk``, URLs of fsspec,
            and data sets of the Hugging Face hub, ``"hf:owner/name"`` or ``"hf:owner/name@revision"``.
        options: the files of a folder to read, and the split and configuration of a data set.
        on_notice: called with a line about files that several inputs name.

    Raises:
        UserError: an input matches nothing, or an option does not apply.
        DataError: a data set is damaged.
        HornbookError: a request to the Hugging Face hub failed.
    """
    check_patterns(options.exclude)
    sources: list[str] = []
    chosen = {"split": False, "config": False}
    for item in inputs or find_sources(inputs):
        if str(item).startswith(HUB_SCHEME):
            sources += hub.list_files(str(item), options)
            chosen = {"split": True, "config": True}
        elif is_remote(str(item)):
            sources += list_files(str(item), suffixes=options.suffixes, exclude=options.exclude)
        elif options.format in ("auto", "arrow") and Path(item).is_dir() and is_dataset(Path(item)):
            sources += map(str, list_dataset_files(Path(item), options.split))
            chosen["split"] = True
        else:
            suffixes = options.suffixes or _SUFFIXES.get(options.format, ())
            sources += find_sources([item], suffixes=suffixes, exclude=options.exclude)
    for name, used in chosen.items():
        if getattr(options, name) is not None and not used:
            where = "a data set of the Hugging Face hub" + " or a folder written by save_to_disk" * (name == "split")
            raise UserError(f"`{name}` applies to {where}, and no input is one; name such an input, or drop `{name}`")
    once = each_once(sources)
    for index in (name for name in once if PurePath(name).name == "index.json"):
        if found := name_foreign(Path(index)):
            raise UserError(f"{PurePath(index).parent} is {found}")
    if not once:
        raise UserError(
            f"{' '.join(f'`exclude={pattern!r}`' for pattern in options.exclude)} excludes every input; name other "
            "inputs, or remove it"
        )
    if options.field != DEFAULT_FIELD and not any(format_of(name, options) in _WITH_FIELDS for name in once):
        raise UserError(
            f"`field={options.field!r:.80}` does not apply: {_shown(once[0])} is read as "
            f"{format_of(once[0], options)}, which has no fields; remove the option, or set the format with `format` "
            f"({', '.join(_WITH_FIELDS)})"
        )
    if repeated := len(sources) - len(once):
        on_notice(f"{counted(repeated, 'file')} named more than once; each file is read once")
    return once


def find_sources(
    inputs: Sequence[str | Path], *, suffixes: Sequence[str] = (), exclude: Sequence[str] = ()
) -> list[str]:
    """Return the files of the inputs, each once, under the first of its names; empty if every input is excluded.

    Args:
        inputs: files, folders, globs (``**`` matches nested folders), ``"-"`` for standard input.
        suffixes: of folders and globs, return only files with one of these suffixes, such as ``".py"``; a compressed
            ``a.py.gz`` also matches ``.py``. Files named directly are always returned.
        exclude: patterns such as ``"test*"``. A file or folder whose name matches one is skipped, whether it is an
            input (a shell may have expanded a glob) or is found below one. The folders above an input, and those above
            a glob's first wildcard, are not matched.

    Raises:
        UserError: there are no inputs, or one matches no file.
    """
    if not inputs:
        raise UserError("no input; expected files, folders, globs, or - for standard input")
    sources: list[str] = []
    for name in (os.fspath(item) for item in inputs):
        if Path(name).exists() and is_excluded(PurePath(name).name, exclude):
            continue
        found = [path for path in _expand(name, exclude) if path == name or has_suffix(path, suffixes)]
        if not found:
            conditions = [f"suffix {' or '.join(suffixes)}"] * bool(suffixes) + [f"not {p}" for p in exclude]
            asked = f" ({', '.join(conditions)})" if conditions else ""
            raise UserError(f"{name}: no file to read{asked}; check the path (hidden files are skipped)")
        sources += found
    return each_once(sources)


def each_once(sources: Iterable[str]) -> list[str]:
    """Return the sources, each file once, under the first of its names; symbolic links are resolved to compare."""
    first: dict[str, str] = {}
    for name in sources:
        first.setdefault(name if name == STANDARD_INPUT else os.path.realpath(name), name)
    return list(first.values())


def check_patterns(exclude: Sequence[str]) -> None:
    """Raise UserError if a pattern contains a slash, since it is matched against single names."""
    for pattern in exclude:
        if "/" in pattern:
            name = next((part for part in reversed(pattern.split("/")) if part.strip("*")), "*")
            raise UserError(
                f"`exclude={pattern!r:.120}` matches nothing: a pattern is compared with the name of one file or "
                f"folder, so it has no slash; use `exclude={name!r:.120}`"
            )


def is_remote(name: str) -> bool:
    """Return whether an input or a source is a URL, as in ``"s3://bucket/file"``."""
    return is_url(name) and not name.startswith(("file:", "hf:"))


def read_sources(
    sources: Sequence[str],
    options: ReadOptions,
    tally: Tally,
    *,
    skip: Position | None = None,
    find_fault: Callable[[str], str | None] = lambda text: None,
    meter: InputMeter | None = None,
    within: Slice | None = None,
) -> Iterator[Document]:
    """Read the documents of the sources from ``list_sources``, in order. Raises the errors of ``read_documents``.

    Args:
        sources: the sources.
        options: how to read them.
        tally: updated in place, ``tally.position`` included: when a document is yielded, the tally covers this document
            and everything before it, and nothing after it; at the end, its position is after the last source.
        skip: start at this position, without counting what comes before. To resume, pass a copy of the tally made after
            some document, and its position.
        find_fault: returns why a text is unusable, or None; an unusable text counts as an unreadable document.
        meter: counts the bytes read, for readers that support it.
        within: the part of the sources to read, by default all; ``skip`` is a position in it.
    """
    within = within or Slice(0, len(sources))
    first = skip or Position(within.first)
    for number, name in enumerate(sources[first.source : within.last], first.source):
        count = first.documents if number == first.source else 0
        for outcome in _outcomes(name, options, count, meter, within.span):
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
    tally.position = Position(within.last)


def recorded_format(source: str, format_name: str | None = None) -> str | None:
    """Return the format that a source was read in; None or ``"auto"`` infers it from the name, None if it is text."""
    return _BY_SUFFIX.get(content_suffix(source)) if format_name in (None, "auto") else format_name


def offset_unit(source: str, format_name: str | None = None) -> Literal["byte", "row"]:
    """Return the unit of ``Document.offset`` for a source read in a format, see ``recorded_format``."""
    return "row" if recorded_format(source, format_name) in _SUFFIXES else "byte"


def format_of(source: str, options: ReadOptions) -> str:
    """Return the format of a source, a key of ``STREAM_READERS`` or ``READERS``, here or in a plugged-in room."""
    return _BY_SUFFIX.get(content_suffix(source), "text") if options.format == "auto" else options.format


def _outcomes(
    name: str, options: ReadOptions, start: int, meter: InputMeter | None, span: Span | None
) -> Iterator[Outcome]:
    """Read a source from its document ``start`` on; an error that ends the source is yielded last."""
    kind = format_of(name, options)
    try:
        with ExitStack() as stack:
            path = None if name == STANDARD_INPUT else Path(name)
            if name.startswith(HUB_SCHEME) and hub.is_file_name(name):
                path = hub.fetch(name)
            elif is_remote(name):
                path = stack.enter_context(fetched(name))
            source = Source(name, path, meter, span)
            reader, stream_reader = _readers_of(kind)
            if reader:
                yield from reader(source, options, start)
            if stream_reader:
                stream = stack.enter_context(open_stream(source, _LIMITS.get(kind)))
                yield from after(stream_reader(stream, source, options), start)
    except DataError as error:
        yield error


def _readers_of(kind: str) -> tuple[Reader | None, StreamReader | None]:
    """Return a format's reader: one that opens the files itself, or one that is given the open file.

    Raises UserError if neither this module nor a plugged-in room has one.
    """
    if kind in READERS or kind in STREAM_READERS:
        return READERS.get(kind), STREAM_READERS.get(kind)
    for room in plugged("document readers"):
        if kind in room.READERS or kind in room.STREAM_READERS:
            return room.READERS.get(kind), room.STREAM_READERS.get(kind)
    raise UserError(f"the format {kind} cannot be read here; expected one of {', '.join((*STREAM_READERS, *READERS))}")


def _shown(source: str) -> str:
    """Return the name of a source in messages."""
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
        raise UserError(f"{name}: no such file or folder{did_you_mean_path(path) or '; check the path'}")
    found = sorted(glob.glob(name, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
    first_wildcard = next(depth for depth, part in enumerate(path.parts) if glob.has_magic(part))
    matches = [match for match in found if not is_excluded(PurePath(*PurePath(match).parts[first_wildcard:]), exclude)]
    entered: set[tuple[int, int]] = set()
    return [
        path for match in matches for path in (_walk(match, exclude, entered) if Path(match).is_dir() else (match,))
    ]


def _walk(folder: str, exclude: Sequence[str], entered: set[tuple[int, int]]) -> Iterator[str]:
    """Yield the files below a folder, sorted by name; each folder is entered once, however many links lead to it.

    ``entered`` is the set of (device, inode) of the folders entered so far, updated in place.
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
        path = Path(entry.path) if entry.is_symlink() else entry  # DirEntry.is_dir raises OSError for a link to itself
        if path.is_dir():
            yield from _walk(entry.path, exclude, entered)
        elif path.is_file() or entry.is_symlink():  # a dangling link must be an error on opening, not silently skipped
            yield entry.path
