"""Building a corpus from text: an atomic, resumable pipeline from documents to a folder with one token store per split.

    build_corpus(["texts/"], tokenizer, Path("corpora/mine"), BuildOptions(validation=0.02))

    list_sources     files, in order                                                     hornbook.text.documents
      plan_build     checked options, and the request that identifies the build          .request
        read_sources -> read_batches -> tokenize_batches                                 .token_pipeline
          Parts      finished one by one; an interrupted build resumes after them        .parts
            _write_corpus        joined parts, manifest.json, build.json
              commit_directory   one rename

    corpora/.mine.building/lock, request.json, parts/..., corpus/...      during the build, not recognized as a corpus
    corpora/mine/build.json, train/..., validation/...                    after the rename

A build that is stopped, killed or runs out of disk space leaves its finished parts. The next build of the same inputs,
tokenizer and options to the same output resumes after them, byte for byte as if uninterrupted; any other build removes
them. An existing corpus is never overwritten: if it has the same inputs (paths, sizes, modification times), tokenizer
and options, the build is already done, otherwise it is an error.
"""

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from os.path import lexists
from pathlib import Path
from typing import Any, Final

from hornbook.corpora.building.parts import BATCHES_PER_PART, Parts, SplitCounts
from hornbook.corpora.building.request import BuildJob, BuildOptions, describe_sources, plan_build, printable
from hornbook.corpora.building.token_pipeline import (
    BATCH_BYTES,
    BATCH_BYTES_READ,
    BATCH_DOCUMENTS,
    LONG_TEXT,
    Reading,
    TokenPlan,
    ahead,
    example_lines,
    read_batches,
    tokenize_batches,
)
from hornbook.corpora.megatron import smallest_dtype
from hornbook.corpora.store import open_store
from hornbook.corpora.store_manifest import BUILD, MANIFEST, RECORD_FORMAT, Manifest, read_record
from hornbook.errors import DataError, StoppedBySignal, StorageError, UserError
from hornbook.storage import (
    commit_directory,
    lock_working_folder,
    make_directory,
    remove_locked_folder,
    remove_tree,
    replace_file,
    write_file,
)
from hornbook.storage.decompress import InputMeter
from hornbook.storage.json_files import dump_sealed, parse_json, read_json
from hornbook.text.accelerate import accelerated
from hornbook.text.documents import format_of, list_sources, read_sources
from hornbook.text.quality.policy import build_filters, find_suspicions
from hornbook.text.reading import ReadOptions
from hornbook.text.sentences import Splitter, sentence_splitter, split_lines
from hornbook.text.tokenizer import Tokenizer
from hornbook.version import __version__
from hornbook.wording import counted, counted_kind

__all__ = ["BuildOptions", "BuildReport", "Progress", "ReadOptions", "SplitCounts", "build_corpus"]

_LARGE_INPUT: Final = 16 << 20
_UNEVEN: Final = 1.5  # times the requested share of the text, or a part of it, is reported
_READ_ONCE: Final = "an input is a stream, which can be read only once"
_LAYOUT: Final = {
    "format": "parts of a hornbook corpus",
    "hornbook": __version__,
    "sizes": [BATCH_BYTES, BATCH_BYTES_READ, BATCH_DOCUMENTS, BATCHES_PER_PART],
}
"""The properties that must be equal in parts to be joined."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a build.

    Attributes:
        documents, num_bytes, tokens: documents, their bytes in UTF-8, and their tokens, in all parts so far.
        read: bytes of the inputs read, before decompression.
        total: bytes of all inputs; None if unknown.
    """

    documents: int
    num_bytes: int
    tokens: int
    read: int
    total: int | None


@dataclass(frozen=True, kw_only=True)
class BuildReport:
    """The result of a build.

    Attributes:
        output: the folder of the corpus.
        already_built: whether the corpus existed, with the same request, and was left unchanged.
        splits: the counts of each split.
        sources: number of files read.
        empty: number of documents dropped because they have no character.
        faults: number of unreadable documents skipped.
        messages: the errors of the first ten of them.
        skipped: content that is not a document, counted by kind, such as the redirects of a Wikipedia.
        line_ends: number of CRLFs and CRs that became LF.
        dropped: number of documents that each filter dropped, by its name.
        examples: the first three documents, or fewer, that each filter dropped, by its name, with ``source``,
            ``offset`` and the beginning of the ``text``.
    """

    output: Path
    already_built: bool
    splits: dict[str, SplitCounts]
    sources: int
    empty: int
    faults: int
    messages: list[str]
    skipped: dict[str, int]
    line_ends: int
    dropped: dict[str, int]
    examples: dict[str, list[dict[str, Any]]]


