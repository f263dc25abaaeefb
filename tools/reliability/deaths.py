"""kill -9 at random instants of training and of other commands that write, and another start until they end.

Every second trial of a training kills the process inside a save: the process reports each save that begins through a
pipe, and is killed a random part of a save's duration later.
"""

import hashlib
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from small_runs import KINDS, SAVED_EVERY, STEPS, digest, newest_step, train_small
from trials import Part, Trial, fork, in_child

import hornbook
from hornbook.cli.main import main
from hornbook.exchange.huggingface import write_folder
from hornbook.exchange.restore import read_source
from hornbook.run.saving import Saved, Saver, Snapshot

_DEATHS = 3
"""Of a trial, before the process may come to its end."""
_TEXTS = [f"story {n}: " + "the cat sat on the mat, " * (n % 11) + f"{n * n}." for n in range(3000)]


def _write_texts(folder: Path) -> Path:
    texts = folder / "texts"
    texts.mkdir(exist_ok=True)
    for start in range(0, len(_TEXTS), 300):
        (texts / f"{start:05d}.txt").write_text("\n".join(_TEXTS[start : start + 300]))
    return texts


def _train_tokenizer(shared: Path, output: Path) -> None:
    hornbook.train_tokenizer(shared / "texts", vocab_size=400, output=output)


def _build_corpus(shared: Path, output: Path) -> None:
    hornbook.build_corpus(shared / "texts", shared / "tokenizer", output=output, validation=0.1, format="lines")


def _export(shared: Path, output: Path) -> None:
    path, contents = read_source(shared / "GPT fp32" / "run")
    write_folder(output, contents, source=path)


def _convert(shared: Path, output: Path) -> None:
    words = (
        "corpus",
        "convert",
        shared / "corpus build",
        output,
        "--split",
        "train",
        "--to",
        "tfrecord",
        "--records-per-file",
        "400",
    )
    assert main(list(map(str, words))) == 0, "corpus convert failed"


def _build_parts_and_merge(shared: Path, output: Path) -> None:
    words = ["--tokenizer", shared / "tokenizer", "--output", output, "--validation", 0.1, "--format", "lines"]
    for part in ("1/2", "2/2") if not output.exists() else ():
        built = ["corpus", "build", shared / "texts", *words, "--part", part]
        assert main(list(map(str, built))) == 0, f"part {part} failed"
    assert main(["corpus", "merge", str(output)]) == 0, "corpus merge failed"


COMMANDS: dict[str, Callable[[Path, Path], None]] = {
    "tokenizer train": _train_tokenizer,
    "corpus build": _build_corpus,
    "corpus build in parts, merge": _build_parts_and_merge,
    "checkpoint export": _export,
    "corpus convert": _convert,
}


def _prepare(shared: Path) -> None:
    """Run everything to its end, and note how long it took."""
    _write_texts(shared)
    for kind in KINDS:
        start = time.monotonic()
        _, problem = in_child(lambda kind=kind: train_small(kind, shared / kind / "run"), shared / "log")  # type: ignore[misc]
        assert problem is None, f"{kind}: {problem}"
        (shared / kind / "seconds").write_text(str(time.monotonic() - start))
    for name, command in COMMANDS.items():
        output = shared / ("tokenizer" if command is _train_tokenizer else name)
        start = time.monotonic()
        _, problem = in_child(lambda command=command, output=output: command(shared, output), shared / "log")  # type: ignore[misc]
        assert problem is None, f"{name}: {problem}"
        (shared / f"{name}.seconds").write_text(str(time.monotonic() - start))


