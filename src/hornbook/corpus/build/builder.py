"""From text to a corpus: documents in, a folder with a token store for each split out, all of it or nothing.

    build_corpus(["texts/"], tokenizer, Path("corpora/mine"), BuildOptions(validation=0.02))

    corpora/.mine.building/lock, request.json, parts/..., corpus/...      while it works; nobody takes that for a corpus
    corpora/mine/build.json, train/..., validation/...                    after one rename

A build that was stopped, killed or met a full disk leaves the parts that it has finished (`hornbook.corpus.build.parts`). The
next one to the same place goes on behind them if it is asked for the same, and clears them else; the bytes are those of
a build that was never stopped. A corpus that is there is never overwritten: if it is of the same inputs (paths, sizes,
times of change), tokenizer and options, the build is done already, else the user has to decide. The price: what was
tokenized since the last finished part, some tens of megabytes of text, is done again.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from os.path import lexists
from pathlib import Path
from typing import Any, Final

from hornbook import __version__
from hornbook.corpus.build.finished import BuildReport, facts_of, finish_store, recognize, write_record
from hornbook.corpus.megatron import smallest_dtype
from hornbook.corpus.build.parts import BATCHES_PER_PART, Parts, SplitCounts
from hornbook.corpus.build.token_pipeline import BATCH_BYTES, BATCH_BYTES_READ, BATCH_DOCUMENTS, Encode, Reading, TokenBatch, TokenPlan, ahead, read_batches, tokenized
from hornbook.corpus.build.request import BuildJob, BuildOptions
from hornbook.errors import DataError, StorageError, UserError
from hornbook.storage import commit_directory, lock_folder, make_directory, remove_locked_folder, remove_tree, replace_file
from hornbook.storage.decompress import InputMeter, measure_input
from hornbook.text.accelerate import accelerated
from hornbook.text.documents import Document, Position, ReadOptions, format_of, list_sources, read_sources
from hornbook.text.quality.filter import Filter
from hornbook.text.quality.pipeline import build_filters
from hornbook.text.quality.suspicion import Totals, find_suspicions, refuse
from hornbook.text.sentences import sentence_splitter, split_lines
from hornbook.text.tokenizer import Tokenizer
from hornbook.wording import counted, counted_kind

__all__ = ["BuildOptions", "BuildReport", "Progress", "ReadOptions", "SplitCounts", "build_corpus"]

_REQUEST: Final = "request.json"
_LARGE_INPUT: Final = 16 << 20
_READ_ONCE: Final = "an input is a stream, which can be read only once"
_LAYOUT: Final = {
    "format": "parts of a hornbook corpus",
    "hornbook": __version__,
    "sizes": [BATCH_BYTES, BATCH_BYTES_READ, BATCH_DOCUMENTS, BATCHES_PER_PART],
}
"""What parts have in common that can be joined."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a build has done so far.

    Attributes:
        documents, num_bytes, tokens: what is in finished parts and the one under way; of text in UTF-8.
        read: bytes of the inputs that were read, packed as they are.
        total: bytes of all inputs; None where that is not known.
    """

    documents: int
    num_bytes: int
    tokens: int
    read: int
    total: int | None


def build_corpus(
    inputs: Sequence[str | Path],
    tokenizer: Tokenizer,
    output: Path,
    options: BuildOptions | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    on_notice: Callable[[str], None] = lambda line: None,
) -> BuildReport:
    """Tokenize documents into a new corpus, or go on where the same build was interrupted.

    Args:
        inputs: files, folders, globs, ``"-"``; see `hornbook.text.documents.list_sources`.
        tokenizer: makes the tokens.
        output: the corpus' folder, which must not be there yet.
        options: splits, sequences, end-of-text tokens, how to read, which documents stay.
        on_progress: called at the beginning, and after each batch of some 4 MB of text.
        on_notice: told, in a line each, of repeated inputs, a language without rules for its sentences, and what
            becomes of an interrupted build.

    Raises:
        UserError: an option or an input is wrong, the output is there already, or another build to it is running.
        DataError: a document cannot be read, there is none, an input changed meanwhile, a split would be empty, or the
            outcome is suspicious.
        StorageError: the disk is full, read-only or failing; finished parts stay.
    """
    options = options or BuildOptions()
    sources = list_sources(inputs, options.reading, on_notice)
    job = BuildJob(sources=sources, tokenizer=tokenizer, output=output.resolve(), options=options)
    with lock_folder(job.work):
        if lexists(job.output):
            _remove(job.work)
            return recognize(job)
        return _Build(job, on_progress, on_notice).run()


class _Build:
    """A build under way in its locked working folder."""

    def __init__(
        self, job: BuildJob, on_progress: Callable[[Progress], None], on_notice: Callable[[str], None]
    ) -> None:
        self._job, self._on_progress, self._on_notice = job, on_progress, on_notice
        self._parts: Parts | None = None
        self._is_suspicious = False

    def run(self) -> BuildReport:
        """Build the corpus and commit it; what stays after an error is said."""
        try:
            report = self._run()
        except BaseException as error:
            self._leave(error)
            raise
        _remove(self._job.work)
        return report

    def _run(self) -> BuildReport:
        job = self._job
        request = job.request  # of the inputs as they are before the first is read
        parts = self._parts = self._take_up()
        if parts.end is None:
            parts.finish(self._write_parts(parts))
        assert parts.end is not None, "it was read to its end"
        self._look_at(parts, parts.end)
        read = facts_of(job, parts.end)
        corpus = self._write_corpus(parts, read)
        if job.describe_inputs() != request["inputs"]:
            raise DataError("an input changed while it was read, so the corpus may hold half of it; build it again")
        commit_directory(corpus, job.output)
        return BuildReport(output=job.output, already_built=False, splits=parts.counts(), **read)

    def _take_up(self) -> Parts:
        """The parts that the same build has left, or none: whatever else there is goes."""
        job, folder = self._job, self._job.work / "parts"
        if not job.is_recorded_in(job.work / _REQUEST, _LAYOUT):
            if _has_parts(job):
                why = _READ_ONCE if job.has_streams else "it was of other inputs, options or tokenizer"
                self._on_notice(f"cleared what an interrupted build left in {job.work}: {why}")
            for entry in (_REQUEST, "parts", "corpus"):
                remove_tree(job.work / entry)
            make_directory(folder)
            replace_file(job.work / _REQUEST, job.record(_LAYOUT))
        parts = Parts(folder, job.splits, smallest_dtype(job.tokenizer.vocab_size))
        if parts.finished:
            done = sum(counts.documents for counts in parts.counts().values())
            self._on_notice(
                f"going on behind {_several(parts)} of an interrupted build, which has {counted(done, 'document')}"
            )
        return parts

    def _write_parts(self, parts: Parts) -> Reading:
        """Read what was not read yet, and write it into parts; return how far that came."""
        job, reading = self._job, parts.reading
        filters = build_filters(job.options.quality)
        parts.remind(filters)
        before = sum((job.sizes or [])[: reading.tally.position.source])
        with measure_input() as meter, closing(self._batches(reading, filters)) as batches:

            def tell(counts: dict[str, SplitCounts]) -> None:
                self._on_progress(_progress(job, counts, reading, before, meter))

            tell(parts.counts())
            parts.write(batches, tell)
        if not parts.finished:
            raise DataError(f"there is no document to build a corpus of ({_left_out(job, reading)}); check the inputs")
        return reading

    def _look_at(self, parts: Parts, reading: Reading) -> None:
        """Refuse an outcome that is probably not what the user wanted; the same with ``--allow`` goes on from here."""
        whole = sum(parts.counts().values(), SplitCounts())
        totals = Totals(
            documents=reading.tally.documents + reading.tally.faults,
            dropped=reading.dropped | {"unreadable": reading.tally.faults},
            tokens=whole.tokens,
            num_bytes=whole.num_bytes,
            list_items=reading.tally.totals["empty list items"],
            empty_list_items=reading.tally.skipped["empty list items"],
        )
        tolerance = self._job.options.tolerance
        self._is_suspicious = True
        refuse(find_suspicions(parts.source_counts(self._job.sources), totals, tolerance), tolerance)
        self._is_suspicious = False

    def _batches(self, reading: Reading, filters: list[Filter]) -> Generator[TokenBatch, None, None]:
        job, options = self._job, self._job.options
        numbers = {source: number for number, source in enumerate(job.sources)}
        plan = TokenPlan(
            encode=self._encoder(),
            dtype=smallest_dtype(job.tokenizer.vocab_size),
            source_numbers=numbers,
            validation=options.validation,
            end_of_text_id=job.tokenizer.end_of_text_id if job.end_of_text == "stored" else None,
            split_text=_splitter(options, self._on_notice),
        )
        batches = read_batches(_documents(job, reading), filters, reading, numbers)
        if job.has_streams:  # a thread that waits for its input could not be stopped
            return tokenized(batches, plan)
        return ahead(tokenized(ahead(batches), plan))

    def _encoder(self) -> Encode:
        """What makes the tokens: the same ones, slower or faster."""
        job, options = self._job, self._job.options
        is_large = job.sizes is None or sum(job.sizes) >= _LARGE_INPUT
        faster = accelerated(job.tokenizer, options.threads) if is_large and options.encoder == "auto" else None
        return faster or job.tokenizer.encode_batch

    def _write_corpus(self, parts: Parts, read: dict[str, Any]) -> Path:
        """Write the whole corpus into the working folder; what an interrupted build has of it is written again."""
        job, corpus = self._job, self._job.work / "corpus"
        remove_tree(corpus)
        for split, counts in parts.counts().items():
            if not counts.documents:
                total = sum(counts.documents for counts in parts.counts().values())
                raise DataError(
                    f"the {split} split would be empty: {counted(total, 'document')}, and none fell to it with "
                    f"--validation {job.options.validation:g}; {_way_to_more(job)}"
                )
            make_directory(corpus / split)
            finish_store(job, corpus / split, parts.join(split, corpus / split), counts)
        write_record(job, corpus, read)
        return corpus

    def _leave(self, error: BaseException) -> None:
        """Keep finished parts if the same command can go on from them, and remove all else."""
        job, parts = self._job, self._parts
        is_read = parts is not None and parts.end is not None
        is_hopeless = is_read and isinstance(error, UserError) and not self._is_suspicious
        is_done = is_hopeless or lexists(job.output)  # an error after the commit takes nothing back
        if not _has_parts(job) or is_done or job.has_streams:
            if _has_parts(job) and not is_done:
                self._on_notice(f"nothing is kept of the build: {_READ_ONCE}")
            _remove(job.work)
        elif parts is not None:
            self._on_notice(
                f"{_several(parts)} kept: the same command goes on from there; to discard all, remove {job.work}"
            )


def _documents(job: BuildJob, reading: Reading) -> Iterator[Document]:
    """The documents behind the position that the tally is at, which in the end lies behind the last source."""
    tally, find_fault = reading.tally, job.tokenizer.find_endless
    yield from read_sources(job.sources, job.options.reading, tally, skip=tally.position, find_fault=find_fault)
    reading.tally.position = Position(len(job.sources), 0)


def _splitter(options: BuildOptions, on_notice: Callable[[str], None]) -> Callable[[str], list[str]] | None:
    if options.sequences == "documents":
        return None
    return split_lines if options.sequences == "lines" else sentence_splitter(options.language, on_notice)


def _progress(
    job: BuildJob, counts: dict[str, SplitCounts], reading: Reading, before: int, meter: InputMeter
) -> Progress:
    whole = sum(counts.values(), SplitCounts())
    passed = sum((job.sizes or [])[: reading.tally.position.source])
    total = None if job.sizes is None else sum(job.sizes)
    read = max(before + meter.num_bytes, passed)
    return Progress(
        documents=whole.documents,
        num_bytes=whole.num_bytes,
        tokens=whole.tokens,
        read=read if total is None else min(read, total),
        total=total,
    )


def _left_out(job: BuildJob, reading: Reading) -> str:
    """What became of all that was read, where nothing stayed."""
    tally = reading.tally
    dropped = "".join(f", {counted_kind(count, name)}" for name, count in reading.dropped.items() if count)
    first = f", the first: {tally.messages[0]}" if tally.messages else ""
    read = f"{counted(len(job.sources), 'file')}, {counted(tally.empty, 'empty document')}, {tally.faults:,} unreadable"
    return f"{read}{dropped}{first}"


def _way_to_more(job: BuildJob) -> str:
    """Say how to come to more documents, where too few leave a split empty."""
    if all(format_of(source, job.options.reading) == "text" for source in job.sources):
        return (
            "a text file is one document: read it by paragraphs with --from blank-lines, by lines with --from lines, "
            "or give more files"
        )
    return "give more documents, or another share"


def _has_parts(job: BuildJob) -> bool:
    return (job.work / "parts" / "000000.json").exists()


def _several(parts: Parts) -> str:
    return counted(len(parts.finished), "finished part")


def _remove(work: Path) -> None:
    """Remove the working folder; a disk that refuses does not undo what was done."""
    with suppress(StorageError):
        remove_locked_folder(work)
