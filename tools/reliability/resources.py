"""Full, read-only and failing disks, little memory and few descriptors, during commands that write.

::

    a folder with a half-trained run, texts, a tokenizer ...      on a small tmpfs where the disk is to be full
    hornbook COMMAND with the limit      exit code 0, or 1 or 2 and one line; never a traceback or a signal
    what was committed before            still there and intact; no descriptor is left open
    hornbook COMMAND without the limit   exit code 0, and the result of a command that nobody limited

A trial has a mount namespace of its own, so its disks disappear with it. An errno strikes at the n-th disk operation
(`hornbook.storage.faults`), once or from then on, with n drawn from all operations of the command.
"""

import contextlib
import ctypes
import gc
import hashlib
import io
import json
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from small_runs import STEPS, digest, train_small_until
from trials import Part, Trial, in_child

import hornbook
from hornbook import checkpoint
from hornbook.cli.main import main
from hornbook.storage.faults import count_operations, inject

_HALF = STEPS // 2
COMMANDS: dict[str, tuple[str, ...]] = {
    "train": ("train", "{disk}/run", "--device", "cpu", "--threads", "1"),
    "corpus build": ("corpus", "build", "{disk}/texts", "--tokenizer", "{disk}/tokenizer", "--output", "{disk}/new"),
    "tokenizer train": ("tokenizer", "train", "{disk}/texts", "--vocab-size", "300", "--output", "{disk}/new"),
    "checkpoint export": ("checkpoint", "export", "{disk}/run", "--output", "{disk}/new"),
    "evaluate": ("evaluate", "{disk}/run", "--data", "{disk}/corpus", "--device", "cpu", "--threads", "1"),
}
_ERRORS = ("enospc", "edquot", "eio", "erofs")
Answer = tuple[int, str, list[str]]
_RUST_ABORTS = "memory allocation of "
"""What Rust's runtime prints before it aborts a process that has no memory left."""
_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000


def prepare(shared: Path) -> None:
    """Make a half-trained run, and what the commands need; run each to its end and note its result and operations."""
    before = shared / "before"
    texts = before / "texts"
    texts.mkdir(parents=True)
    for number in range(60):
        (texts / f"{number:02d}.txt").write_text(f"story {number}: " + "the cat sat on the mat, " * (number % 7 + 1))
    for file in texts.iterdir():  # a build remembers the times of its inputs
        os.utime(file, (0, 0))
    tokenizer = hornbook.train_tokenizer(texts, vocab_size=300, output=before / "tokenizer")
    hornbook.build_corpus(texts, tokenizer, output=before / "corpus", validation=0.2)
    data = (f"--data.train={before / 'corpus'}", "--data.synthetic=false", "--model.vocab-size=none")
    _, problem = in_child(lambda: train_small_until("GPT fp32", before / "run", _HALF, *data), shared / "log")
    assert problem is None, problem
    expected: dict[str, object] = {}
    for name in COMMANDS:
        disk = shared / name
        shutil.copytree(before, disk)
        (operations, said), problem = in_child(lambda name=name, disk=disk: _count(name, disk), shared / "log")  # type: ignore[misc]
        assert problem is None and not said, (name, problem, said)
        expected[name] = {"operations": operations, "result": result_of(name, disk)}
    (shared / "expected.json").write_text(json.dumps(expected))


def _count(name: str, disk: Path) -> tuple[int, str]:
    with count_operations() as operations:
        code, said, _ = run_command(name, disk)
    return len(operations), "" if code == 0 else said


def run_command(name: str, disk: Path) -> Answer:
    """Run a command; return its exit code, the end of what it said, and the descriptors that it left open."""
    words = [word.format(disk=disk) for word in COMMANDS[name]]
    before = _descriptors()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        code = main(words)
    gc.collect()  # an error and what its frames hold may refer to each other
    return code, errors.getvalue()[-4000:], sorted(_descriptors() - before)


def _descriptors() -> set[str]:
    """Return the open files of this process, but for those of libraries that stay open for good."""
    links = {}
    for entry in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names are enough
        with contextlib.suppress(OSError):
            links[entry] = os.readlink(f"/proc/self/fd/{entry}")  # noqa: PTH115
    return {f"{entry} {path}" for entry, path in links.items() if path.startswith("/") and "/proc/" not in path}