def build_corpus(
    inputs: Sequence[str | Path],
    tokenizer: Tokenizer,
    output: Path,
    options: BuildOptions | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    on_notice: Callable[[str], None] = lambda line: None,
) -> BuildReport:
    """Tokenize documents into a new corpus, or resume the same build if it was interrupted.

    Args:
        inputs: files, folders, globs, ``"-"``; see `hornbook.text.documents.list_sources`.
        tokenizer: the tokenizer.
        output: the folder of the corpus; if it exists, it must be the result of the same build.
        options: splits, sequences, end-of-text tokens, reading and filters.
        on_progress: called at the beginning, and after each batch of some 4 MB of text.
        on_notice: called with a line about repeated inputs, a language without sentence rules, the parts of an
            interrupted build, and a split of long documents far from the requested share.

    Raises:
        UserError: an option or an input is wrong, the output exists, or another build to it is running.
        DataError: a document is unreadable, an input changed during the build, or the result is suspicious.
        StorageError: the disk is full, read-only or failing; finished parts remain.
    """
    options = options or BuildOptions()
    job = plan_build(list_sources(inputs, options.reading, on_notice), tokenizer, output.resolve(), options)
    with lock_working_folder(job.work):
        if lexists(job.output):
            _remove(job.work)
            return _recognize(job)
        return _Build(job, on_progress, on_notice).run()


