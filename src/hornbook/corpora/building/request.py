"""The options of a build, its slices, and the request that identifies it: equal requests give equal corpora.

    plan_build(sources, tokenizer, output, options).request
        {"inputs": "<hash of names, sizes, times>", "tokenizer": "<digest>", "options": {"validation": 0.02, ...}}

    corpora/.mine.building/plan.json, tokenizer.json      all that a process needs to build one of the slices

A build compares its request with that of an existing corpus and with that of an interrupted build's parts. Inputs are
compared by size and modification time, as in make and rsync, not by content.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import tokenizers

from hornbook.corpora.folders import splits_of_share
from hornbook.errors import DataError, UserError
from hornbook.storage import replace_file
from hornbook.storage.json_files import dump_json, parse_json, read_bytes
from hornbook.text.documents import is_remote, list_sources
from hornbook.text.hub_datasets import is_file_name
from hornbook.text.quality.policy import QualityOptions, Tolerance
from hornbook.text.reading import HUB_SCHEME, STANDARD_INPUT, CleanOptions, ReadOptions, Slice, Span
from hornbook.text.remote import identity
from hornbook.text.slices import cut_sources
from hornbook.text.tokenizer import Tokenizer
from hornbook.version import __version__
from hornbook.wording import as_text

PLAN: Final = "plan.json"
_MAX_PLAN_BYTES: Final = 1 << 30
_LAYOUT: Final = {
    "format": "parts of a hornbook corpus",
    "hornbook": __version__,
    "tokenizers": tokenizers.__version__,
}
"""The properties that must be equal in parts to be joined."""


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """The options of a build.

    Attributes:
        validation: share of the documents, chosen by a hash of their text, for a validation split; 0 for none.
        validation_tail: share of each long text, at its end, for a validation split instead of whole documents, see
            `hornbook.corpora.building.token_pipeline.divide_tail`; at most 0.25; 0 for none.
        end_of_text: ``"stored"``: the store has the end-of-text token after each document, like Megatron's
            ``--append-eod``; ``"inserted"``: readers insert it; None: stored if sequences are documents, else
            inserted. Absent if the tokenizer has no such token.
        sequences: ``"documents"``: a sequence is a whole document, as loaders for GPT expect; ``"sentences"``: a
            sentence, as loaders for BERT expect; ``"lines"``: a line, for text with one sentence per line.
        language: the code of the language for sentences, such as ``"en"``.
        workers: number of processes that build slices of the inputs; 1 uses only this process.
        ray: address of a Ray cluster that builds the slices instead, or ``"local"``; None for none.
        encoder: ``"auto"``: use tiktoken for large inputs if it is installed and gives the same tokens, see
            `hornbook.text.accelerate`; ``"tokenizers"``: always use the tokenizers library.
        threads: number of threads for tokenizing in all workers together.
        reading: how to read the documents.
        quality: filters for documents.
        tolerance: which suspicious results are accepted.
    """

    validation: float = 0.0
    validation_tail: float = 0.0
    end_of_text: Literal["stored", "inserted"] | None = None
    sequences: Literal["documents", "sentences", "lines"] = "documents"
    language: str = "en"
    workers: int = 1
    ray: str | None = None
    encoder: Literal["auto", "tokenizers"] = "auto"
    threads: int = 1
    reading: ReadOptions = field(default_factory=ReadOptions)
    quality: QualityOptions = field(default_factory=QualityOptions)
    tolerance: Tolerance = field(default_factory=Tolerance)


@dataclass(frozen=True, kw_only=True)
class BuildJob:
    """A checked build, with the state of its inputs at planning time.

    Attributes:
        sources, tokenizer, output, options: the arguments of ``plan_build``.
        folder: the folder that relative sources are relative to.
        work: the working folder, on the same file system as the output.
        slices: the parts of the sources that are built independently, in order.
        splits: the names of the splits.
        end_of_text: whether the end-of-text token is stored, inserted or absent.
        sizes: the size of each source in bytes; None if one is not a local file.
        has_streams: whether a source is a pipe or a terminal, which can be read only once and may block its reader.
        request: identifies the corpus, see the module's docstring; ``inputs`` is None with a stream.
    """

    sources: list[str]
    tokenizer: Tokenizer
    output: Path
    options: BuildOptions
    folder: Path
    work: Path
    slices: list[Slice]
    splits: tuple[str, ...]
    end_of_text: Literal["stored", "inserted", "absent"]
    sizes: list[int] | None
    has_streams: bool
    request: dict[str, Any]

    def slice_folder(self, number: int) -> Path:
        """Return the folder of the parts of a slice."""
        return self.work / "slices" / f"{number:06d}"

    def write(self) -> None:
        """Write ``plan.json`` and ``tokenizer.json`` into the working folder, for other processes."""
        replace_file(self.work / "tokenizer.json", self.tokenizer.to_json().encode())
        plan = _LAYOUT | {
            "request": self.request,
            "folder": str(self.folder),
            "output": str(self.output),
            "sources": self.sources,
            "sizes": self.sizes,
            "slices": self.slices,
            "options": asdict(replace(self.options, tolerance=Tolerance())),
        }
        replace_file(self.work / PLAN, dump_json(plan))

    def is_written(self) -> bool:
        """Return whether the working folder has the plan of the same build by the same version."""
        try:
            found = _read_plan(self.work)
        except DataError:
            return False
        same = {name: found.get(name) for name in (*_LAYOUT, "request", "slices")}
        own = _LAYOUT | {"request": self.request, "slices": self.slices}
        return bool(same == parse_json(dump_json(own), "the plan"))


def load_job(work: Path) -> BuildJob:
    """Return the build that another process planned. Raises DataError if there is none, or of another version."""
    plan = _read_plan(work)
    if found := [name for name, value in _LAYOUT.items() if plan.get(name) != value]:
        name = found[0]
        raise DataError(
            f"{work / PLAN} was written with {name} {plan.get(name)}, and this process has {_LAYOUT[name]}; use the "
            "same version everywhere"
        )
    options = plan["options"]
    reading = _frozen(options["reading"]) | {"cleaning": CleanOptions(**options["reading"]["cleaning"])}
    shaping = options | {
        "reading": ReadOptions(**reading),
        "quality": QualityOptions(**_frozen(options["quality"])),
        "tolerance": Tolerance(),
    }
    request = plan["request"]
    return BuildJob(
        sources=plan["sources"],
        tokenizer=Tokenizer.from_json(read_bytes(work / "tokenizer.json", "the tokenizer").decode()),
        output=Path(plan["output"]),
        options=BuildOptions(**shaping),
        folder=Path(plan["folder"]),
        work=work,
        slices=[Slice(first, last, None if span is None else Span(*span)) for first, last, span in plan["slices"]],
        splits=splits_of_share(options["validation"] or options["validation_tail"]),
        end_of_text=request["options"]["end_of_text"],
        sizes=plan["sizes"],
        has_streams=False,
        request=request,
    )


def _read_plan(work: Path) -> Any:
    path = work / PLAN
    return parse_json(read_bytes(path, "the plan of a build", limit=_MAX_PLAN_BYTES), f"{path}: the plan of a build")


def _frozen(values: dict[str, Any]) -> dict[str, Any]:
    """Return options with tuples for JSON's arrays."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def plan_build(sources: list[str], tokenizer: Tokenizer, output: Path, options: BuildOptions) -> BuildJob:
    """Check the options and plan the build.

    Raises:
        UserError: an option is out of range, conflicts with another or with the tokenizer, or an input is not readable.
    """
    if not 0 <= options.validation < 1:
        raise UserError(f"validation is {options.validation}; expected a share of the documents, from 0 to below 1")
    if not 0 <= options.validation_tail <= 0.25:
        raise UserError(f"validation tail is {options.validation_tail:g}; expected a share of a text, from 0 to 0.25")
    if options.validation and options.validation_tail:
        raise UserError("`validation` holds out documents and `validation_tail` ends of documents; choose one of them")
    if options.workers < 1:
        raise UserError(f"`workers={options.workers}` is no number of processes; expected 1 or more")
    if options.workers > 1 and options.ray:
        raise UserError("the nodes of `ray` build the slices, so `workers` has no effect; remove one of them")
    if not output.name:
        raise UserError(f"the output {output} cannot be a new folder; choose another `output`")
    if STANDARD_INPUT in options.quality.decontaminate:
        raise UserError("standard input cannot be an evaluation set, which is read twice; save it to a file")
    if options.end_of_text and options.sequences != "documents":
        raise UserError("sentences are stored without end-of-text tokens; remove `end_of_text`")
    if options.end_of_text and tokenizer.end_of_text_id is None:
        raise UserError("the tokenizer has no end-of-text token; remove `end_of_text`")
    end_of_text = options.end_of_text or ("stored" if options.sequences == "documents" else "inserted")
    paths = [None if _is_elsewhere(source) else Path(source) for source in sources]
    are_files = [path.is_file() for path in paths if path is not None]
    has_streams = not all(are_files)
    if has_streams and (options.workers > 1 or options.ray):
        raise UserError("an input is a stream, which only one process can read; save it to a file, or drop `workers`")
    sizes = [path.stat().st_size if path is not None and path.is_file() else None for path in paths]
    evaluation = options.quality.decontaminate
    shaping = asdict(options)  # the options that affect the corpus
    for name in ("tolerance", "encoder", "threads", "workers", "ray"):
        del shaping[name]
    del shaping["reading"]["processes"]
    if options.quality.language_from == "text":  # not in the requests of earlier versions
        del shaping["quality"]["language_from"]
    shaping["end_of_text"] = "absent" if tokenizer.end_of_text_id is None else end_of_text
    return BuildJob(
        sources=sources,
        tokenizer=tokenizer,
        output=output,
        options=options,
        folder=Path.cwd(),
        work=output.with_name(f".{output.name}.building"),
        slices=[Slice(0, len(sources))] if has_streams else cut_sources(sources, sizes, options.reading),
        splits=splits_of_share(options.validation or options.validation_tail),
        end_of_text=shaping["end_of_text"],
        sizes=None if None in sizes else [size or 0 for size in sizes],
        has_streams=has_streams,
        request={
            "inputs": None if has_streams else describe_sources(sources),
            "evaluation sets": describe_sources(list_sources(evaluation, ReadOptions()) if evaluation else []),
            "tokenizer": tokenizer.digest,
            "options": parse_json(dump_json(shaping), "the options"),  # with lists for tuples, to equal a saved request
        },
    )


