"""From text to a corpus: documents in, a folder with a token store for each split out, all of it or nothing.

    build_corpus(["texts/"], tokenizer, Path("corpora/mine"), BuildOptions(validation=0.02))

    corpora/.mine.building/lock, parts/..., corpus/...      while it works; nobody takes that for a corpus
    corpora/mine/build.json, train/..., validation/...      after one rename

A build that was killed leaves its working folder, which the next one to the same place clears. A corpus that is there
is never overwritten: if it is of the same inputs (paths, sizes, times of change), tokenizer and options, the build is
done already, else the user has to decide. The price: that comparison trusts the times, as make and rsync do.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from hornbook.data.manifest import MANIFEST, Manifest
from hornbook.data.megatron import IndexedFile
from hornbook.data.parts import PartPlan, Progress, join_parts, write_parts
from hornbook.data.rows import read_rows
from hornbook.data.store import open_store
from hornbook.errors import DataError, StorageError, UserError
from hornbook.storage import (
    Written,
    commit_directory,
    dump_json,
    lock_folder,
    make_directory,
    parse_json,
    read_json,
    remove_tree,
    write_file,
)
from hornbook.text.documents import ReadOptions, Tally, read_sources
from hornbook.text.sources import STANDARD_INPUT, find_sources
from hornbook.text.tokenizer import Tokenizer

BUILD: Final = "build.json"
_READ: Final = {"sources", "empty", "faults", "messages", "skipped"}
_FORMAT: Final = {"format": "hornbook corpus", "format_version": 1}


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """What to make of the documents.

    Attributes:
        validation: share of the documents, by a hash of their text, that goes to a validation split; 0 for none.
        end_of_text: ``"stored"``: each document ends with the end-of-text token in the store, as Megatron's
            ``--append-eod`` does; ``"inserted"``: readers put it in.
        reading: how to read the documents.
    """

    validation: float = 0.0
    end_of_text: Literal["stored", "inserted"] = "stored"
    reading: ReadOptions = field(default_factory=ReadOptions)


@dataclass(frozen=True, kw_only=True)
class SplitCounts:
    """What a split holds: documents, tokens (stored end-of-text tokens included), bytes of text in UTF-8."""

    documents: int
    tokens: int
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class BuildReport:
    """What a build did.

    Attributes:
        output: the corpus.
        already_built: it was there, of the same request, and is left as it was.
        splits: what each split holds.
        sources: number of files read.
        empty: documents without a character, left out.
        faults: documents left out because they could not be read.
        messages: what was wrong with the first ten of them.
        skipped: what is no document, counted by kind, as redirects of a Wikipedia are.
    """

    output: Path
    already_built: bool
    splits: dict[str, SplitCounts]
    sources: int
    empty: int
    faults: int
    messages: list[str]
    skipped: dict[str, int]


def build_corpus(
    inputs: Sequence[str | Path],
    tokenizer: Tokenizer,
    output: Path,
    options: BuildOptions | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> BuildReport:
    """Tokenize documents into a new corpus.

    Args:
        inputs: files, folders, globs, ``"-"``; see `hornbook.text.sources.find_sources`.
        tokenizer: makes the tokens.
        output: the corpus' folder, which must not be there yet.
        options: splits, end-of-text tokens, how to read.
        on_progress: called after each batch of some 4 MB of text.

    Raises:
        UserError: an option or an input is wrong, the output is there already, or another build to it is running.
        DataError: a document cannot be read, there is none, an input changed meanwhile, or a split would be empty.
        StorageError: the disk is full, read-only or failing; nothing is left behind.
    """
    options = options or BuildOptions()
    if not 0 <= options.validation < 1:
        raise UserError(f"validation {options.validation} is no share of the documents; expected 0 or more and below 1")
    output = output.resolve()
    if not output.name:
        raise UserError(f"the output {output} is no name for a new folder; choose another --output")
    sources = find_sources(inputs, suffixes=options.reading.suffixes, exclude=options.reading.exclude)
    job = _Job(sources=sources, tokenizer=tokenizer, output=output, options=options)
    with lock_folder(job.work):
        try:
            return _recognize(job) if os.path.lexists(job.output) else _build(job, on_progress)
        finally:
            with suppress(StorageError):
                remove_tree(job.work)


@dataclass(frozen=True, kw_only=True)
class _Job:
    """What ``build_corpus`` was asked for."""

    sources: list[str]
    tokenizer: Tokenizer
    output: Path
    options: BuildOptions

    @property
    def work(self) -> Path:
        """The working folder, on the file system of the output."""
        return self.output.with_name(f".{self.output.name}.building")

    @cached_property
    def request(self) -> dict[str, Any]:
        """What two builds have in common if they make the same corpus; ``inputs`` is None where nobody can tell."""
        return {
            "inputs": _describe_files(self.sources),
            "tokenizer": self.tokenizer.digest,
            "options": _describe_options(self.options),
        }


def _build(job: _Job, on_progress: Callable[[Progress], None]) -> BuildReport:
    """Build the corpus in the working folder and commit it."""
    request = job.request  # of the inputs as they are before the first is read
    parts, corpus = job.work / "parts", job.work / "corpus"
    for folder in (parts, corpus):
        if folder.exists():  # left by a build that was killed
            remove_tree(folder)
        make_directory(folder)
    tally = Tally()
    plan = PartPlan(
        tokenizer=job.tokenizer,
        source_numbers={source: number for number, source in enumerate(job.sources)},
        validation=job.options.validation,
        store_end_of_text=job.options.end_of_text == "stored",
    )
    num_parts = write_parts(read_sources(job.sources, job.options.reading, tally), parts, plan, on_progress)
    if not num_parts:
        found = f"{len(job.sources)} files, {tally.empty} documents empty, {tally.faults} unreadable"
        raise DataError(f"there is no document to build a corpus of ({found}); check the inputs")
    splits = {}
    for split in plan.splits:
        make_directory(corpus / split)
        files = join_parts(parts, num_parts, split, corpus / split)
        splits[split] = _finish_store(job, corpus / split, files, tally)
    read: dict[str, Any] = {
        "sources": len(job.sources),
        "empty": tally.empty,
        "faults": tally.faults,
        "messages": tally.messages,
        "skipped": dict(tally.skipped),
    }
    write_file(corpus / BUILD, dump_json(_FORMAT | {"request": request, "read": read}))
    if _describe_files(job.sources) != request["inputs"]:
        raise DataError("an input changed while it was read, so the corpus may hold half of it; build it again")
    commit_directory(corpus, job.output)
    return BuildReport(output=job.output, already_built=False, splits=splits, **read)


def _finish_store(job: _Job, folder: Path, files: dict[str, Written], tally: Tally) -> SplitCounts:
    """Add tokenizer and manifest to a store whose tokens are there.

    Raises:
        DataError: the store is empty.
        StorageError: a file cannot be written.
    """
    indexed = IndexedFile.open(folder / "tokens")
    if not indexed.num_documents:
        raise DataError(
            f"the {folder.name} split would be empty: none of {tally.documents} documents fell to it with "
            f"--validation {job.options.validation:g}; give more documents, or another share"
        )
    rows = read_rows(folder / "documents.npy", indexed.num_documents)
    counts = SplitCounts(
        documents=indexed.num_documents, tokens=indexed.num_tokens, num_bytes=int(rows["num_bytes"].sum())
    )
    tokenizer = write_file(folder / "tokenizer.json", job.tokenizer.to_json().encode())
    manifest = Manifest(
        num_documents=counts.documents,
        num_tokens=counts.tokens,
        num_bytes=counts.num_bytes,
        dtype=indexed.dtype.name,
        end_of_text=job.options.end_of_text,
        end_of_text_id=job.tokenizer.end_of_text_id,
        tokenizer=job.tokenizer.digest,
        vocab_size=job.tokenizer.vocab_size,
        split=folder.name,
        options=job.request["options"],
        sources=tuple(map(_absolute, job.sources)),
        files=files | {"tokenizer.json": tokenizer},
    )
    write_file(folder / MANIFEST, manifest.to_bytes())
    return counts


def _recognize(job: _Job) -> BuildReport:
    """Report on the corpus that is there already, if it is what this build would make.

    Raises:
        UserError: it is not.
        DataError: it is damaged.
    """
    remedy = "choose another --output, or remove it"
    if not (job.output / BUILD).is_file():
        raise UserError(f"{job.output} exists already and is no finished corpus; {remedy}")
    record = read_json(job.output / BUILD, "the record of the build")
    if not isinstance(record, dict) or {name: record.get(name) for name in _FORMAT} != _FORMAT:
        raise DataError(f"{job.output / BUILD}: expected the record of a build, version 1; {remedy}")
    old, read = record.get("request"), record.get("read")
    if not isinstance(old, dict) or not isinstance(read, dict) or set(read) != _READ:
        raise DataError(f"{job.output / BUILD}: the record of the build is damaged; {remedy}")
    if changed := [name for name, new in job.request.items() if new is None or old.get(name) != new]:
        raise UserError(f"{job.output} exists already and was built from other {' and '.join(changed)}; {remedy}")
    splits = {}
    for split in ("train", "validation") if job.options.validation else ("train",):
        store = open_store(job.output, split)
        splits[split] = SplitCounts(
            documents=store.num_documents, tokens=store.num_tokens, num_bytes=store.num_bytes or 0
        )
    return BuildReport(output=job.output, already_built=True, splits=splits, **read)


def _describe_options(options: BuildOptions) -> dict[str, Any]:
    """The options that make a difference to the corpus, as JSON would hand them back."""
    values = asdict(options)
    del values["reading"]["processes"]
    described: dict[str, Any] = parse_json(dump_json(values), "the options")
    return described


def _describe_files(sources: list[str]) -> str | None:
    """A hash of the paths, sizes and times of change of files; None with standard input among them."""
    digest = hashlib.sha256()
    for source in sources:
        if source == STANDARD_INPUT:
            return None
        try:
            status = Path(source).stat()
        except OSError as error:
            raise UserError(f"cannot read {source}: {error.strerror}; check the path") from error
        digest.update(f"{_absolute(source)}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _absolute(source: str) -> str:
    """The path for the manifest; bytes of a name that are no UTF-8 are written with a backslash."""
    path = source if source == STANDARD_INPUT else str(Path(source).absolute())
    return path.encode(errors="backslashreplace").decode()
