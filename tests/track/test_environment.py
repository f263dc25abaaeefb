import json
import os
import shutil
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from hornbook.errors import DataError
from hornbook.storage.system import usable_cores
from hornbook.track import environment


def git(folder: Path, *words: str) -> str:
    if shutil.which("git") is None:
        pytest.skip("git is not installed: apt install git")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_capture_is_json_and_says_what_a_reader_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = environment.capture()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["torch"].startswith("2.")
    assert found["cores"] == usable_cores()
    assert found["threads"] >= 1
    assert found["memory_bytes"] > 1 << 20
    assert found["cpu"]
    assert datetime.fromisoformat(found["started"]).utcoffset() == timedelta(0)
    assert found["git"] is None


def test_capture_holds_no_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "hunter2-secret")
    assert "hunter2" not in json.dumps(environment.capture())


def test_git_state_has_commit_and_changes(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "a.txt").write_text("one")
    git(tmp_path, "add", "a.txt")
    git(tmp_path, "commit", "-q", "-m", "first")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "untracked.txt").write_text("not counted")
    clean = {"commit": git(tmp_path, "rev-parse", "HEAD"), "dirty": False}
    assert environment.git_state(tmp_path / "sub") == clean
    (tmp_path / "a.txt").write_text("two")
    assert environment.git_state(tmp_path) == {**clean, "dirty": True}


def _git(repository: Path, *words: str) -> None:
    who = ("-c", "user.name=me", "-c", "user.email=me@localhost")
    subprocess.run(["git", *who, "-C", str(repository), *words], check=True, capture_output=True)


def test_a_stranger_s_repository_runs_nothing(tmp_path: Path) -> None:
    """Neither `core.fsmonitor`, nor a filter that attributes name, nor a hook, nor those of a submodule."""
    repository, inner = tmp_path / "outer", tmp_path / "outer" / "inner"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho $0 $* >> {tmp_path}/ran\ncat\n")
    program.chmod(0o755)
    for folder in (repository, inner):
        folder.mkdir()
        _git(folder, "init")
        (folder / "a").write_text("a")
        _git(folder, "add", "a")
        _git(folder, "commit", "-m", "first")
    _git(repository, "add", "inner")
    _git(repository, "commit", "-m", "second")
    for folder, metadata in ((repository, repository / ".git"), (inner, inner / ".git")):
        _git(folder, "config", "core.fsmonitor", str(program))
        _git(folder, "config", "filter.f.clean", str(program))
        (metadata / "info" / "attributes").write_text("* filter=f\n")
        (metadata / "hooks" / "post-index-change").symlink_to(program)
        (folder / "a").write_text("b")
    _git(repository, "status")
    assert (tmp_path / "ran").exists()
    (tmp_path / "ran").unlink()
    assert environment.git_state(repository) == {"commit": _head(repository), "dirty": True}
    assert environment.git_state(inner) == {"commit": _head(inner), "dirty": True}
    assert not (tmp_path / "ran").exists()
    (repository / "a").write_text("a")
    assert environment.git_state(repository) == {"commit": _head(repository), "dirty": False}


def _head(repository: Path) -> str:
    words = ["git", "-C", str(repository), "rev-parse", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def test_git_state_without_git_or_commit_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "-q")
    assert environment.git_state(tmp_path) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment.git_state(Path.cwd()) is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["/usr/local/bin/hornbook", "train", "demo"], "hornbook train demo"),
        (["/a/hornbook/__main__.py", "train", "my recipe.toml"], "python -m hornbook train 'my recipe.toml'"),
        (["hornbook", "--data", "https://me:secret@host/x"], "hornbook --data https://...@host/x"),
        (["hornbook", "--data", "https://me:p@ss@host/x@y"], "hornbook --data https://...@host/x@y"),
        (
            ["hornbook", "--data", "https://host/x?a=1&Access_Token=s3cret&b=2#c", "--note", "token=5"],
            "hornbook --data 'https://host/x?a=1&Access_Token=...&b=2#c' --note token=5",
        ),
        (["hornbook", "--api-key", "s3cret", "--hub.token=s3cret"], "hornbook --api-key ... --hub.token=..."),
        (["hornbook", "--password", "two words", "--stop-token", "x"], "hornbook --password ... --stop-token x"),
        (["hornbook", "--data.tokenizer", "x", "--no-token"], "hornbook --data.tokenizer x --no-token"),
        (["hornbook", "\udcff"], "hornbook '\\udcff'"),
        ([], ""),
    ],
)
def test_command_line_can_be_pasted_and_hides_passwords(arguments: list[str], expected: str) -> None:
    assert environment.command_line(arguments) == expected


