"""Resumes: a run that stops after any step, one to three times in a row, ends in the same state, bit for bit."""

from pathlib import Path

from small_runs import KINDS, STEPS, digest, train_small, train_small_until
from trials import Part, Trial, in_child


def _prepare(shared: Path) -> None:
    for kind in KINDS:
        _, problem = in_child(lambda kind=kind: train_small(kind, shared / kind / "run"), shared / "log")  # type: ignore[misc]
        assert problem is None, f"{kind}: {problem}"


def _run(trial: Trial) -> str:
    """Stop after each step in turn; the later trials also after further ones."""
    kind = list(KINDS)[trial.number % len(KINDS)]
    first = trial.number // len(KINDS) % STEPS + 1
    between = range(first + 1, STEPS)
    later = trial.draws.sample(between, min(trial.draws.randrange(3), len(between)))
    run = trial.folder / "run"
    for step in (first, *sorted(later)):
        stopped, problem = in_child(lambda step=step: train_small_until(kind, run, step), trial.log)  # type: ignore[misc]
        assert problem is None, f"after step {step}: {problem}"
        assert stopped or step == STEPS, f"the signal after step {step} did not stop it"
    _, problem = in_child(lambda: train_small(kind, run), trial.log)
    assert problem is None, f"it did not resume: {problem}"
    assert digest(run) == digest(trial.shared / kind / "run"), (
        f"it ended in another state, stopped after {first}, {later}"
    )
    return f"{kind}, {1 + len(later)} resumes"


RESUMES = Part(
    name="resumes",
    promise="a run of any kind that SIGTERM stops after any step, up to three times in a row, ends in the same "
    "weights, moments and progress, bit for bit",
    run=_run,
    prepare=_prepare,
    trials=len(KINDS) * STEPS,
    short=len(KINDS),
)
