"""A rank, the launcher or the store of a training on several ranks dies, hangs or fails at a random moment.

The ranks are started by ``torchrun``, by ``--processes``, by hand as under ``srun`` (rank 0 holds the store), or beside
a store on another machine, here another process. All processes of a trial are its descendants: the trial adopts
orphans, so none escapes.
"""

import ctypes
import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import raising
from small_runs import STEPS, newest_step
from tiny_layouts import words_of
from tiny_runs import digest
from trials import Part, Trial, fork, in_child
from worlds import fork_ranks, fork_store, free_port, train_on_ranks

from hornbook.cli.main import main
from hornbook.track.metrics import read

_LEAVING = 60.0
"""Seconds within which all processes have to be gone."""
_STARTING = 120.0
"""Seconds for the first step to come, on a busy machine."""
_PR_SET_CHILD_SUBREAPER = 36
_SAVES = ("--checkpoint.every-steps=5", "--checkpoint.keep-last=2", "--tracking.log-every-steps=1")
_SPARSE = ("--sparsity.linears=blocks.*", "--sparsity.density=0.25", "--sparsity.block-size=8")
KINDS: dict[str, tuple[int, list[str]]] = {
    "GPT, replicas": (4, words_of("gpt", "adamw", "data 4")),
    "GPT, shards": (4, words_of("gpt", "lamb", "shard 4")),
    "BERT, hybrid": (4, words_of("bert packed", "adamw", "hybrid 2x2")),
    "GPT, tensor x shards, Muon": (4, words_of("gpt", "muon", "tensor 2 x shard 2")),
    "BERT, sequence x replicas": (4, words_of("bert unpadded", "lamb", "sequence 2 x data 2")),
    "GPT, pipeline x shards": (4, words_of("gpt", "adamw", "1f1b 2 x shard 2")),
    "GPT in 16 bits, shards, saved behind": (
        4,
        [*words_of("gpt in bf16", "adamw", "shard 4"), "--checkpoint.background"],
    ),
    "sparse, rewired, replicas": (
        4,
        [*words_of("gpt", "adamw", "data 4"), *_SPARSE, "--sparsity.update=rigl", "--sparsity.update-interval=3"],
    ),
    "decoder, phased shards": (2, words_of("decoder", "muon", "shard 2, phased")),
    "GroupBERT, tensor": (2, words_of("groupbert", "lamb", "tensor 2, recomputed")),
}
"""How many ranks, and the words of the training."""
WAYS: tuple[tuple[str, str], ...] = (
    ("torchrun", "a rank is killed"),
    ("--processes", "a rank is killed"),
    ("by hand", "a rank is killed"),
    ("torchrun", "a rank is stopped"),
    ("--processes", "a rank is stopped"),
    ("torchrun", "a rank raises"),
    ("--processes", "a rank raises"),
    ("by hand", "a rank raises"),
    ("torchrun", "the launcher is killed"),
    ("--processes", "the launcher is killed"),
    ("by hand", "rank 0, with the store, is killed"),
    ("store elsewhere", "the store is killed"),
    ("store elsewhere", "the store is stopped"),
)
"""How ranks are started, and what happens to them."""


