"""The slices of a build, and who builds them: this process, several of this machine, or the nodes of a Ray cluster.

    workshop.build_slices([3])       reads, filters and tokenizes slice 3 into .mine.building/slices/000003, or resumes
    run_slices(job, numbers, ...)    each worker calls build_slices([number]) for every slice, in any order

Building is a function of the plan and the slices' numbers: one process calls it with all slices; N processes, the jobs
of a Slurm array and the tasks of a Ray cluster call it for the slices of a plan on a common file system. Nothing else
is different, so the corpus is the same.

Slices are found again in the working folder, which all processes share, so an engine returns nothing, and one that is
lost costs the parts that its workers had not finished. An error stops the build. It is that of the first slice that
has one, as if one process had built them in order, whichever worker met its own first.
"""

import os
import socket
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from hornbook.corpora.building.batches import Batch, read_batches
from hornbook.corpora.building.parts import Parts
from hornbook.corpora.building.progress import Watch
from hornbook.corpora.building.report import SplitCounts
from hornbook.corpora.building.request import BuildJob, load_job
from hornbook.corpora.building.token_pipeline import TokenPlan, ahead, tokenize_batches
from hornbook.corpora.megatron import smallest_dtype
from hornbook.errors import HornbookError, UserError
from hornbook.extras import require
from hornbook.storage import lock_folder
from hornbook.storage.decompress import InputMeter
from hornbook.text.accelerate import accelerated
from hornbook.text.documents import read_sources
from hornbook.text.processes import worker_pool
from hornbook.text.quality.policy import Filters, build_filters
from hornbook.text.reading import Tally
from hornbook.text.sentences import Splitter, sentence_splitter, split_lines

_LARGE_INPUT: Final = 4 << 20
"""Bytes of inputs for which tiktoken gains more than its comparison with tokenizers costs."""

AfterBatch = Callable[[int, InputMeter, dict[str, SplitCounts]], None]
"""Called after each batch with the slice's number, the bytes read of it so far, and the counts of the batch."""
_POLL_SECONDS: Final = 0.5
_QUEUED: Final = 2
"""Slices submitted per worker, so that none waits for work, and few are started after an error."""
_RETRIES: Final = 3
_CONNECT_SECONDS: Final = 10
_LOCK_SECONDS: Final = 60
_Task = TypeVar("_Task")
Poll = Callable[[Sequence[int]], None]
"""Called twice a second with the numbers of the slices that may have progressed."""


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


def run_slices(job: BuildJob, numbers: Sequence[int], watch: Watch, on_notice: Callable[[str], None]) -> None:
    """Build slices by the engine that the options choose.

    Args:
        job: the build; its plan is in the working folder.
        numbers: the slices.
        watch: reports the progress.
        on_notice: called with a line if a language has no rules for sentences.

    Raises:
        HornbookError: a worker was killed or lost, or the error of a slice.
    """
    options = job.options
    if not numbers:
        return
    if options.workers == 1 and options.ray is None:
        Workshop(job, options.threads, on_notice).build_slices(numbers, watch.after_batch)
        return
    if options.sequences == "sentences":
        sentence_splitter(options.language, on_notice)  # its notice, and its errors before any worker's
    if options.ray:
        _run_on_ray(job, numbers, watch.poll)
    else:
        _run_in_processes(job, numbers, watch.poll)


def _run_in_processes(job: BuildJob, numbers: Sequence[int], poll: Poll) -> None:
    workers = min(job.options.workers, len(numbers))
    threads = max(1, job.options.threads // workers)
    with worker_pool(workers, {"RAYON_NUM_THREADS": str(threads)}) as executor:
        try:
            _run_in_order(
                numbers,
                lambda: workers,
                lambda number: executor.submit(_build_slice, str(job.work), number, threads, job.options.encoder),
                lambda futures: wait(futures, _POLL_SECONDS, FIRST_COMPLETED)[0],
                lambda future, _: future.result(),
                poll,
            )
        except BrokenProcessPool as error:
            raise HornbookError(
                "a worker was killed, probably since memory ran out; use fewer `workers`, and run the same command to "
                'resume; in your own script, call hornbook below `if __name__ == "__main__":`'
            ) from error


def _run_on_ray(job: BuildJob, numbers: Sequence[int], poll: Poll) -> None:
    """Build slices as tasks, which Ray starts again, up to three times, if their worker or node is lost."""
    ray = require("ray", extra="ray", purpose="building on a Ray cluster")
    address = str(job.options.ray)
    try:
        host, colon, port = address.rpartition("://")[2].rpartition(":")
        if colon and port.isdecimal():  # Ray itself waits for minutes
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError, OverflowError, ray.exceptions.RayError) as error:
        reason = " ".join(str(error).split())[:200]
        raise HornbookError(f"cannot reach the Ray cluster at {address}: {reason}; check `ray`, or start it") from error
    try:
        task = ray.remote(num_cpus=1, max_retries=_RETRIES)(_build_slice)
        _run_in_order(
            numbers,
            lambda: max(1, int(ray.cluster_resources().get("CPU", 1))),
            lambda number: task.remote(str(job.work), number, 1, job.options.encoder),
            lambda references: ray.wait(references, timeout=_POLL_SECONDS)[0],
            lambda reference, number: _get(ray, reference, number),
            poll,
        )
    finally:
        ray.shutdown()


def _run_in_order(
    numbers: Sequence[int],
    workers: Callable[[], int],
    submit: Callable[[int], _Task],
    wait_for_some: Callable[[list[_Task]], Iterable[_Task]],
    get: Callable[[_Task, int], None],
    poll: Poll,
) -> None:
    """Run a task for every slice, in order; after an error, wait only for the slices before, which may have another."""
    waiting, running, errors = list(reversed(numbers)), dict[_Task, int](), dict[int, HornbookError]()
    while waiting or running:
        while waiting and len(running) < _QUEUED * workers():
            number = waiting.pop()
            running[submit(number)] = number
        done = wait_for_some(list(running))
        poll(list(running.values()))
        for task in done:
            number = running.pop(task)
            try:
                get(task, number)
            except HornbookError as error:
                errors[number] = error
                waiting.clear()
        if errors and all(min(errors) < number for number in running.values()):
            raise errors[min(errors)]


def _get(ray: Any, reference: Any, number: int) -> None:
    """Raise the error of a task, if any."""
    try:
        ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, HornbookError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        reason = " ".join(str(error).split())[:200]
        raise HornbookError(
            f"slice {number} was lost {_RETRIES + 1} times, with its worker or node ({reason}); give the workers more "
            "memory, and run the same command to resume"
        ) from error


def _build_slice(work: str, number: int, threads: int, encoder: Literal["auto", "tokenizers"]) -> None:
    """Build a slice in a worker, with the options that may differ from those of the plan, which is read once."""
    os.environ.setdefault("RAYON_NUM_THREADS", str(threads))
    for remaining in reversed(range(_LOCK_SECONDS)):
        try:
            return _workshop(work, threads, encoder).build_slices([number])
        except UserError as error:  # perhaps a worker holds the lock that lost its node, and will end soon
            if not isinstance(error.__cause__, BlockingIOError) or not remaining:
                raise
            time.sleep(1)
    return None


@cache
def _workshop(work: str, threads: int, encoder: Literal["auto", "tokenizers"]) -> Workshop:
    job = load_job(Path(work))
    os.chdir(job.folder)  # relative sources
    reading = replace(job.options.reading, processes=threads)
    return Workshop(replace(job, options=replace(job.options, reading=reading, encoder=encoder)), threads)