class _Build:
    """A running build in its locked working folder."""

    def __init__(
        self, job: BuildJob, on_progress: Callable[[Progress], None], on_notice: Callable[[str], None]
    ) -> None:
        self._job, self._on_progress, self._on_notice = job, on_progress, on_notice
        self._dtype = smallest_dtype(job.tokenizer.vocab_size)
        self._parts: Parts | None = None
        self._is_suspicious = False

    def run(self) -> BuildReport:
        """Build the corpus and commit it; after an error, print a notice about the parts that remain."""
        job = self._job
        try:
            parts = self._parts = self._resume_parts()
            reading = parts.end or self._write_parts(parts)
            self._check_outcome(parts, reading)
            values = reading.to_json()
            read = {name: values["tally"][name] for name in ("empty", "faults", "messages", "skipped", "line_ends")}
            read |= {"sources": len(job.sources), "dropped": dict(reading.dropped), "examples": values["examples"]}
            corpus = self._write_corpus(parts, read)
            if not job.has_streams and describe_sources(job.sources) != job.request["inputs"]:
                raise DataError("an input changed during the build, so its documents may be mixed; build again")
            commit_directory(corpus, job.output)
        except BaseException as error:
            self._clean_up(error)
            raise
        _remove(job.work)
        if note := _describe_uneven(parts.counts(), job.options.validation):
            self._on_notice(note)
        return BuildReport(output=job.output, already_built=False, splits=parts.counts(), **read)

    def _resume_parts(self) -> Parts:
        """Return the finished parts of the same build, if any, and remove those of another one."""
        job, folder, path = self._job, self._job.work / "parts", self._job.work / "request.json"
        record = dump_sealed(_LAYOUT | {"request": job.request})
        is_same = False
        if not job.has_streams and path.is_file():
            with suppress(DataError, StorageError):
                is_same = read_json(path, "the record of a build") == parse_json(record, "the request")
        if not is_same:
            if self._has_parts():
                why = _READ_ONCE if job.has_streams else "it had other inputs, options or another tokenizer"
                self._on_notice(f"removed the parts of an interrupted build in {job.work}: {why}")
            for entry in (path.name, "parts", "corpus"):
                remove_tree(job.work / entry)
            make_directory(folder)
            replace_file(path, record)
        parts = Parts(folder, job.splits, self._dtype)
        if parts.finished:
            done = counted(sum(counts.documents for counts in parts.counts().values()), "document")
            self._on_notice(f"resuming after {_count_parts(parts)} of an interrupted build, with {done}")
        return parts

    def _write_parts(self, parts: Parts) -> Reading:
        """Read the rest of the inputs and write it into parts; return the state of the reading at the end."""
        job, options, reading, meter = self._job, self._job.options, parts.reading, InputMeter()
        filters = build_filters(options.quality)
        parts.restore_filters(filters)
        numbers = {source: number for number, source in enumerate(job.sources)}
        is_large = job.sizes is None or sum(job.sizes) >= _LARGE_INPUT
        faster = accelerated(job.tokenizer, options.threads) if is_large and options.encoder == "auto" else None
        split_text: Splitter | None = split_lines if options.sequences == "lines" else None
        if options.sequences == "sentences":
            split_text = sentence_splitter(options.language, self._on_notice)
        plan = TokenPlan(
            encode=faster or job.tokenizer.encode_batch,
            dtype=self._dtype,
            source_numbers=numbers,
            validation=options.validation,
            validation_tail=options.validation_tail,
            end_of_text_id=job.tokenizer.end_of_text_id if job.end_of_text == "stored" else None,
            split_text=split_text,
        )
        tally, find_fault = reading.tally, job.tokenizer.find_endless
        documents = read_sources(
            job.sources, options.reading, tally, skip=tally.position, find_fault=find_fault, meter=meter
        )
        batches = read_batches(documents, filters, reading, numbers)
        # no threads for streams: one that waits for input could not be stopped
        stages = tokenize_batches(batches, plan) if job.has_streams else ahead(tokenize_batches(ahead(batches), plan))
        before = sum((job.sizes or [])[: reading.tally.position.source])
        with closing(stages):
            self._report(parts.counts(), reading, before, meter)
            parts.write(stages, lambda counts: self._report(counts, reading, before, meter))
        if not parts.finished:
            lost = [counted(len(job.sources), "file"), counted(tally.empty, "empty document")]
            lost += [f"{tally.faults:,} unreadable"]
            lost += [counted_kind(count, name) for name, count in reading.dropped.items() if count]
            lost += [f"the first: {message}" for message in tally.messages[:1]]
            raise DataError(f"the corpus would have no documents ({', '.join(lost)}); check the inputs")
        parts.finish(reading)
        return reading

    def _report(self, counts: dict[str, SplitCounts], reading: Reading, before: int, meter: InputMeter) -> None:
        sizes = self._job.sizes
        whole = sum(counts.values(), SplitCounts())
        total = None if sizes is None else sum(sizes)
        read = max(before + meter.num_bytes, sum((sizes or [])[: reading.tally.position.source]))
        self._on_progress(
            Progress(
                documents=whole.documents,
                num_bytes=whole.num_bytes,
                tokens=whole.tokens,
                read=read if total is None else min(read, total),
                total=total,
            )
        )

    def _check_outcome(self, parts: Parts, reading: Reading) -> None:
        """Raise DataError for a suspicious result; the same build with ``--allow`` resumes from here."""
        whole = sum(parts.counts().values(), SplitCounts())
        tolerance, faults = self._job.options.tolerance, reading.tally.faults
        self._is_suspicious = True
        empty_files, unused_files = parts.barren_sources(self._job.sources)
        found = find_suspicions(
            empty_files=empty_files,
            unused_files=unused_files,
            documents=reading.tally.documents + faults,
            dropped=reading.dropped | {"unreadable": faults},
            tokens=whole.tokens,
            num_bytes=whole.num_bytes,
            list_items=reading.tally.totals["empty list items"],
            empty_list_items=reading.tally.skipped["empty list items"],
            max_dropped=tolerance.max_dropped,
        )
        if "dropped" in found.keys() - set(tolerance.allow):
            for line in example_lines(reading.to_json()["examples"], self._job.options.reading.format):
                self._on_notice(f"dropped: {line}")
        if refused := [message for kind, message in found.items() if kind not in tolerance.allow]:
            raise DataError(f"the corpus looks wrong: {'; '.join(refused)}")
        self._is_suspicious = False

    def _write_corpus(self, parts: Parts, read: dict[str, Any]) -> Path:
        """Write the corpus into the working folder, replacing that of an interrupted build, and return its path."""
        job, tokenizer, corpus = self._job, self._job.tokenizer, self._job.work / "corpus"
        remove_tree(corpus)
        for split, counts in parts.counts().items():
            folder = corpus / split
            if not counts.documents:
                raise DataError(self._describe_empty(split, sum(each.documents for each in parts.counts().values())))
            make_directory(folder)
            files = parts.join(split, folder)
            files["tokenizer.json"] = write_file(folder / "tokenizer.json", tokenizer.to_json().encode())
            manifest = Manifest(
                num_documents=counts.documents,
                num_tokens=counts.tokens,
                num_bytes=counts.num_bytes,
                dtype=self._dtype.name,
                end_of_text=job.end_of_text,
                end_of_text_id=tokenizer.end_of_text_id,
                tokenizer=tokenizer.digest,
                vocab_size=tokenizer.vocab_size,
                split=split,
                options=job.request["options"],
                sources=tuple(map(printable, job.sources)),
                files=files,
                sequences="documents" if job.options.sequences == "documents" else "sentences",
            )
            write_file(folder / MANIFEST, manifest.to_bytes())
        write_file(corpus / BUILD, dump_sealed(RECORD_FORMAT | {"read": read, "request": job.request}))
        return corpus

    def _describe_empty(self, split: str, num_documents: int) -> str:
        """Return the message for a split without documents, of a corpus with ``num_documents``."""
        options, total = self._job.options, counted(num_documents, "document")
        empty = f"the {split} split would be empty: of {total},"
        if options.validation_tail:
            return (
                f"{empty} none has {LONG_TEXT:,} characters and a line that ends near the last "
                f"{options.validation_tail:.0%} of them; hold out whole documents with `validation`"
            )
        remedy = "add documents, or choose another share"
        if all(format_of(source, options.reading) == "text" for source in self._job.sources):
            remedy = (
                "a text file is one document: hold out the ends of long texts with `validation_tail`, read paragraphs "
                "with `format='blank-lines'` or lines with `format='lines'`, or add files"
            )
        return f"{empty} `validation={options.validation:g}` selects none for it; {remedy}"

    def _clean_up(self, error: BaseException) -> None:
        """Keep finished parts if the same command can resume from them, otherwise remove the working folder."""
        job, parts = self._job, self._parts
        is_read = parts is not None and parts.end is not None
        is_hopeless = is_read and isinstance(error, UserError) and not self._is_suspicious
        is_done = is_hopeless or lexists(job.output)  # the error came after the commit
        if not self._has_parts() or is_done or job.has_streams:
            if self._has_parts() and not is_done:
                self._on_notice(f"removed the unfinished build: {_READ_ONCE}")
            elif isinstance(error, StoppedBySignal | KeyboardInterrupt):
                self._on_notice("no part was finished yet, so nothing is kept")
            _remove(job.work)
        elif parts is not None:
            self._on_notice(
                f"kept {_count_parts(parts)}: run the same command to resume, or remove {job.work} to discard them"
            )

    def _has_parts(self) -> bool:
        return (self._job.work / "parts" / "000000.json").exists()


