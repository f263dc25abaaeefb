"""Time corpus builds, from a JSONL file to tokens on disk, alone or compared with a peer.

    hornbook                    corpus build, read -> tokenize -> write, two passes over the tokens
    hornbook (tokenizers)       the same without tiktoken
    datasets                    load_dataset("json"), then map(batched=True, num_proc=N): JSON -> Arrow -> Arrow

Every round is a new process with the same cores, tokenizer and text; imports are not timed. The cost: each round writes
and deletes all of its output.
"""

import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hornbook.errors import UserError
from hornbook.storage import open_text_source
from hornbook.text.readers.jsonl import Remedies, read_objects
from hornbook.text.reading import ReadOptions

_TEXTS_PER_CALL: Final = 1000


@dataclass(frozen=True, kw_only=True)
class CorpusJob:
    """The corpus to build.

    Attributes:
        source: a JSONL file.
        field: its field with the text.
        tokenizer: folder or file of a tokenizer.
        threads: number of threads, or processes.
    """

    source: Path
    field: str
    tokenizer: str
    threads: int


@dataclass(frozen=True, kw_only=True)
class CorpusSpeed:
    """The speed of the fastest round.

    Attributes:
        seconds: of the round.
        tokens: of the corpus, without end-of-text tokens.
        megabytes_per_second: of the source file, in millions of bytes.
        tokens_per_second: of the corpus.
    """

    seconds: float
    tokens: int
    megabytes_per_second: float
    tokens_per_second: float


Contender = Callable[[CorpusJob, Path], tuple[float, int]]
"""Builds the corpus in an empty folder; returns seconds and tokens."""


def measure_corpus(contenders: dict[str, Contender], job: CorpusJob, rounds: int) -> dict[str, CorpusSpeed]:
    """Time the contenders, alternating, ``rounds`` times; return the fastest round of each, since load only adds time.

    Raises:
        DataError: a line of the source is not a JSON object; nothing is timed then.
        HornbookError: a contender failed.
    """
    advice = Remedies(not_json="only JSONL can be timed")
    with open_text_source(job.source) as stream:
        for _ in read_objects(stream, str(job.source), ReadOptions().max_line_bytes, skip_blank=True, remedies=advice):
            pass
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            found[name].append(_in_a_process(contender, job))
    size = job.source.stat().st_size / 1e6
    speeds = {}
    for name, times in found.items():
        seconds, tokens = min(times)
        speeds[name] = CorpusSpeed(
            seconds=seconds,
            tokens=tokens,
            megabytes_per_second=size / seconds,
            tokens_per_second=tokens / seconds,
        )
    return speeds


def build_with_hornbook(job: CorpusJob, folder: Path) -> tuple[float, int]:
    """Run ``hornbook corpus build``, with tiktoken if it is installed."""
    return _build(job, folder, "auto")


def build_with_tokenizers(job: CorpusJob, folder: Path) -> tuple[float, int]:
    """Run ``hornbook corpus build --encoder tokenizers``."""
    return _build(job, folder, "tokenizers")


def map_with_datasets(job: CorpusJob, folder: Path) -> tuple[float, int]:
    """Tokenize as in Hugging Face's course, but with the tokenizers library, which is faster without transformers.

    Raises:
        UserError: datasets is not installed.
    """
    try:
        import datasets
    except ImportError:
        raise UserError("datasets is not installed, so it cannot be a peer: pip install datasets") from None
    from hornbook.text.tokenizer import Tokenizer

    datasets.disable_progress_bars()
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_str(Tokenizer.load(job.tokenizer).to_json())
    tokenizer.encode_special_tokens = True

    def encode(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        encodings = tokenizer.encode_batch_fast(batch[job.field], add_special_tokens=False)
        return {"input_ids": [encoding.ids for encoding in encodings]}

    started = time.perf_counter()
    table = datasets.load_dataset("json", data_files=str(job.source), split="train", cache_dir=str(folder))
    mapped = table.map(
        encode,
        batched=True,
        batch_size=_TEXTS_PER_CALL,
        num_proc=job.threads if job.threads > 1 else None,
        remove_columns=table.column_names,
    )
    seconds = time.perf_counter() - started
    return seconds, sum(len(ids) for batch in mapped.iter(_TEXTS_PER_CALL) for ids in batch["input_ids"])


def _build(job: CorpusJob, folder: Path, encoder: str) -> tuple[float, int]:
    from hornbook.corpora.building.builder import BuildOptions, ReadOptions, build_corpus
    from hornbook.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(job.tokenizer)
    options = BuildOptions(
        encoder="auto" if encoder == "auto" else "tokenizers",
        threads=job.threads,
        reading=ReadOptions(format="jsonl", field=job.field, keep_crlf=True),  # like the peer
    )
    started = time.perf_counter()
    report = build_corpus([job.source], tokenizer, folder / "corpus", options)
    seconds = time.perf_counter() - started
    counts = report.splits["train"]
    return seconds, counts.tokens - counts.documents * (tokenizer.end_of_text_id is not None)


def _in_a_process(contender: Contender, job: CorpusJob) -> tuple[float, int]:
    folder = Path(tempfile.mkdtemp(prefix="hornbook-bench-"))
    # one library thread in each of the peer's processes, all of them in ours
    threads = 1 if contender is map_with_datasets and job.threads > 1 else job.threads
    try:
        with ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), initializer=_start, initargs=(threads,)
        ) as executor:
            return executor.submit(contender, job, folder).result()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(threads: int) -> None:
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    os.environ["HF_DATASETS_OFFLINE"] = "1"
    sys.stdout = sys.stderr
