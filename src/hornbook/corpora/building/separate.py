"""Building a corpus by separate commands, such as the jobs of a Slurm array, that share nothing but a file system.

    build_part(..., part=(3, 64))   slices 2, 66, 130, ... into corpora/.mine.building      in any order, on any machine
    merge_parts(corpora/mine)       the corpus, when all slices are there

The first command writes the plan of all slices, so that the others build the same ones. Each slice has a lock.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os.path import lexists
from pathlib import Path
from typing import Final

from hornbook.corpora.building.builder import Build, BuildReport, OnNotice, report_of
from hornbook.corpora.building.engines import run_slices
from hornbook.corpora.building.progress import OnProgress, Watch
from hornbook.corpora.building.request import PLAN, BuildJob, BuildOptions, load_job, plan_build
from hornbook.corpora.folders import BUILD
from hornbook.errors import UserError
from hornbook.storage import lock_working_folder, remove_locked_folder
from hornbook.text.documents import list_sources
from hornbook.text.quality.policy import Tolerance, build_filters
from hornbook.text.tokenizer import Tokenizer

_WAITS: Final = 120
_WAIT_SECONDS: Final = 0.5
_SHOWN: Final = 5


@dataclass(frozen=True, kw_only=True)
class PartReport:
    """The result of a part.

    Attributes:
        output: the folder of the corpus to be.
        slices: number of slices of the inputs.
        built: number of those that this command built, or found finished.
        missing: number of slices that are still to be built, by other commands.
    """

    output: Path
    slices: int
    built: int
    missing: int


def build_part(
    inputs: Sequence[str | Path],
    tokenizer: Tokenizer,
    output: Path,
    options: BuildOptions,
    part: tuple[int, int],
    on_progress: OnProgress = lambda progress: None,
    on_notice: OnNotice = lambda line: None,
) -> PartReport:
    """Build every N-th slice of a corpus, for `merge_parts`; the arguments are those of ``build_corpus``.

    Args:
        inputs: see `hornbook.corpora.building.builder.build_corpus`.
        tokenizer: the tokenizer.
        output: the folder of the corpus to be.
        options: equal for all parts.
        part: (K, N), with K from 1 to N.
        on_progress: called with the progress of the whole build, also of what others wrote before.
        on_notice: called with notices about the inputs.

    Raises:
        UserError: an argument is wrong, the output exists, or the folder has parts of another build.
        DataError: a document is unreadable, or another version of hornbook wrote the plan.
    """
    k, n = part
    if not 1 <= k <= n:
        raise UserError(f"`part={k}/{n}` is no part; expected 1/{max(1, n)} to {max(1, n)}/{max(1, n)}")
    job = plan_build(list_sources(inputs, options.reading, on_notice), tokenizer, output.resolve(), options)
    if job.has_streams:
        raise UserError("an input is a stream, which has no parts; save it to a file, or drop `part`")
    if lexists(job.output):
        raise UserError(f"{job.output} exists already; choose another `output`, or remove it")
    _share_plan(job)
    own = range(k - 1, len(job.slices), n)
    watch = Watch(job, on_progress)
    run_slices(job, [number for number in watch.incomplete() if number in own], watch, on_notice)
    missing = Watch(job, lambda progress: None).incomplete()
    return PartReport(output=job.output, slices=len(job.slices), built=len(own), missing=len(missing))


def merge_parts(
    output: Path, tolerance: Tolerance | None = None, on_notice: OnNotice = lambda line: None
) -> BuildReport:
    """Join the parts of `build_part` into the corpus, which is that of one ``build_corpus``.

    Args:
        output: the folder of the corpus, as in each part.
        tolerance: which suspicious results are accepted.
        on_notice: called with notices about dropped documents.

    Raises:
        UserError: there are no parts, or some are missing.
        DataError: an input changed, or the result is suspicious.
    """
    output = output.resolve()
    work = output.with_name(f".{output.name}.building")
    if (output / BUILD).is_file():
        if lexists(work):  # a merge was killed before it removed the parts
            with lock_working_folder(work):
                remove_locked_folder(work)
        return report_of(output)
    if not (work / PLAN).is_file():
        raise UserError(f"{output} has no parts to merge; build them with `hornbook corpus build --part K/N`")
    job = load_job(work)
    job = replace(job, options=replace(job.options, tolerance=tolerance or Tolerance()))
    with lock_working_folder(work):
        if missing := Watch(job, lambda progress: None).incomplete():
            shown = ", ".join(map(str, missing[:_SHOWN])) + ", ..." * (len(missing) > _SHOWN)
            raise UserError(
                f"{len(missing):,} of {len(job.slices):,} slices of {output} are not finished (numbers {shown}); run "
                "their parts again (part K of N has the slices K - 1, K - 1 + N, ...), or the build without `part`, "
                "which builds the rest and merges"
            )
        report = Build(job, lambda progress: None, on_notice).join(build_filters(job.options.quality))
        remove_locked_folder(work)
    return report


def _share_plan(job: BuildJob) -> None:
    """Write the plan, or compare it with that of another part."""
    for attempt in range(_WAITS):
        if job.is_written():
            return
        try:
            with lock_working_folder(job.work):
                if not (job.work / PLAN).is_file():
                    job.write()
            break
        except UserError as error:  # another part is writing it
            if not isinstance(error.__cause__, BlockingIOError) or attempt + 1 == _WAITS:
                raise
            time.sleep(_WAIT_SECONDS)
    if not job.is_written():
        other = load_job(job.work)
        changed = [name for name, value in job.request.items() if other.request.get(name) != value]
        raise UserError(
            f"{job.work} has parts of a build with other {' and '.join(changed) or 'slices'}; use the same for all "
            "parts, or remove the folder"
        )