def _recognize(job: BuildJob) -> BuildReport:
    """Return the report of the existing corpus. Raises UserError if this build would make another one."""
    remedy = "choose another `output`, or remove it"
    if not (job.output / BUILD).is_file():
        raise UserError(f"{job.output} exists already and is not a finished corpus; {remedy}")
    old, read = read_record(job.output)
    if changed := [name for name, new in job.request.items() if new is None or old.get(name) != new]:
        raise UserError(f"{job.output} exists already, built with other {' and '.join(changed)}; {remedy}")
    splits = {}
    for split in job.splits:
        store = open_store(job.output, split)
        splits[split] = SplitCounts(
            documents=store.num_documents, tokens=store.num_tokens, num_bytes=store.num_bytes or 0
        )
    return BuildReport(output=job.output, already_built=True, splits=splits, **read)


def _describe_uneven(counts: dict[str, SplitCounts], share: float) -> str | None:
    """Return a note if whole long documents make a split far from the requested share of the text, else None."""
    whole, held_out = sum(counts.values(), SplitCounts()), counts.get("validation", SplitCounts())
    found = held_out.num_bytes / whole.num_bytes
    if not share or whole.num_bytes < LONG_TEXT * whole.documents or share / _UNEVEN < found < share * _UNEVEN:
        return None
    return (
        f"{held_out.documents:,} of {counted(whole.documents, 'document')} are held out whole, {found:.1%} of the text "
        f"instead of {share:.1%}: with few long texts, hold out their ends by `validation_tail={min(share, 0.25):g}`"
    )


def _count_parts(parts: Parts) -> str:
    return counted(len(parts.finished), "finished part")


def _remove(work: Path) -> None:
    """Remove the working folder; ignore a failing disk, since the build itself is done."""
    with suppress(StorageError):
        remove_locked_folder(work)
