"""What a build is asked for, in a form that tells whether two builds make the same corpus.

    BuildJob(sources, tokenizer, output, options).request
        {"inputs": "<hash of names, sizes, times>", "tokenizer": "<digest>", "options": {"validation": 0.02, ...}}

By it a build knows the corpus that is there already, and the parts that an interrupted one has left. The price: inputs
are compared by their times of change, as make and rsync do, and not by their bytes.
"""

import hashlib
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from hornbook.corpus.record import splits_of_share
from hornbook.errors import DataError, StorageError, UserError
from hornbook.storage.json_files import dump_json, dump_sealed, parse_json, read_json
from hornbook.text.documents import ReadOptions, list_sources
from hornbook.text.hub_datasets import is_file_name
from hornbook.text.quality.options import QualityOptions
from hornbook.text.quality.suspicion import Tolerance
from hornbook.text.input_files import STANDARD_INPUT
from hornbook.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """What to make of the documents.

    Attributes:
        validation: share of the documents, by a hash of their text, that goes to a validation split; 0 for none.
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
    """What ``build_corpus`` was asked for.

    Raises:
        UserError: the options do not fit each other, the tokenizer or the output.
    """

    sources: list[str]
    tokenizer: Tokenizer
    output: Path
    options: BuildOptions

    def __post_init__(self) -> None:
        """Refuse what cannot be done."""
        options = self.options
        if not 0 <= options.validation < 1:
            raise UserError(
                f"validation {options.validation} is no share of the documents; expected 0 or more and below 1"
            )
        if not self.output.name:
            raise UserError(f"the output {self.output} is no name for a new folder; choose another --output")
        if STANDARD_INPUT in options.quality.decontaminate:
            raise UserError("standard input cannot be an evaluation set, which is read twice; save it to a file")
        if options.end_of_text and options.sequences != "documents":
            raise UserError("sentences are stored without end-of-text tokens; leave out --end-of-text")
        if options.end_of_text and self.tokenizer.end_of_text_id is None:
            raise UserError("the tokenizer has no end-of-text token; leave out --end-of-text")

    @property
    def work(self) -> Path:
        """The working folder, on the file system of the output."""
        return self.output.with_name(f".{self.output.name}.building")

    @property
    def end_of_text(self) -> Literal["stored", "inserted", "absent"]:
        """How the store has the end-of-text token."""
        if self.tokenizer.end_of_text_id is None:
            return "absent"
        if self.options.sequences != "documents":
            return "inserted"
        return self.options.end_of_text or "stored"

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that there will be."""
        return splits_of_share(self.options.validation)

    @cached_property
    def sizes(self) -> list[int] | None:
        """The bytes of each source as it lies on the disk; None where one does not, or is a stream."""
        paths = list(map(Path, self.sources))
        return [path.stat().st_size for path in paths] if all(path.is_file() for path in paths) else None

    @cached_property
    def has_streams(self) -> bool:
        """Whether a source is a pipe or a terminal, which can be read once only, and keeps its reader waiting."""
        return any(not is_file_name(source) and not Path(source).is_file() for source in self.sources)

    @cached_property
    def request(self) -> dict[str, Any]:
        """What two builds have in common if they make the same corpus; ``inputs`` is None where nobody can tell."""
        evaluation = self.options.quality.decontaminate
        return {
            "inputs": self.describe_inputs(),
            "evaluation sets": _describe_sources(list_sources(evaluation, ReadOptions()) if evaluation else []),
            "tokenizer": self.tokenizer.digest,
            "options": _describe_options(self.options) | {"end_of_text": self.end_of_text},
        }

    def describe_inputs(self) -> str | None:
        """A hash of the names, sizes and times of change of the sources as they are now; None for a stream among them.

        Raises:
            UserError: one cannot be read.
        """
        return None if self.has_streams else _describe_sources(self.sources)

    def is_recorded_in(self, path: Path, facts: dict[str, Any]) -> bool:
        """Tell whether a file has the record of this very job, with these other ``facts``."""
        if self.request["inputs"] is None or not path.is_file():
            return False
        try:
            record = read_json(path, "the record of a build")
        except (DataError, StorageError):
            return False
        return bool(record == parse_json(self.record(facts), "the request"))

    def record(self, facts: dict[str, Any]) -> bytes:
        """The record of this job, with other ``facts``."""
        return dump_sealed(facts | {"request": self.request})


def printable(source: str) -> str:
    """What a manifest calls a source: its absolute path; bytes that are no UTF-8 are written with a backslash."""
    has_path = source != STANDARD_INPUT and not is_file_name(source)
    return (str(Path(source).absolute()) if has_path else source).encode(errors="backslashreplace").decode()


def _describe_sources(sources: list[str]) -> str:
    digest = hashlib.sha256()
    for source in sources:
        if is_file_name(source):  # it names the commit
            digest.update(f"{source}\n".encode())
            continue
        try:
            status = Path(source).stat()
        except OSError as error:
            raise UserError(f"cannot read {source}: {error.strerror}; check the path") from error
        digest.update(f"{printable(source)}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _describe_options(options: BuildOptions) -> dict[str, Any]:
    """The options that make a difference to the corpus, as JSON would hand them back."""
    values = asdict(options)
    for name in ("tolerance", "encoder", "threads"):
        del values[name]
    del values["reading"]["processes"]
    described: dict[str, Any] = parse_json(dump_json(values), "the options")
    return described
