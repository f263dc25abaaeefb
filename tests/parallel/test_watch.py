"""A rank that is lost is noticed and named by one line, the others leave, and a restart finishes the run."""

import contextlib
import fcntl
import hashlib
import os
import pty
import re
import socket
import subprocess
import sys
import termios
import threading
import time

import pytest
from ranks import TORCHRUN, environment
from torch._C._distributed_c10d import TCPStore

from hornbook.parallel import watch
from hornbook.track.metrics import read

RECIPE = """
[model]
num_layers = 1
hidden_size = 16
num_heads = 2
vocab_size = 70
max_positions = 8
residual_dropout = 0.1
[data]
synthetic = true
[training]
steps = 8
global_batch_size = 4
micro_batch_size = 1
[checkpoint]
every_steps = 3
[tracking]
log_every_steps = 1
"""
LAUNCHERS = {
    "torchrun": lambda ranks, restarts: [*TORCHRUN, str(ranks), "--max-restarts", str(restarts), "-m", "hornbook"],
    "processes": lambda ranks, restarts: ["-m", "hornbook"],
}


def prepare(folder, condition):
    """Write the recipe and what patches each rank; return the words of the training."""
    folder.mkdir(exist_ok=True)
    (folder / "tiny.toml").write_text(RECIPE)
    (folder / "sitecustomize.py").write_text(
        f"import os\nif {condition}:\n    import lost_rank\n"
        f"    lost_rank.patch(os.environ['HORNBOOK_TEST_LOSE'], {str(folder / 'lost')!r})\n"
    )
    return ["train", str(folder / "tiny.toml"), "--output", str(folder / "run"), "--device", "cpu", "--threads", "1"]


def run_losing(folder, launcher, how, *, restarts=0, ranks=2):
    """Train on ranks, one of which is lost after step 5 of the first start.

    Return the exit code, the errors and, where one is lost, the seconds from then to the end.
    """
    words = prepare(folder, f"'RANK' in os.environ or {launcher == 'processes'}")
    if launcher == "processes":
        words += ["--processes", str(ranks), "--max-restarts", str(restarts)]
    command = [sys.executable, *LAUNCHERS[launcher](ranks, restarts), *words]
    done = subprocess.run(
        command,
        env=environment(folder, HORNBOOK_TEST_LOSE=how),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    seconds = time.time() - (folder / "lost").stat().st_mtime if (folder / "lost").exists() else None
    return done.returncode, done.stderr, seconds


def ours(stderr):
    return [line.removeprefix("hornbook: error: ") for line in stderr.splitlines() if "hornbook: error" in line]


def weights(folder):
    path = folder / "run" / "checkpoints" / "step-00000008"
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(path.glob("*.safetensors"))]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_restart_ends_in_the_state_of_an_undisturbed_run(tmp_path, launcher):
    assert run_losing(tmp_path / "whole", launcher, "never")[0] == 0
    for how in ("kill", "stop"):
        code, stderr, _ = run_losing(tmp_path / how, launcher, how, restarts=1)
        assert code == 0, stderr
        (line,) = ours(stderr)
        assert line.startswith("lost rank 1 of 2: ") and line.endswith("to resume from the last checkpoint")
        assert "gloo" not in stderr
        rows = read(tmp_path / how / "run" / "metrics.jsonl")
        assert [row["step"] for row in rows if row["kind"] == "train"] == [*range(1, 9)]
        assert len(weights(tmp_path / how)) == 2 and weights(tmp_path / how) == weights(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("kill", 1, "lost rank 1 of 4: "),
        ("stop", 1, "lost rank 1 of 4: no sign of life"),
        ("fail", 2, "rank 1 of 4: cannot read the data"),
        ("bug", 1, "rank 1 of 4: ZeroDivisionError: no such number"),
    ],
)
def test_all_ranks_leave_with_one_line_that_names_the_one(tmp_path, launcher, how, code, said):
    status, stderr, seconds = run_losing(tmp_path, launcher, how, ranks=4)
    assert status == (code if launcher == "processes" else 1), stderr
    (line,) = ours(stderr)
    assert line.startswith(said)
    assert seconds < 60


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_run_whose_launcher_dies_saves_and_stops(tmp_path, launcher):
    code, _, _ = run_losing(tmp_path, launcher, "orphan")
    assert code == -9
    until = time.monotonic() + 300
    checkpoints = tmp_path / "run" / "checkpoints"
    while time.monotonic() < until and len(list(checkpoints.glob("step-????????"))) < 2:
        time.sleep(0.2)
    names = sorted(path.name for path in checkpoints.iterdir())
    assert names[-1] > "step-00000003"


@pytest.mark.slow
def test_an_interrupt_reaches_all_ranks_once(tmp_path):
    """As Ctrl-C on a terminal does, which only the launcher gets."""
    code, stderr, _ = run_losing(tmp_path, "processes", "interrupt")
    assert code == 75, stderr
    assert stderr.count("hornbook: stopped by SIGINT; step ") == 1 and not ours(stderr)
    assert run_losing(tmp_path, "processes", "never")[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "code"), [("processes", 75), ("torchrun", 1)])
