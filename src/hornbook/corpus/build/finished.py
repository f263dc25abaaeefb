"""What a build writes last into a corpus, a manifest for each store and ``build.json`` for the whole, and its report.

By the request in ``build.json`` a build knows whether the corpus that is there already is the one that it would make.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hornbook.corpus.store_manifest import MANIFEST, Manifest
from hornbook.corpus.megatron import smallest_dtype
from hornbook.corpus.build.parts import SplitCounts
from hornbook.corpus.build.token_pipeline import Reading
from hornbook.corpus.record import BUILD, RECORD_FORMAT, read_record
from hornbook.corpus.build.request import BuildJob, printable
from hornbook.corpus.store import open_store
from hornbook.errors import UserError
from hornbook.storage import Written, write_file


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
        dropped: documents that a filter dropped, by its name.
    """

    output: Path
    already_built: bool
    splits: dict[str, SplitCounts]
    sources: int
    empty: int
    faults: int
    messages: list[str]
    skipped: dict[str, int]
    dropped: dict[str, int]


def facts_of(job: BuildJob, reading: Reading) -> dict[str, Any]:
    """What ``build.json`` says of the reading."""
    values = reading.to_json()
    kept = ("empty", "faults", "messages", "skipped")
    return {"sources": len(job.sources), "dropped": dict(reading.dropped)} | {
        name: values["tally"][name] for name in kept
    }


def finish_store(job: BuildJob, folder: Path, files: dict[str, Written], counts: SplitCounts) -> None:
    """Add tokenizer and manifest to a store whose tokens are there.

    Raises:
        StorageError: a file cannot be written.
    """
    tokenizer = write_file(folder / "tokenizer.json", job.tokenizer.to_json().encode())
    manifest = Manifest(
        num_documents=counts.documents,
        num_tokens=counts.tokens,
        num_bytes=counts.num_bytes,
        dtype=smallest_dtype(job.tokenizer.vocab_size).name,
        end_of_text=job.end_of_text,
        end_of_text_id=None if job.end_of_text == "absent" else job.tokenizer.end_of_text_id,
        tokenizer=job.tokenizer.digest,
        vocab_size=job.tokenizer.vocab_size,
        split=folder.name,
        options=job.request["options"],
        sources=tuple(map(printable, job.sources)),
        files=files | {"tokenizer.json": tokenizer},
        sequences="documents" if job.options.sequences == "documents" else "sentences",
    )
    write_file(folder / MANIFEST, manifest.to_bytes())


def write_record(job: BuildJob, corpus: Path, facts: dict[str, Any]) -> None:
    """Write ``build.json``.

    Raises:
        StorageError: it cannot be written.
    """
    write_file(corpus / BUILD, job.record(RECORD_FORMAT | {"read": facts}))


def recognize(job: BuildJob) -> BuildReport:
    """Report on the corpus that is there already, if it is what this build would make.

    Raises:
        UserError: it is not.
        DataError: it is damaged.
    """
    remedy = "choose another --output, or remove it"
    if not (job.output / BUILD).is_file():
        raise UserError(f"{job.output} exists already and is no finished corpus; {remedy}")
    old, read = read_record(job.output)
    if changed := [name for name, new in job.request.items() if new is None or old.get(name) != new]:
        raise UserError(f"{job.output} exists already and was built from other {' and '.join(changed)}; {remedy}")
    splits = {}
    for split in job.splits:
        store = open_store(job.output, split)
        splits[split] = SplitCounts(
            documents=store.num_documents, tokens=store.num_tokens, num_bytes=store.num_bytes or 0
        )
    return BuildReport(output=job.output, already_built=True, splits=splits, **read)
