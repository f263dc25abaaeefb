"""Building slices of the inputs: a function of the plan and the slices' numbers, which any process can call.

    workshop.build_slices([3])      reads, filters and tokenizes slice 3 into .mine.building/slices/000003, or resumes

One process calls it with all slices; N processes, the jobs of a Slurm array and the tasks of a Ray cluster call it for
the slices of a plan on a common file system (`hornbook.corpora.building.engines`). Nothing else is different, so the
corpus is the same.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, closing
from functools import partial
from itertools import chain
from typing import Final

from hornbook.corpora.building.batches import Batch, read_batches
from hornbook.corpora.building.parts import Parts
from hornbook.corpora.building.report import SplitCounts
from hornbook.corpora.building.request import BuildJob
from hornbook.corpora.building.token_pipeline import TokenPlan, ahead, tokenize_batches
from hornbook.corpora.megatron import smallest_dtype
from hornbook.storage import lock_folder
from hornbook.storage.decompress import InputMeter
from hornbook.text.accelerate import accelerated
from hornbook.text.documents import read_sources
from hornbook.text.quality.policy import Filters, build_filters
from hornbook.text.reading import Tally
from hornbook.text.sentences import Splitter, sentence_splitter, split_lines

_LARGE_INPUT: Final = 4 << 20
"""Bytes of inputs for which tiktoken gains more than its comparison with tokenizers costs."""

AfterBatch = Callable[[int, InputMeter, dict[str, SplitCounts]], None]
"""Called after each batch with the slice's number, the bytes read of it so far, and the counts of the batch."""


class Workshop:
    """What one process needs for every slice of a build: filters, tokenizer and splitter of sentences.

    Args:
        job: the build.
        threads: number of threads for tokenizing.
        on_notice: called with a line if a language has no rules for sentences.

    Raises:
        UserError: a filter's option is invalid or its library is missing.
        DataError: an evaluation set is unreadable.
    """

    def __init__(self, job: BuildJob, threads: int, on_notice: Callable[[str], None] = lambda line: None) -> None:
        options = job.options
        self.job = job
        self.filters: Filters = build_filters(options.quality)
        is_large = job.sizes is None or sum(job.sizes) >= _LARGE_INPUT
        faster = accelerated(job.tokenizer, threads) if is_large and options.encoder == "auto" else None
        split_text: Splitter | None = split_lines if options.sequences == "lines" else None
        if options.sequences == "sentences":
            split_text = sentence_splitter(options.language, on_notice)
        self.plan = TokenPlan(
            encode=faster or job.tokenizer.encode_batch,
            dtype=smallest_dtype(job.tokenizer.vocab_size),
            source_numbers={source: number for number, source in enumerate(job.sources)},
            validation=options.validation,
            validation_tail=options.validation_tail,
            end_of_text_id=job.tokenizer.end_of_text_id if job.end_of_text == "stored" else None,
            split_text=split_text,
        )

    def build_slices(
        self, numbers: Iterable[int], after_batch: AfterBatch = lambda number, meter, counts: None
    ) -> None:
        """Build slices, or the rest of each, into their folders; the next one is read while one is written.

        Raises:
            UserError: another process is building one of them.
            DataError: a document is unreadable.
        """
        job, plan = self.job, self.plan
        begun: deque[tuple[int, ExitStack, Parts, InputMeter]] = deque()

        def read() -> Generator[Batch, None, None]:
            for number in numbers:
                lock = locks.enter_context(ExitStack())
                lock.enter_context(lock_folder(job.slice_folder(number)))
                parts, meter = Parts(job.slice_folder(number)), InputMeter()
                if parts.is_complete:
                    lock.close()
                    continue
                begun.append((number, lock, parts, meter))
                tally = Tally()
                documents = read_sources(
                    job.sources,
                    job.options.reading,
                    tally,
                    skip=parts.position,
                    find_fault=job.tokenizer.find_endless,
                    meter=meter,
                    within=job.slices[number],
                )
                yield from read_batches(documents, tally, self.filters, plan.source_numbers)

        with ExitStack() as locks:
            # no threads for streams: one that waits for input could not be stopped
            stages = tokenize_batches(read(), plan) if job.has_streams else ahead(tokenize_batches(ahead(read()), plan))
            with closing(stages):
                for first in stages:
                    number, lock, parts, meter = begun.popleft()
                    with lock:
                        batches = chain((first,), stages)
                        parts.write(batches, job.splits, plan.dtype, partial(after_batch, number, meter))