def test_control_c_on_a_terminal_stops_all_ranks_after_the_same_step(tmp_path, launcher, code):
    """The terminal interrupts what it started, and that is the launcher alone."""
    words = prepare(tmp_path, f"'RANK' in os.environ or {launcher == 'processes'}")
    command = [sys.executable, *LAUNCHERS[launcher](2, 0), *words]
    ours_end, theirs = pty.openpty()
    process = subprocess.Popen(
        [*command, "--processes", "2"] if launcher == "processes" else command,
        env=environment(tmp_path, HORNBOOK_TEST_LOSE="wait", NO_COLOR="1"),
        **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    written, pressed = "", False
    with contextlib.suppress(OSError):  # the other side is closed
        while text := os.read(ours_end, 65536).decode(errors="replace"):
            written += text
            if not pressed and re.search(r"step 4/8 .*\n", written):
                os.write(ours_end, b"\x03")
                pressed = True
    os.close(ours_end)
    assert process.wait(timeout=60) == code, written
    assert pressed and written.count("hornbook: stopped by SIGINT; step ") == 1, written
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert "step-00000003" < names[-1] < "step-00000008"


def by_hand(port):
    """Four ranks that nothing starts together, as under ``srun python``: the store lies in rank 0."""
    for rank in range(4):
        variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 4, "TORCHELASTIC_RESTART_COUNT": 0}
        yield [], variables | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def two_machines(port):
    """One rank beside the store, and two with a launcher of their own."""
    for number in range(2):
        where = ["--nnodes=2", f"--node-rank={number}", "--master-addr=127.0.0.1", f"--master-port={port}"]
        yield ["-m", "torch.distributed.run", "--nproc-per-node=2", *where], {}


def run_without_one_launcher(folder, starts, how, *more):
    """Train with ranks that nothing starts together; return the exit codes, errors, and seconds from first to last."""
    words = prepare(folder, "'RANK' in os.environ")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for number, (launcher, variables) in enumerate(starts(port)):
        own = {name: str(value) for name, value in variables.items()} | {"HORNBOOK_TEST_LOSE": how}
        with (folder / f"{number}.txt").open("w") as errors:
            command = [sys.executable, *launcher, "-m", "hornbook", *words, *more]
            processes.append(subprocess.Popen(command, env=environment(folder, **own), stderr=errors))
    try:
        until, ends = time.monotonic() + 500, []
        while len(ends) < len(processes) and time.monotonic() < until:
            ended = sum(process.poll() is not None for process in processes)
            ends += [time.monotonic()] * (ended - len(ends))
            time.sleep(0.02)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    said = [line for number in range(len(processes)) for line in ours((folder / f"{number}.txt").read_text())]
    return [process.returncode for process in processes], said, ends[-1] - ends[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("starts", "how", "lost"),
    [(by_hand, "host", "rank 0 of 4"), (two_machines, "node", "the launcher")],
)
def test_ranks_without_a_store_exit_with_one_line(tmp_path, starts, how, lost):
    """It is gone with the rank or with the machine that held it."""
    codes, said, seconds = run_without_one_launcher(tmp_path, starts, how)
    assert codes == [-9] + [1] * (len(codes) - 1) and seconds < 60
    (line,) = said
    where = line.removeprefix(f"lost {lost} at 127.0.0.1:").lstrip("0123456789")
    assert where.startswith(", where all ranks meet: no answer; the others stop: "), line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "codes", "said"),
    [
        ("kill", [1, -9, 1, 1], "lost rank 1 of 4: no sign of life; "),
        ("fail", [2] * 4, "rank 1 of 4: cannot read the data"),
        ("first", [2] * 4, "rank 0 of 4: cannot read the data"),
    ],
)
def test_the_rank_with_the_store_leaves_after_the_others(tmp_path, how, codes, said):
    """So that each finds the reason there, and none says that the store is lost."""
    layout = ("--parallel.data-parallel=hybrid", "--parallel.shard-size=2")  # not all wait for the same ranks
    found, lines, seconds = run_without_one_launcher(tmp_path, by_hand, how, *layout)
    (line,) = lines
    assert line.startswith(said) and found == codes and seconds < 60


def test_a_rank_leaves_though_its_store_hangs(monkeypatch):
    hangs, counted = threading.Event(), []
    monkeypatch.setattr(watch, "_SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(watch.Watch, "_run", lambda self: hangs.wait())
    monkeypatch.setattr(watch.Watch, "_count", lambda self, *counts: counted.append(counts))
    own = watch.Watch(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False), 0, 2)
    counted.clear()
    own.end()
    hangs.set()
    assert not counted


def test_a_single_rank_with_the_store_waits_for_nobody(monkeypatch):
    """As ``srun --ntasks 1`` starts it: the run had ended well, but its end was a ValueError."""
    monkeypatch.setattr(watch.Watch, "_run", lambda self: None)
    own = watch.Watch(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False), 0, 1)
    own.end()
    own.see_off()