def describe_sources(sources: Sequence[str], folder: Path = Path()) -> str:
    """Return a hash of the names, sizes and modification times of sources; on the hub, the name has the commit.

    Of URLs, it has the names and identities. Relative sources are below ``folder``. Raises UserError if a file is
    missing.
    """
    digest = hashlib.sha256()
    for source in sources:
        facts = f"\0{identity(source)}" if is_remote(source) else ""
        if not _is_elsewhere(source):
            try:
                status = (folder / source).stat()
            except OSError as error:
                raise UserError(f"cannot read {source}: {error.strerror}; check the path") from error
            facts = f"\0{status.st_size}\0{status.st_mtime_ns}"
        digest.update(f"{printable(source, folder)}{facts}\n".encode())
    return digest.hexdigest()


def printable(source: str, folder: Path = Path()) -> str:
    """Return a source's absolute path, URL or name on the hub, with invalid UTF-8 as backslash escapes."""
    has_path = source != STANDARD_INPUT and not _is_elsewhere(source)
    return as_text(str((folder / source).absolute()) if has_path else source)


def _is_elsewhere(source: str) -> bool:
    """Return whether a source is no path: a file of the hub, or a URL."""
    return (source.startswith(HUB_SCHEME) and is_file_name(source)) or is_remote(source)
