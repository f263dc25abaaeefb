"""What a build is asked for, in a form that tells whether two builds make the same corpus.

    plan_build(sources, tokenizer, output, options).request
        {"inputs": "<hash of names, sizes, times>", "tokenizer": "<digest>", "options": {"validation": 0.02, ...}}

By it a build recognizes the corpus that is there already, and the parts that an interrupted build has left. Inputs are
compared by their modification times, as make and rsync do, and not by their bytes.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from hornbook.corpora.store_manifest import splits_of_share
from hornbook.errors import UserError
from hornbook.storage.json_files import dump_json, parse_json
from hornbook.text.documents import list_sources
from hornbook.text.hub_datasets import is_file_name
from hornbook.text.quality.policy import QualityOptions, Tolerance
from hornbook.text.reading import HUB_SCHEME, STANDARD_INPUT, ReadOptions
from hornbook.text.tokenizer import Tokenizer
from hornbook.wording import as_text


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """What to make of the documents.

    Attributes:
        validation: share of the documents, by a hash of their text, that goes to a validation split; 0 for none.
        validation_tail: share of each long text, at its end, that goes to a validation split in place of whole
            documents, see `hornbook.corpora.build.token_pipeline.divide_tail`; at most 0.25, and 0 for none.
        end_of_text: ``"stored"``: each document ends with the end-of-text token in the store, as Megatron's
            ``--append-eod`` does; ``"inserted"``: readers put it in; None: stored, or inserted where sequences are
            parts of documents; absent where there is no such token.
        sequences: ``"documents"``: a sequence is a whole document, as loaders for GPT expect it; ``"sentences"``: one
            of its sentences, as BERT's do; ``"lines"``: a line, of text that has a sentence a line.
        language: of the sentences, a code such as ``"en"``.
        encoder: ``"auto"``: tiktoken makes the tokens of a large input if it is installed and makes the same ones (see
            `hornbook.text.accelerate`); ``"tokenizers"``: it does not.
        threads: of tiktoken.
        reading: how to read the documents.
        quality: which of them stay.
        tolerance: which outcome is acceptable.
    """

    validation: float = 0.0
    validation_tail: float = 0.0
    end_of_text: Literal["stored", "inserted"] | None = None
    sequences: Literal["documents", "sentences", "lines"] = "documents"
    language: str = "en"
    encoder: Literal["auto", "tokenizers"] = "auto"
    threads: int = 1
    reading: ReadOptions = field(default_factory=ReadOptions)
    quality: QualityOptions = field(default_factory=QualityOptions)
    tolerance: Tolerance = field(default_factory=Tolerance)


@dataclass(frozen=True, kw_only=True)
class BuildJob:
    """A build that can be done, as the inputs are when it is planned.

    Attributes:
        sources, tokenizer, output, options: as given to ``plan_build``.
        work: the working folder, on the file system of the output.
        splits: the splits that there will be.
        end_of_text: how the store has the end-of-text token.
        sizes: the bytes of each source on the disk; None if one is not a file there.
        has_streams: whether a source is a pipe or a terminal, which can be read only once and may block its reader.
        request: what two builds have in common if they make the same corpus; ``inputs`` is None with a stream.
    """

    sources: list[str]
    tokenizer: Tokenizer
    output: Path
    options: BuildOptions
    work: Path
    splits: tuple[str, ...]
    end_of_text: Literal["stored", "inserted", "absent"]
    sizes: list[int] | None
    has_streams: bool
    request: dict[str, Any]


def plan_build(sources: list[str], tokenizer: Tokenizer, output: Path, options: BuildOptions) -> BuildJob:
    """Describe the build. Raises UserError if options, tokenizer and output do not fit, or an input cannot be read."""
    if not 0 <= options.validation < 1:
        raise UserError(f"validation {options.validation} is no share of the documents; expected 0 or more and below 1")
    if not 0 <= options.validation_tail <= 0.25:
        raise UserError(f"validation tail {options.validation_tail:g} is no share of a text; expected 0 to 0.25")
    if options.validation and options.validation_tail:
        raise UserError("--validation holds out documents and --validation-tail ends of documents; choose one of them")
    if not output.name:
        raise UserError(f"the output {output} is no name for a new folder; choose another --output")
    if STANDARD_INPUT in options.quality.decontaminate:
        raise UserError("standard input cannot be an evaluation set, which is read twice; save it to a file")
    if options.end_of_text and options.sequences != "documents":
        raise UserError("sentences are stored without end-of-text tokens; leave out --end-of-text")
    if options.end_of_text and tokenizer.end_of_text_id is None:
        raise UserError("the tokenizer has no end-of-text token; leave out --end-of-text")
    end_of_text = options.end_of_text or ("stored" if options.sequences == "documents" else "inserted")
    local = [Path(source) for source in sources if not _is_on_hub(source)]
    are_files = [path.is_file() for path in local]
    evaluation = options.quality.decontaminate
    shaping = asdict(options)  # the options that make a difference to the corpus
    for name in ("tolerance", "encoder", "threads"):
        del shaping[name]
    del shaping["reading"]["processes"]
    shaping["end_of_text"] = "absent" if tokenizer.end_of_text_id is None else end_of_text
    return BuildJob(
        sources=sources,
        tokenizer=tokenizer,
        output=output,
        options=options,
        work=output.with_name(f".{output.name}.building"),
        splits=splits_of_share(options.validation or options.validation_tail),
        end_of_text=shaping["end_of_text"],
        sizes=[path.stat().st_size for path in local] if all(are_files) and len(local) == len(sources) else None,
        has_streams=not all(are_files),
        request={
            "inputs": describe_sources(sources) if all(are_files) else None,
            "evaluation sets": describe_sources(list_sources(evaluation, ReadOptions()) if evaluation else []),
            "tokenizer": tokenizer.digest,
            "options": parse_json(dump_json(shaping), "the options"),  # tuples as lists, as a reader gets them
        },
    )


def describe_sources(sources: Sequence[str]) -> str:
    """Hash the names, sizes and modification times of sources; on the hub, the commit. Raises UserError."""
    digest = hashlib.sha256()
    for source in sources:
        facts = ""
        if not _is_on_hub(source):
            try:
                status = Path(source).stat()
            except OSError as error:
                raise UserError(f"cannot read {source}: {error.strerror}; check the path") from error
            facts = f"\0{status.st_size}\0{status.st_mtime_ns}"
        digest.update(f"{printable(source)}{facts}\n".encode())
    return digest.hexdigest()


def printable(source: str) -> str:
    """Return a source's absolute path, or its name on the hub; bytes that are no UTF-8 are written with a backslash."""
    has_path = source != STANDARD_INPUT and not _is_on_hub(source)
    return as_text(str(Path(source).absolute()) if has_path else source)


def _is_on_hub(source: str) -> bool:
    return source.startswith(HUB_SCHEME) and is_file_name(source)
