"""The cache of the native library: what may be loaded, what is built again, and what remains of a killed compile."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from cases import mostly_slow
from native_forms import forms
from ranks import environment
from tiny_native import num_links, use_tiny_sources

from hornbook.ops.native import cache as cache_module
from hornbook.ops.native import kernels, trials
from hornbook.ops.native.build import find_compiler, library
from hornbook.ops.native.cache import BuildError, default_cache, find_flaw
from hornbook.ops.native.kernels import PYTORCH, instruction_sets
from hornbook.ops.native.trials import Kernel, seconds

try:
    find_compiler()
except BuildError as error:
    pytest.skip(str(error), allow_module_level=True)

SOURCE = "import sys; from pathlib import Path; from hornbook.ops.native import build; "
SOURCE += "build.SOURCES = Path(sys.argv[1]); print(build.library(Path(sys.argv[2])))"


@pytest.fixture
def sources(tmp_path, monkeypatch):
    return use_tiny_sources(tmp_path, monkeypatch)


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def change_a_byte(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "truncated": truncate,
    "empty": lambda path: path.write_bytes(b""),
    "changed": change_a_byte,
    "removed": lambda path: path.unlink(),
    "another's": lambda path: os.chown(path, 12345, 12345),
    "writable for all": lambda path: path.chmod(0o777),
    "writable for the group": lambda path: path.chmod(0o775),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "a link to another's": lambda path: (path.unlink(), path.symlink_to("/dev/null")),
}


@pytest.mark.parametrize("which", mostly_slow(["libhornbook.so", "libhornbook.so.sha256"]))
@pytest.mark.parametrize("damage", mostly_slow(DAMAGES, 4))
def test_a_build_with_a_flaw_is_not_loaded_but_built_again(sources, tmp_path, damage, which):
    if damage == "another's" and os.geteuid():
        pytest.skip("only root can give a file away")
    cache = tmp_path / "cache"
    found = library(cache)
    assert find_flaw(found) is None
    DAMAGES[damage](found.with_name(which))
    assert find_flaw(found) is not None
    if damage == "a folder":
        with pytest.raises(Exception, match=r"cannot rename .* Is a directory"):
            library(cache)
        return
    assert library(cache) == found
    assert find_flaw(found) is None and num_links(tmp_path) == 2
    assert library(cache) == found and num_links(tmp_path) == 2


@pytest.mark.parametrize("umask", [0, 0o002, 0o077])
def test_only_the_owner_may_write_to_a_build_whatever_the_umask(sources, tmp_path, umask):
    before = os.umask(umask)
    try:
        found = library(tmp_path / "shared" / "cache")
        assert library(tmp_path / "shared" / "cache") == found
    finally:
        os.umask(before)
    for path in (found, found.with_name("libhornbook.so.sha256"), *found.parents[:2]):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o022, path
    assert num_links(tmp_path) == 1


def test_folders_that_others_can_write_to_are_closed_or_refused(sources, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    found = library(cache)
    cache.chmod(0o777)
    found.parent.chmod(0o775)
    assert library(cache) == found
    assert not any(stat.S_IMODE(path.stat().st_mode) & 0o022 for path in (cache, found.parent))
    monkeypatch.setattr(Path, "chmod", lambda path, mode: None)  # a file system without modes
    os.chmod(cache, 0o777)  # noqa: PTH101
    with pytest.raises(BuildError, match=rf"other users can write to {cache}; set XDG_CACHE_HOME to a folder of your"):
        library(cache)
    assert num_links(tmp_path) == 1


def test_a_folder_of_another_user_or_open_to_all_is_refused(sources, tmp_path):
    shared = tmp_path / "all"
    (shared / "hornbook" / "native").mkdir(parents=True, mode=0o755)
    shared.chmod(0o777)
    with pytest.raises(BuildError, match=rf"every user can replace what is in {shared}; set XDG_CACHE_HOME to"):
        library(shared / "hornbook" / "native")
    shared.chmod(0o1777)
    assert library(shared / "hornbook" / "native").exists(), "as in /tmp"
    if not os.geteuid():
        os.chown(shared / "hornbook", 12345, 12345)
        with pytest.raises(BuildError, match=rf"{shared / 'hornbook'} belongs to another user; set XDG_CACHE_HOME"):
            library(shared / "hornbook" / "native")


def test_data_is_on_disk_before_it_has_its_name(sources, tmp_path, monkeypatch):
    calls, flush, rename = [], cache_module.flush_to_disk, Path.rename

    def record_flush(descriptor):
        calls.append(("flush", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))  # noqa: PTH115
        flush(descriptor)

    def record_rename(path, target):
        calls.append(("rename", Path(target).name))
        return rename(path, target)

    monkeypatch.setattr("hornbook.storage.system.flush_to_disk", record_flush)
    monkeypatch.setattr(cache_module, "flush_to_disk", record_flush)
    monkeypatch.setattr(Path, "rename", record_rename)
    library(tmp_path / "cache")
    for name in ("libhornbook.so", "libhornbook.so.sha256"):
        assert calls.index(("flush", name)) < calls.index(("rename", name))


def test_nothing_remains_of_a_killed_compile(sources, tmp_path):
    """But what hornbook did not make stays, whatever its name is."""
    slow, cache = tmp_path / "slow", tmp_path / "cache"
    slow.write_text(f'#!/bin/sh\ncase "$*" in *-shared*) touch {tmp_path}/linking; sleep 600;; esac\n')
    slow.write_text(slow.read_text() + (tmp_path / "compiler").read_text().removeprefix("#!/bin/sh\n"))
    slow.chmod(0o755)
    command = [sys.executable, "-c", SOURCE, str(sources), str(cache)]
    with subprocess.Popen(command, env=environment(CXX=str(slow)), start_new_session=True) as child:
        deadline = time.monotonic() + 600
        while not (tmp_path / "linking").exists() and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        os.killpg(child.pid, signal.SIGKILL)
    (folder,) = cache.iterdir()
    assert [path.name for path in folder.glob("compiling-*/*/*.o")] == ["cpu.o"]
    mine = [folder / name for name in ("compiling-notes", "tmpabc", "compiling-0123456789abcdef0")]
    for path in mine:
        path.mkdir()
    (folder / "compiling-0123456789abcdef").symlink_to(mine[0])
    (mine[0] / "thesis.tex").write_text("mine")
    slow.write_text((tmp_path / "compiler").read_text())
    output = subprocess.check_output(command, env=environment(CXX=str(slow)), text=True)
    assert Path(output.strip()).parent == folder
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["forms.json", "libhornbook.so", "libhornbook.so.sha256", "lock", *(path.name for path in mine)]
    )
    assert (mine[0] / "thesis.tex").read_text() == "mine"


def test_a_build_is_verified_once_a_process(monkeypatch):
    forms()
    calls, library_of = [], kernels.library
    monkeypatch.setattr(kernels, "library", lambda: calls.append(1) or library_of())
    for cached in (kernels.load, kernels.path_of_library, kernels.instruction_sets):
        cached.cache_clear()
    assert instruction_sets() and trials._facts_file() and instruction_sets()
    assert calls == [1]


NESTED = "[" * 100_000
CONTENTS = [
    "", "null", "3", "[]", '"x"', "{", "[1, 2]", NESTED, "\x00", "\udcff", "1e999", "NaN", '{"a": NaN}',
    '{"a": {"b": {"torch": 1e999}}}', '{"a": {"\\ud800": {"torch": 1.0}}}', '{"\\ud800": {}}', '{"a": 1, "a": 2}',
]  # fmt: skip
VALUES = [
    None, 3, 1.5, True, "x", [], ["torch"], {}, {"torch": None}, {"torch": "1"}, {"torch": [1.0]}, {"torch": {}},
    {"torch": True}, {"torch": 10**400}, {"torch": -1.0}, {"torch": 1.0, "avx2": "fast"},
    {"torch": 1.0, "avx9000": 0.1},
]  # fmt: skip


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    forms()
    monkeypatch.setattr(trials, "_facts_file", lambda: tmp_path / "seconds.json")
    return Kernel("odd_bf16", torch.bfloat16, lambda form, _: True, lambda form, _: None)


def assert_measured(kernel, path):
    times = seconds(kernel)
    assert set(times) == {PYTORCH, *kernel.instruction_sets}
    assert all(isinstance(taken, float) and taken >= 0 for taken in times.values())
    assert json.loads(path.read_text())[trials._circumstances()]["odd_bf16"] == times
    assert seconds(kernel) == times


@pytest.mark.parametrize("content", CONTENTS, ids=[str(number) for number in range(len(CONTENTS))])
def test_any_content_of_the_file_of_times_is_harmless(content, kernel, tmp_path):
    (tmp_path / "seconds.json").write_bytes(content.encode(errors="surrogateescape"))
    assert_measured(kernel, tmp_path / "seconds.json")


@pytest.mark.parametrize("value", VALUES, ids=[str(number) for number in range(len(VALUES))])
@pytest.mark.parametrize("level", ["circumstances", "kernel", "another kernel"])
def test_any_value_in_the_file_of_times_is_harmless(level, value, kernel, tmp_path):
    here = trials._circumstances()
    good = dict.fromkeys((PYTORCH, *kernel.instruction_sets), 0.5)
    contents = {
        "circumstances": {here: value, "another machine": {"odd_bf16": good}},
        "kernel": {here: {"odd_bf16": value, "even_bf16": good}},
        "another kernel": {here: {"even_bf16": value}},
    }
    (tmp_path / "seconds.json").write_text(json.dumps(contents[level]))
    assert_measured(kernel, tmp_path / "seconds.json")
    written = json.loads((tmp_path / "seconds.json").read_text())
    assert level != "circumstances" or written["another machine"] == {"odd_bf16": good}
    assert level != "kernel" or written[here]["even_bf16"] == good


def test_a_file_of_times_that_is_none_is_harmless(kernel, tmp_path):
    os.mkfifo(tmp_path / "seconds.json")
    assert_measured(kernel, tmp_path / "seconds.json")
    (tmp_path / "seconds.json").unlink()
    (tmp_path / "seconds.json").mkdir()
    assert set(seconds(kernel)) == {PYTORCH, *kernel.instruction_sets}


def test_the_cache_without_a_home_is_refused(monkeypatch):
    monkeypatch.setattr(Path, "expanduser", lambda path: (_ for _ in ()).throw(RuntimeError("no home")))
    with pytest.raises(BuildError, match=r"^the home folder is unknown; set XDG_CACHE_HOME to a folder for compiled"):
        default_cache()


HOMELESS = """
import os, pwd, sys
def nobody(*given): raise KeyError("uid not found")
pwd.getpwuid = nobody
os.environ.pop("HOME", None); os.environ.pop("XDG_CACHE_HOME", None)
from hornbook.__main__ import main
raise SystemExit(main(sys.argv[1:]))
"""


def test_a_user_without_a_home_trains_with_pytorchs_operators(tmp_path):
    """As with a read-only home; the header says why, in its line of kernels."""
    command = [sys.executable, "-c", HOMELESS, "train", "demo", "--data.synthetic", "true", "--training.steps", "1"]
    command += [
        "--model.num-layers=1",
        "--model.vocab-size=64",
        "--training.global-batch-size=1",
        "--training.micro-batch-size=1",
    ]
    command += ["--output", str(tmp_path / "run"), "--device", "cpu", "--threads", "1"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in (done.stdout + done.stderr).splitlines() if "home folder" in line]
    assert "no native operators: the home folder is unknown; set XDG_CACHE_HOME" in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
