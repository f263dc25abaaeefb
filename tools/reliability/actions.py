"""Actions that write, for the parts that interrupt them, and what may be there afterwards: old or new, but whole."""

import hashlib
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from tiny_checkpoints import assert_sound, contents, saved

import hornbook
from hornbook.checkpoint import list_checkpoints, prune, save
from hornbook.storage.files import replace_file


@dataclass(frozen=True, kw_only=True)
class Action:
    """Something that writes.

    Attributes:
        begin: makes the state before it, in an empty folder.
        act: changes the folder; may be repeated.
        check: raises AssertionError unless the folder has the old state or the new one, and a repetition the new one.
    """

    begin: Callable[[Path], None]
    act: Callable[[Path], None]
    check: Callable[[Path], None]


def assert_whole(folder: Path, allowed: Collection[tuple[int, ...]]) -> None:
    """Raise AssertionError unless the checkpoints are those of ``allowed`` steps, with the contents of `contents`."""
    steps = tuple(info.step or 0 for info in list_checkpoints(folder))
    assert steps in allowed, f"there are checkpoints of steps {steps}; expected one of {sorted(allowed)}"
    assert_sound(folder, *steps)


def _check_save(folder: Path) -> None:
    assert_whole(folder, [(5,), (5, 10)])
    saved(folder, 10)
    assert_whole(folder, [(5, 10)])


def _first_save(folder: Path) -> None:
    """Save into folders that are not there yet."""
    saved(folder / "run" / "checkpoints", 5)


def _check_first_save(folder: Path) -> None:
    if (folder / "run" / "checkpoints").exists():
        assert_whole(folder / "run" / "checkpoints", [(), (5,)])
    _first_save(folder)
    assert_whole(folder / "run" / "checkpoints", [(5,)])


def _prune(folder: Path) -> None:
    prune(folder, keep_last=1, keep=[10])


def _check_prune(folder: Path) -> None:
    assert_whole(folder, [(5, 10, 15, 20), (10, 15, 20), (5, 10, 20), (10, 20)])
    _prune(folder)
    assert_whole(folder, [(10, 20)])


def _save_and_prune(folder: Path) -> None:
    """Save as a run with ``keep_last = 1`` does: the only older checkpoint goes once the new one is committed."""
    saved(folder, 10)
    prune(folder, keep_last=1)


def _check_save_and_prune(folder: Path) -> None:
    assert_whole(folder, [(5,), (5, 10), (10,)])
    _save_and_prune(folder)
    assert_whole(folder, [(10,)])


def _save_again(folder: Path) -> None:
    """Replace a damaged checkpoint."""
    save(folder, contents(10))


def _begin_save_again(folder: Path) -> None:
    saved(folder, 5, 10)
    os.truncate(folder / "step-00000010" / "model-00000.safetensors", 100)


def _check_save_again(folder: Path) -> None:
    sound = [info.step for info in list_checkpoints(folder) if not info.problems]
    assert 5 in sound, f"checkpoints {sound} are intact; 5 was"
    _save_again(folder)
    assert_whole(folder, [(5, 10)])


_OLD, _NEW = b"old " * 3000, b"new! " * 5000


def _replace(folder: Path, data: bytes) -> None:
    replace_file(folder / "file.json", data)


def _check_replace(folder: Path) -> None:
    assert (folder / "file.json").read_bytes() in (_OLD, _NEW), "the file is neither the old nor the new one"
    _replace(folder, _NEW)
    assert [path.name for path in folder.iterdir()] == ["file.json"], "temporary files are left"


def _begin_build(folder: Path) -> None:
    (folder / "texts").mkdir()
    for number in range(60):
        text = f"story {number}: " + "the cat sat on the mat, " * (number % 7)
        (folder / "texts" / f"{number:02d}.txt").write_text(text)
    hornbook.train_tokenizer(folder / "texts", vocab_size=300, output=folder / "tokenizer")


def _build(folder: Path) -> None:
    for file in (folder / "texts").iterdir():  # a build remembers the times of its inputs
        os.utime(file, (0, 0))
    hornbook.build_corpus(folder / "texts", folder / "tokenizer", output=folder / "corpus", validation=0.1)


def _check_build(folder: Path) -> None:
    before = hashes(folder / "corpus")
    _build(folder)
    after = hashes(folder / "corpus")
    assert before in ({}, after), "a corpus was there, but not whole"
    hornbook.corpus(folder / "corpus")
    left = sorted(path.name for path in folder.iterdir())
    assert left == ["corpus", "texts", "tokenizer"], f"left behind: {left}"


def hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file below a folder, by its path in there."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


ACTIONS = {
    "first save": Action(begin=lambda folder: None, act=_first_save, check=_check_first_save),
    "save": Action(begin=lambda folder: saved(folder, 5), act=lambda folder: saved(folder, 10), check=_check_save),
    "save again": Action(begin=_begin_save_again, act=_save_again, check=_check_save_again),
    "save and prune": Action(begin=lambda folder: saved(folder, 5), act=_save_and_prune, check=_check_save_and_prune),
    "prune": Action(begin=lambda folder: saved(folder, 5, 10, 15, 20), act=_prune, check=_check_prune),
    "replace": Action(
        begin=lambda folder: _replace(folder, _OLD),
        act=lambda folder: _replace(folder, _NEW),
        check=_check_replace,
    ),
    "corpus build": Action(begin=_begin_build, act=_build, check=_check_build),
}
"""By name."""