@contextmanager
def _soft_limit(which: int, value: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(which)
    resource.setrlimit(which, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(which, (soft, hard))


def _little_memory(trial: Trial, name: str, disk: Path) -> Answer:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    with _soft_limit(resource.RLIMIT_AS, used + trial.draws.randrange(1 << 20, 160 << 20)):
        return run_command(name, disk)


def _few_descriptors(trial: Trial, name: str, disk: Path) -> Answer:
    used = max(map(int, os.listdir("/proc/self/fd")))  # noqa: PTH208
    with _soft_limit(resource.RLIMIT_NOFILE, used + trial.draws.randrange(1, 16)):
        return run_command(name, disk)


def _small_files(trial: Trial, name: str, disk: Path) -> Answer:
    """Limit the size of files, as some quotas do; Python ignores SIGXFSZ."""
    with _soft_limit(resource.RLIMIT_FSIZE, trial.draws.randrange(1, 1 << 18)):
        return run_command(name, disk)


def _failing_disk(trial: Trial, name: str, disk: Path) -> Answer:
    operations = json.loads((trial.shared / "expected.json").read_text())[name]["operations"]
    kind, is_lasting = trial.draws.choice(_ERRORS), trial.draws.random() < 0.5
    with inject("any", trial.draws.randint(1, operations), kind, lasting=is_lasting):
        return run_command(name, disk)


def _short_writes(trial: Trial, name: str, disk: Path) -> Answer:
    """Let each write write only half of its bytes, as the system call may."""
    with inject("write", 1, "short-write", lasting=True):
        return run_command(name, disk)


def _full_disk(trial: Trial, name: str, disk: Path) -> Answer:
    used = _used_bytes(disk)
    _mount(disk, f"remount,size={used + trial.draws.randrange(0, 1 << 19)}")
    answer = run_command(name, disk)
    _mount(disk, f"remount,size={_LARGE}")
    return answer


def _used_bytes(disk: Path) -> int:
    status = os.statvfs(disk)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def _read_only(trial: Trial, name: str, disk: Path) -> Answer:
    _mount(disk, "remount,ro")
    answer = run_command(name, disk)
    _mount(disk, "remount,rw")
    return answer


Limit = Callable[[Trial, str, Path], Answer]
LIMITS: dict[str, Limit] = {
    "failing disk": _failing_disk,
    "full disk": _full_disk,
    "little memory": _little_memory,
    "read-only disk": _read_only,
    "few descriptors": _few_descriptors,
    "small files": _small_files,
    "short writes": _short_writes,
}
_ON_A_DISK = (_full_disk, _read_only)
_LARGE = 64 << 20


def _mount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk], check=True)


def _enter_namespace() -> None:
    """Give this process mounts of its own, which end with it; one without privileges becomes root of a namespace."""
    user, group = os.geteuid(), os.getegid()
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS | (_CLONE_NEWUSER if user else 0)):
        raise OSError(ctypes.get_errno(), "this system allows no mounts here; run as root")
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


def _run(trial: Trial) -> str:
    name = list(COMMANDS)[trial.number % len(COMMANDS)]
    limited = list(LIMITS)[trial.number // len(COMMANDS) % len(LIMITS)]
    disk = trial.folder / "disk"
    disk.mkdir()
    if LIMITS[limited] in _ON_A_DISK:
        _enter_namespace()
        _mount(disk, f"size={_LARGE}")
    shutil.copytree(trial.shared / "before", disk, dirs_exist_ok=True)
    answer, problem = in_child(lambda: LIMITS[limited](trial, name, disk), trial.log)
    if problem and limited == "little memory" and _RUST_ABORTS in trial.log.read_text():
        code = -signal.SIGABRT  # the tokenizers library ends the process
    else:
        assert problem is None, f"{name}, {limited}: {problem}"
        code, said, left = answer
        assert_one_line(code, said)
        assert not left, f"left open: {left}"
    damaged: list[str] = []
    newest = checkpoint.newest_sound(disk / "run" / "checkpoints", damaged.append)
    assert newest and newest.name >= f"step-{_HALF:08d}" and not damaged, f"lost: the newest is {newest}; {damaged}"
    if code == 0 and name not in ("train", "evaluate", "corpus build"):
        assert result_of(name, disk) == expected_of(trial, name), "it ended well with another result"
        return f"{limited}, {name}, harmless"
    answer, problem = in_child(lambda: run_command(name, disk), trial.log)
    assert problem is None and answer[0] == 0, f"without the limit: {problem or answer}"
    assert result_of(name, disk) == expected_of(trial, name), "without the limit, it ended with another result"
    return f"{limited}, {name}, exit code {code}"


def expected_of(trial: Trial, name: str) -> object:
    """Return what `result_of` a command is that nobody limited."""
    return json.loads((trial.shared / "expected.json").read_text())[name]["result"]


def assert_one_line(code: int, said: str) -> None:
    """Raise AssertionError unless a command ended well, or failed in one line that its code expects."""
    errors = [line for line in said.splitlines() if line.startswith("hornbook: error: ")]
    assert "Traceback" not in said, said
    assert code in (0, 1, 2), f"exit code {code}: {said}"
    assert len(errors) == (code != 0), f"exit code {code} with the lines {errors}"
    assert not any("--debug" in line for line in errors), f"an error that no code expects: {errors}"


def result_of(name: str, disk: Path) -> object:
    """Return what a command is to leave behind, without what a clock decides."""
    if name == "train":
        return digest(disk / "run")
    if name == "evaluate":
        return json.loads((disk / "run" / "evaluation.json").read_text())["tasks"][0]["rows"]
    return _hashes(disk / "new")


def _hashes(path: Path) -> dict[str, str]:
    """Return the hashes of a result's files, but for those with its date or the paths of its sources."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if file.name not in ("README.md", "manifest.json", "build.json") and not file.name.startswith(".")
    }


RESOURCES = Part(
    name="resources",
    promise="a full, read-only or failing disk, little memory or few descriptors end a command in one line and lose "
    "nothing; repeated without the limit, it has the result of a command that nobody limited",
    run=_run,
    prepare=prepare,
    trials=600,
    short=0,
)