class _Job:
    """The processes of a training: ``store`` and ``launcher`` are 0 if there is none; ``ranks`` are known if forked."""

    def __init__(self, trial: Trial, launcher: str, kind: str, raises: tuple[int, int, str] | None) -> None:
        self.said = trial.folder / "said"
        self.run = trial.folder / "run"
        self.launcher, self.store, self.ranks, self.codes = 0, 0, list[int](), dict[int, int]()
        self.size, words = KINDS[kind]
        words = words_in(self.run, kind)
        if launcher in ("torchrun", "--processes"):
            start = ("torch.distributed.run", "--standalone", f"--nproc-per-node={self.size}", "-m", "hornbook")
            start = ("-m", *(start if launcher == "torchrun" else ("hornbook",)))
            end = () if launcher == "torchrun" else (launcher, str(self.size))
            self.launcher = _spawn((*start, *words, *end), self.said, _own_site(trial.folder, raises))
            return
        port = free_port()
        variables: dict[str, object] = {"MASTER_PORT": port}
        if launcher == "store elsewhere":
            self.store = fork_store(port, self.size, self.said)
            variables["TORCHELASTIC_USE_AGENT_STORE"] = True

        def train() -> int:
            if raises and os.environ["RANK"] == str(raises[0]):
                raising.raise_at(*raises[1:])
            return main(words)

        self.ranks = fork_ranks(self.size, train, self.said, **variables)

    def living(self) -> dict[int, str]:
        """Return the processes that are left, with their states, such as ``T`` for a stopped one; bury the others."""
        while True:
            try:
                child, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return {}
            if child == 0:
                break
            self.codes[child] = os.waitstatus_to_exitcode(status)
        parents, states = {}, {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, parent, *_ = path.read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            parents[int(path.parent.name)], states[int(path.parent.name)] = int(parent), state
        found, new = set[int](), {os.getpid()}
        while new := {child for child, parent in parents.items() if parent in new}:
            found |= new
        return {child: states[child] for child in found if states[child] != "Z"}

    def rank(self, number: int) -> int:
        """Return the process of a rank."""
        if self.ranks:
            return self.ranks[number]
        for child in self.living():
            try:
                variables = (Path("/proc") / str(child) / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"RANK=%d" % number in variables:
                return child
        raise AssertionError(f"no rank {number}; it said: {self.lines()}")

    def step(self) -> int:
        """Return the last step in the log; -1 before there is one."""
        path = self.run / "metrics.jsonl"
        return max((row["step"] for row in read(path) if row["kind"] == "train"), default=0) if path.exists() else -1

    def lines(self) -> list[str]:
        """Return what hornbook said at the end."""
        said = self.said.read_text().splitlines()
        return [line for line in said if re.match(r"hornbook: (error|stopped by)", line)]


def words_in(run: Path, kind: str) -> list[str]:
    """Return the words after ``hornbook`` for a training of ``kind`` in the folder ``run``."""
    return ["train", *KINDS[kind][1], *_SAVES, f"--output={run}", "--device=cpu", "--threads=1"]


def _spawn(words: tuple[str, ...], log: Path, variables: Mapping[str, str]) -> int:
    child = fork()
    if child == 0:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.execve(sys.executable, [sys.executable, *words], {**os.environ, **variables})
    return child


def _own_site(folder: Path, raises: tuple[int, int, str] | None) -> dict[str, str]:
    """Return the environment of processes; the rank that is to raise imports what lets it."""
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    if raises:
        rank, *where = raises
        here = str(Path(__file__).parent)
        lines = (
            "import os, sys",
            f"if os.environ.get('RANK') == '{rank}':",
            f"    sys.path.append({here!r})",
            "    import raising",
            f"    raising.raise_at(*{where!r})",
        )
        (folder / "sitecustomize.py").write_text("\n".join(lines))
    return {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def _prepare(shared: Path) -> None:
    for kind, (size, _) in KINDS.items():
        (shared / kind).mkdir()
        whole = partial(train_on_ranks, size, words_in(shared / kind / "run", kind), shared / "log")
        _, problem = in_child(whole, shared / "log")
        assert problem is None, f"{kind}: {problem}"


def _run(trial: Trial) -> str:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    launcher, what = WAYS[trial.number % len(WAYS)]
    kind = list(KINDS)[(trial.number + trial.number // len(WAYS)) % len(KINDS)]
    size = KINDS[kind][0]
    at_store = "store" in what
    rank = 0 if at_store else trial.draws.randrange(1 if launcher == "by hand" else 0, size)
    raises = None
    if "raises" in what:
        raises = rank, trial.draws.randint(1, STEPS), trial.draws.choice(list(raising.ERRORS))
    job = _Job(trial, launcher, kind, raises)
    hit = _hit(trial, job, what, rank)
    seconds = _wait_until_gone(job, hit)
    lines, first = job.lines(), job.launcher or job.ranks[-1]
    print(f"{launcher}, {what}, {kind}: rank {rank}, {raises}, {seconds:.1f} s, {job.codes}, {lines}", flush=True)
    has_failed = job.codes[first] != 0
    assert has_failed or (job.store and job.step() == STEPS), f"exit code 0 after step {job.step()}; it said {lines}"
    assert len(lines) == has_failed, f"{len(lines)} lines: {lines}"  # the last seconds of a run need no store
    newest_step(job.run)
    _, problem = in_child(lambda: train_on_ranks(size, words_in(job.run, kind), trial.log), trial.log)
    assert problem is None, f"it did not start again: {problem}"
    assert digest(trial.folder, STEPS) == digest(trial.shared / kind, STEPS), "it ended in another state"
    return f"{launcher}: {what}, {kind}, {seconds:.0f} s"


def _hit(trial: Trial, job: _Job, what: str, rank: int) -> int:
    """Wait for a random moment after the first ranks have met, and send a signal; return the process that gets it.

    The process that raises an exception needs none.
    """
    step, until = trial.draws.randint(0, STEPS - 2), time.monotonic() + _STARTING
    while job.step() < step and job.living() and "raises" not in what:
        assert time.monotonic() < until, f"step {step} does not come; it said {job.said.read_text()[-500:]}"
        time.sleep(0.005)
    if "raises" in what:
        while not job.lines():
            assert time.monotonic() < until, f"no exception; it said {job.said.read_text()[-500:]}"
            time.sleep(0.05)
        return job.ranks[rank] if job.ranks else 0
    time.sleep(trial.draws.uniform(0, 0.1))
    hit = job.store if job.store else job.launcher if "launcher" in what else job.rank(rank)
    os.kill(hit, signal.SIGSTOP if "stopped" in what else signal.SIGKILL)
    return hit


def _wait_until_gone(job: _Job, hit: int) -> float:
    """Wait until all processes are gone, but for a stopped one that nobody watches; return the seconds it took.

    A training whose store hangs goes on to its end, and the seconds count from its last step.
    """
    start, step = time.monotonic(), job.step()
    while left := {
        child: state for child, state in job.living().items() if job.launcher or child not in (hit, job.store)
    }:
        if hit == job.store and job.step() > step:
            start, step = time.monotonic(), job.step()
        assert time.monotonic() < start + _LEAVING, f"after {_LEAVING:.0f} s, there are {left}; it said {job.lines()}"
        time.sleep(0.05)
    seconds = time.monotonic() - start
    if job.store not in (0, *job.codes):  # a stopped one
        os.kill(job.store, signal.SIGKILL)
    while not {job.launcher or job.ranks[-1]} <= job.codes.keys():  # it has just ended
        job.living()
    return seconds


RANKS = Part(
    name="ranks",
    promise="if a rank, the launcher or the store of a training on up to four ranks is killed, stopped or fails, all "
    "processes are gone within 60 s with one line, and the next start ends in the state of a run that nobody disturbed",
    run=_run,
    prepare=_prepare,
    trials=70,
    short=0,
)