def _run(trial: Trial) -> str:
    what = [*KINDS, *COMMANDS][trial.number % (len(KINDS) + len(COMMANDS))]
    if what in COMMANDS:
        return _kill_command(trial, what)
    return _kill_training(trial, what, in_save=trial.number // (len(KINDS) + len(COMMANDS)) % 2 == 0)


def _kill_training(trial: Trial, kind: str, *, in_save: bool) -> str:
    run, whole = trial.folder / "run", trial.shared / kind
    seconds, deaths, half_written, seen = float((whole / "seconds").read_text()), 0, 0, 0
    while deaths < _DEATHS:
        was_alive = _start_and_kill(trial, kind, run, seconds, in_save=in_save)
        half_written += any(".tmp-" in path.name for path in (run / "checkpoints").glob("*"))
        seen = newest_step(run, at_least=seen)
        if was_alive:
            deaths += 1
        elif deaths:
            break
        else:  # the machine is faster than it was
            shutil.rmtree(run)
            seconds, seen = seconds / 2, 0
    _, problem = in_child(lambda: train_small(kind, run), trial.log)
    assert problem is None, f"it did not start again: {problem}"
    assert digest(run) == digest(whole / "run"), "it ended in another state than the run that nobody killed"
    return f"{kind}, {deaths} deaths, {half_written} in a save"


def _start_and_kill(trial: Trial, kind: str, run: Path, seconds: float, *, in_save: bool) -> bool:
    """Start or resume the training, kill it, and return whether it was still alive."""
    reader, writer = os.pipe()
    child = fork()
    if child == 0:
        os.close(reader)
        _report_saves(writer)
        try:
            train_small(kind, run)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb", buffering=0) as saves:
        if in_save:
            for _ in range(trial.draws.randint(1, STEPS // SAVED_EVERY)):
                saves.read(1)
            _wait_for_half_written(run)
            time.sleep(trial.draws.uniform(0, 0.006))
        else:
            time.sleep(trial.draws.uniform(0.05, 0.8) * seconds)
        os.kill(child, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def _wait_for_half_written(run: Path) -> None:
    """Wait until a temporary folder of a checkpoint appears, or a moment if the process has ended."""
    until = time.monotonic() + 0.5
    while time.monotonic() < until and not any(".tmp-" in path.name for path in (run / "checkpoints").glob("*")):
        pass


def _report_saves(pipe: int) -> None:
    """Let this process write a byte at the beginning of each save."""
    save = Saver._save

    def save_and_report(self: Saver, snapshot: Snapshot) -> Saved:
        os.write(pipe, b"s")
        return save(self, snapshot)

    Saver._save = save_and_report  # type: ignore[method-assign]


def _kill_command(trial: Trial, name: str) -> str:
    output = trial.folder / "output"
    seconds, deaths = float((trial.shared / f"{name}.seconds").read_text()), 0
    whole = trial.shared / ("tokenizer" if name == "tokenizer train" else name)
    for _ in range(_DEATHS):
        child = fork()
        if child == 0:
            try:
                COMMANDS[name](trial.shared, output)
            finally:
                os._exit(0)
        time.sleep(trial.draws.uniform(0, 1) * seconds)
        os.kill(child, signal.SIGKILL)
        deaths += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        assert not output.exists() or _contents(output) == _contents(whole), "the output is there, but not whole"
    if not output.exists() or name.startswith("corpus build"):  # which finds its own result
        _, problem = in_child(lambda: COMMANDS[name](trial.shared, output), trial.log)
        assert problem is None, f"it did not start again: {problem}"
    assert _contents(output) == _contents(whole), "the output is another than that of the command that nobody killed"
    left = sorted(path.name for path in trial.folder.iterdir() if path.name != "output")
    assert not name.startswith("corpus build") or not left, f"left behind: {left}"
    return name


def _contents(path: Path) -> dict[str, str]:
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if file.name != "README.md"  # the card of an export, which has its date
        and not file.name.startswith(".")  # a temporary file, which the next write removes
    }


DEATHS = Part(
    name="deaths",
    promise="kill -9 loses no committed checkpoint, and the next start ends in the state of a run that nobody killed",
    run=_run,
    prepare=_prepare,
    trials=400,
    short=17,
)
