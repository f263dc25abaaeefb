"""Building a corpus from text: an atomic, resumable pipeline from documents to a folder with one token store per split.

    build_corpus(["texts/"], tokenizer, Path("corpora/mine"), BuildOptions(validation=0.02))

    list_sources     files, in order                                                     hornbook.text.documents
      plan_build     checked options, slices of the inputs, and the request              .request
        build_slices in this process, in several, on several machines                    .engines
          read_sources -> read_batches -> tokenize_batches                               .batches, .token_pipeline
            Parts    finished one by one; an interrupted build resumes after them        .parts
        join_parts   without duplicates                                                  .joining, .duplicates
          _write_corpus        joined parts, manifest.json, build.json
            commit_directory   one rename

    corpora/.mine.building/lock, plan.json, slices/..., corpus/...        during the build, not recognized as a corpus
    corpora/mine/build.json, train/..., validation/...                    after the rename

A build that is stopped, killed or runs out of disk space leaves its finished parts. The next build of the same inputs,
tokenizer and options to the same output resumes after them, byte for byte as if uninterrupted; any other build removes
them. An existing corpus is never overwritten: if it has the same inputs (paths, sizes, modification times), tokenizer
and options, the build is already done, otherwise it is an error.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os.path import lexists
from pathlib import Path
from typing import Any, Final

from hornbook.corpora.building.engines import run_slices
from hornbook.corpora.building.joining import Joined, join_parts
from hornbook.corpora.building.parts import Parts
from hornbook.corpora.building.progress import OnProgress, Progress, Watch
from hornbook.corpora.building.report import SplitCounts, example_lines
from hornbook.corpora.building.request import (
    PLAN,
    BuildJob,
    BuildOptions,
    describe_sources,
    plan_build,
    printable,
)
from hornbook.corpora.building.token_pipeline import LONG_TEXT
from hornbook.corpora.folders import (
    BUILD,
    MANIFEST,
    RECORD_FORMAT,
    Manifest,
    read_record,
    recorded_splits,
    write_chunk_hashes,
)
from hornbook.corpora.megatron import smallest_dtype
from hornbook.corpora.store import open_store
from hornbook.errors import DataError, StorageError, Terminated, UserError
from hornbook.storage import (
    commit_directory,
    lock_working_folder,
    make_directory,
    remove_locked_folder,
    remove_tree,
    write_file,
)
from hornbook.storage.json_files import dump_sealed
from hornbook.text.documents import format_of, list_sources
from hornbook.text.quality.policy import Filters, build_filters, find_suspicions
from hornbook.text.reading import ReadOptions
from hornbook.text.tokenizer import Tokenizer
from hornbook.wording import counted, counted_kind

__all__ = ["BuildOptions", "BuildReport", "Progress", "ReadOptions", "SplitCounts", "build_corpus"]

_UNEVEN: Final = 1.5  # times the requested share of the text, or a part of it, is reported
_READ_ONCE: Final = "an input is a stream, which can be read only once"
OnNotice = Callable[[str], None]


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
    on_progress: OnProgress = lambda progress: None,
    on_notice: OnNotice = lambda line: None,
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
        return Build(job, on_progress, on_notice).run()


class Build:
    """A running build in its locked working folder."""

    def __init__(self, job: BuildJob, on_progress: OnProgress, on_notice: OnNotice) -> None:
        self._job, self._on_progress, self._on_notice = job, on_progress, on_notice
        self._is_read = self._is_suspicious = False

    def run(self) -> BuildReport:
        """Build the corpus and commit it; after an error, print a notice about the parts that remain."""
        job = self._job
        try:
            self._prepare()
            filters = build_filters(job.options.quality)
            watch = Watch(job, self._on_progress)
            run_slices(job, watch.incomplete(), watch, self._on_notice)
            report = self.join(filters)
        except BaseException as error:
            self._clean_up(error)
            raise
        _remove(job.work)
        if note := _describe_uneven(report.splits, job.options.validation):
            self._on_notice(note)
        return report

    def join(self, filters: Filters) -> BuildReport:
        """Join the parts of all slices, check the corpus and commit it."""
        job, self._is_read = self._job, True
        parts = [part for number in range(len(job.slices)) for part in Parts(job.slice_folder(number)).finished]
        joined = join_parts(parts, job.splits, filters, job.sources, job.work)
        self._check_outcome(joined)
        values = joined.report.to_json()
        read = {name: values["tally"][name] for name in ("empty", "faults", "messages", "skipped", "line_ends")}
        read |= {"sources": len(job.sources), "dropped": dict(joined.report.dropped), "examples": values["examples"]}
        corpus = self._write_corpus(joined, read)
        if not job.has_streams and describe_sources(job.sources, job.folder) != job.request["inputs"]:
            raise DataError("an input changed during the build, so its documents may be mixed; build again")
        commit_directory(corpus, job.output)
        return BuildReport(output=job.output, already_built=False, splits=joined.splits, **read)

    def _prepare(self) -> None:
        """Write the plan, unless that of the same build is there; remove the parts of another build."""
        job = self._job
        if job.has_streams or not job.is_written():
            if _count_parts(job):
                why = _READ_ONCE if job.has_streams else "it had other inputs, options or another tokenizer"
                self._on_notice(f"removed the parts of an interrupted build in {job.work}: {why}")
            for entry in (PLAN, "slices", "corpus"):
                remove_tree(job.work / entry)
            job.write()
        parts = [part for number in range(len(job.slices)) for part in Parts(job.slice_folder(number)).finished]
        if parts:
            documents = sum(counts.documents for part in parts for counts in part.splits.values())
            done = f"{counted(len(parts), 'finished part')} of an interrupted build"
            self._on_notice(f"resuming after {done}, with {counted(documents, 'document')}")

    def _check_outcome(self, joined: Joined) -> None:
        """Raise DataError for a suspicious result; the same build with ``--allow`` resumes from here."""
        whole, report = sum(joined.splits.values(), SplitCounts()), joined.report
        tally, sources = report.tally, self._job.sources
        if not whole.documents:
            lost = [
                counted(len(sources), "file"),
                counted(tally.empty, "empty document"),
                f"{tally.faults:,} unreadable",
            ]
            lost += [counted_kind(count, name) for name, count in report.dropped.items() if count]
            lost += [f"the first: {message}" for message in tally.messages[:1]]
            raise DataError(f"the corpus would have no documents ({', '.join(lost)}); check the inputs")
        self._is_suspicious = True
        tolerance = self._job.options.tolerance
        empty_files, unused_files = joined.barren_sources(sources)
        found = find_suspicions(
            empty_files=empty_files,
            unused_files=unused_files,
            documents=tally.documents + tally.faults,
            dropped=report.dropped | {"unreadable": tally.faults},
            tokens=whole.tokens,
            num_bytes=whole.num_bytes,
            list_items=tally.totals["empty list items"],
            empty_list_items=tally.skipped["empty list items"],
            max_dropped=tolerance.max_dropped,
        )
        if "dropped" in found.keys() - set(tolerance.allow):
            for line in example_lines(report.to_json()["examples"], self._job.options.reading.format):
                self._on_notice(f"dropped: {line}")
        if refused := [message for kind, message in found.items() if kind not in tolerance.allow]:
            raise DataError(f"the corpus looks wrong: {'; '.join(refused)}")
        self._is_suspicious = False

    def _write_corpus(self, joined: Joined, read: dict[str, Any]) -> Path:
        """Write the corpus into the working folder, replacing that of an interrupted build, and return its path."""
        job, tokenizer, corpus = self._job, self._job.tokenizer, self._job.work / "corpus"
        dtype = smallest_dtype(tokenizer.vocab_size)
        remove_tree(corpus)
        for split, counts in joined.splits.items():
            folder = corpus / split
            if not counts.documents:
                raise DataError(self._describe_empty(split, sum(each.documents for each in joined.splits.values())))
            make_directory(folder)
            files = joined.write_split(split, dtype, folder)
            files["tokenizer.json"] = write_file(folder / "tokenizer.json", tokenizer.to_json().encode())
            manifest = Manifest(
                num_documents=counts.documents,
                num_tokens=counts.tokens,
                num_bytes=counts.num_bytes,
                dtype=dtype.name,
                end_of_text=job.end_of_text,
                end_of_text_id=tokenizer.end_of_text_id,
                tokenizer=tokenizer.digest,
                vocab_size=tokenizer.vocab_size,
                split=split,
                options=job.request["options"],
                sources=tuple(printable(source, job.folder) for source in job.sources),
                files=files,
                chunk_hashes=write_chunk_hashes(folder),
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
        job, num_parts = self._job, _count_parts(self._job)
        is_hopeless = self._is_read and isinstance(error, UserError) and not self._is_suspicious
        is_done = is_hopeless or lexists(job.output)  # the error came after the commit
        if not num_parts or is_done or job.has_streams:
            if num_parts and not is_done:
                self._on_notice(f"removed the unfinished build: {_READ_ONCE}")
            elif isinstance(error, Terminated | KeyboardInterrupt):
                self._on_notice("no part was finished yet, so nothing is kept")
            _remove(job.work)
        else:
            self._on_notice(
                f"kept {counted(num_parts, 'finished part')}: run the same command to resume, or remove {job.work} to "
                "discard them"
            )


def _count_parts(job: BuildJob) -> int:
    return sum(path.stem.isdigit() for path in job.work.glob("slices/*/*.json"))


def _recognize(job: BuildJob) -> BuildReport:
    """Return the report of the existing corpus. Raises UserError if this build would make another one."""
    remedy = "choose another `output`, or remove it"
    if not (job.output / BUILD).is_file():
        raise UserError(f"{job.output} exists already and is not a finished corpus; {remedy}")
    old, _ = read_record(job.output)
    if changed := [name for name, new in job.request.items() if new is None or old.get(name) != new]:
        raise UserError(f"{job.output} exists already, built with other {' and '.join(changed)}; {remedy}")
    return report_of(job.output)


def report_of(corpus: Path) -> BuildReport:
    """Return the report of a finished corpus."""
    _, read = read_record(corpus)
    splits = {}
    for split in recorded_splits(corpus):
        store = open_store(corpus, split)
        splits[split] = SplitCounts(
            documents=store.num_documents, tokens=store.num_tokens, num_bytes=store.num_bytes or 0
        )
    return BuildReport(output=corpus, already_built=True, splits=splits, **read)


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


def _remove(work: Path) -> None:
    """Remove the working folder; ignore a failing disk, since the build itself is done."""
    with suppress(StorageError):
        remove_locked_folder(work)