def test_memory_and_instruction_sets_come_from_the_machine(tmp_path: Path) -> None:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    memory = environment.memory_bytes()
    assert memory is not None
    assert 0 < memory <= physical
    flags = Path("/proc/cpuinfo").read_text()
    assert all(f" {name}" in flags for name in environment.instruction_sets())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "processor\t: 0\nmodel name\t: X\nflags\t\t: fpu avx2 amx_bf16 avx512f\n\nprocessor\t: 1\n",
            ["avx2", "avx512f", "amx_bf16"],
        ),
        ("processor\t: 0\nFeatures\t: fp asimd sve bf16 crc32\n", ["asimd", "bf16", "sve"]),
        ("vendor_id : IBM/S390\nno colon here\n", []),
        ("", []),
    ],
)
def test_instruction_sets_of_another_processor(tmp_path: Path, text: str, expected: list[str]) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    assert environment.instruction_sets(path) == expected
    assert environment.instruction_sets(tmp_path / "absent") == []


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("memory.max", "1073741824\n", 1 << 30),
        ("memory.max", "max\n", None),
        ("memory/memory.limit_in_bytes", "2097152\n", 1 << 21),
        ("memory/memory.limit_in_bytes", "9223372036854771712\n", None),
        ("other", "1", None),
    ],
)
def test_control_groups_of_both_versions_limit_the_memory(
    tmp_path: Path, file: str, text: str, expected: int | None
) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    assert environment.memory_limit(tmp_path) == expected


def test_available_memory_is_what_the_kernel_says(tmp_path: Path) -> None:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:       24684096 kB\nMemFree:  5 kB\nMemAvailable:   18000 kB\n")
    assert environment.available_memory_bytes(path) == 18000 * 1024
    path.write_text("MemTotal: 1 kB\n")
    assert environment.available_memory_bytes(path) is None


def test_sessions_are_added_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "environment.json"
    assert environment.sessions(path) == []
    environment.record_session(path, 0, 400)
    environment.record_session(path, 400, 600)
    steps = [(session["from_step"], session["to_step"]) for session in environment.sessions(path)]
    assert steps == [(0, 400), (400, 600)]
    assert environment.sessions(path)[1]["python"] == environment.sessions(path)[0]["python"]


def test_resumes_without_end_leave_a_file_of_limited_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "environment.json"
    monkeypatch.setattr(environment, "capture", lambda: {"cpu": "x"})
    for start in range(100):
        environment.record_session(path, start, 400)
    found = environment.sessions(path)
    assert len(found) == environment.MOST_SESSIONS and environment.num_sessions(found) == 100
    assert [session["from_step"] for session in found] == [0, *range(100 - environment.MOST_SESSIONS + 1, 100)]


def test_the_last_session_records_how_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "environment.json"
    environment.record_end(path, "finished")
    assert not path.exists(), "without a session there is nothing that could have ended"
    environment.record_session(path, 0, 400)
    environment.record_session(path, 400, 600)
    environment.record_end(path, "diverged")
    assert [session.get("ended") for session in environment.sessions(path)] == [None, "diverged"]


def test_a_bare_capture_is_one_session(tmp_path: Path) -> None:
    path = tmp_path / "environment.json"
    path.write_text('{"cpu": "x"}')
    assert environment.sessions(path) == [{"cpu": "x"}]


def test_malformed_content_is_no_session_and_invalid_json_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "environment.json"
    for odd in ("[1]", "3", '{"sessions": 5}', '{"sessions": [7]}'):
        path.write_text(odd)
        assert environment.sessions(path) == []
    path.write_text("{")
    with pytest.raises(DataError, match=r"environment\.json"):
        environment.sessions(path)
