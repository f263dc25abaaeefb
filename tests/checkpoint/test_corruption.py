"""Every file of a checkpoint, damaged in every way that disks and people know: always caught, never a false alarm."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny_checkpoints import assert_equal, contents, one_line, saved

from hornbook.checkpoint import Contents, load, newest_sound, resolve, save, verify
from hornbook.errors import CheckpointError

TENSORS = ("model-00000.safetensors", "optimizer-00000.safetensors")
FILES = ("manifest.json", *TENSORS, "recipe.json", "state.json", "tokenizer.json")
Damage = Callable[[Path], None]


def truncations(size: int) -> Iterator[tuple[str, Damage]]:
    for keep in sorted({0, 1, 7, 8, 9, size // 4, size // 2, size - 9, size - 1} & set(range(size))):
        yield f"cut to {keep}", lambda path, keep=keep: os.truncate(path, keep)


def flips(size: int) -> Iterator[tuple[str, Damage]]:
    for bit in range(3, size * 8, size * 8 // 16):
        yield f"bit {bit} flipped", lambda path, bit=bit: flip(path, bit)


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def accidents(name: str) -> Iterator[tuple[str, Damage]]:
    yield "zeroed", lambda path: path.write_bytes(bytes(path.stat().st_size)) and None
    yield "zeroed from the middle on", zero_tail
    yield "deleted", Path.unlink
    yield "extended by a byte", lambda path: path.write_bytes(path.read_bytes() + b"\n") and None
    yield "doubled in itself", lambda path: path.write_bytes(path.read_bytes() * 2) and None
    yield "renamed", lambda path: path.rename(path.with_name("x" + path.name)) and None
    yield "copied beside itself", lambda path: shutil.copy(path, path.with_name("copy." + path.name)) and None
    yield "made a link", make_link
    yield "made a folder", make_folder
    others = [other for other in FILES if other != name]
    yield "overwritten by another", lambda path: shutil.copy(path.with_name(others[0]), path) and None
    yield "swapped with another", lambda path: swap(path, path.with_name(others[1]))
    yield "of an older checkpoint", lambda path: shutil.copy(older(path), path) and None


def zero_tail(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))


def make_link(path: Path) -> None:
    target = path.rename(path.parents[2] / f"moved {path.name}")
    path.symlink_to(target)


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def swap(path: Path, other: Path) -> None:
    first, second = path.read_bytes(), other.read_bytes()
    path.write_bytes(second)
    other.write_bytes(first)


def older(path: Path) -> Path:
    return path.parents[1] / "step-00000005" / path.name


@pytest.fixture
def folder(tmp_path) -> Path:
    saved(tmp_path / "checkpoints", 5, 10)
    return tmp_path / "checkpoints"


@pytest.mark.parametrize("name", FILES)
def test_every_damage_is_caught_and_the_checkpoint_before_is_taken(folder, name):
    good, bad = folder / "step-00000005", folder / "step-00000010"
    shutil.copytree(bad, folder.parent / "kept")
    size = (bad / name).stat().st_size
    damages = [*truncations(size), *flips(size), *accidents(name)]
    assert len(damages) > 30
    for what, damage in damages:
        damage(bad / name)
        assert_caught(good, bad, f"{name} {what}")
        shutil.rmtree(bad)
        shutil.copytree(folder.parent / "kept", bad)
        assert verify(bad) == []


def assert_caught(good: Path, bad: Path, what: str) -> None:
    assert verify(bad), what
    with pytest.raises(CheckpointError) as caught:
        load(bad)
    assert str(bad) in one_line(caught.value)
    warnings: list[str] = []
    assert newest_sound(good.parent, warnings.append) == good, what
    assert len(warnings) == 1 and str(bad) in warnings[0] and "\n" not in warnings[0]
    assert resolve(good.parents[1], warnings.append) == good


@pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_every_single_bit_of_the_manifest_counts(folder, stride):
    """The manifest has no checksum of its own, so each of its bits is tried; often, every eleventh."""
    path = folder / "step-00000010"
    data = bytearray((path / "manifest.json").read_bytes())
    for bit in range(0, len(data) * 8, stride):
        data[bit // 8] ^= 1 << bit % 8
        (path / "manifest.json").write_bytes(data)
        data[bit // 8] ^= 1 << bit % 8
        assert verify(path), f"bit {bit}"


def test_the_problems_are_named(folder):
    path = folder / "step-00000010"
    (path / "recipe.json").unlink()
    (path / "notes.txt").touch()
    os.truncate(path / "model-00000.safetensors", 100)
    size = (folder / "step-00000005" / "model-00000.safetensors").stat().st_size
    flip(path / "state.json", 77)
    assert verify(path) == [
        "'notes.txt' is not in the manifest",
        f"model-00000.safetensors has 100 bytes, expected {size}",
        "recipe.json is missing",
        "state.json was altered: its SHA-256 differs from the manifest's",
    ]
    with pytest.raises(CheckpointError, match=r"is damaged: 'notes.txt' .*; recipe.json is missing; .*use an older"):
        load(path)


def test_a_pipe_in_the_place_of_an_empty_file_is_not_waited_for(tmp_path):
    path = save(tmp_path, Contents(step=5, tensors={}, files={"empty": b""}))
    (path / "empty").unlink()
    os.mkfifo(path / "empty")
    assert verify(path) == ["empty is not a plain file"]


def test_a_checkpoint_under_the_name_of_another_step_is_caught(folder):
    (folder / "step-00000005").rename(folder / "step-00000015")
    assert verify(folder / "step-00000015") == ["manifest.json has step 5, but the folder is named step-00000015"]
    warnings: list[str] = []
    assert newest_sound(folder, warnings.append) == folder / "step-00000010"
    assert len(warnings) == 1


def test_a_checkpoint_may_be_given_a_name_of_ones_own(folder):
    moved = (folder / "step-00000005").rename(folder.parent / "the best one")
    assert_equal(load(moved), contents(5))


@pytest.mark.parametrize("what", ["missing", "file", "empty"])
def test_what_is_no_checkpoint_is_reported(tmp_path, what):
    if what == "file":
        (tmp_path / what).write_bytes(b"{}")
    if what == "empty":
        (tmp_path / what).mkdir()
    assert len(verify(tmp_path / what)) == 1
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path / what)
    assert one_line(caught.value)


def test_intact_checkpoints_raise_no_alarm(tmp_path):
    for step in range(0, 10**8, 10**6 - 1):
        (path,) = saved(tmp_path, step)
        assert verify(path) == []
        assert_equal(load(path), contents(step))
        shutil.rmtree(path)
