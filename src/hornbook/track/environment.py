"""The environment of a run: enough to explain its speed and to repeat it, without private data.

    capture() -> {"hornbook": "0.1.0", "torch": "2.13.0", "cpu": "Intel Xeon ...", "threads": 2,
                  "instruction_sets": ["avx512_bf16", "amx_bf16"], "git": {"commit": "1f0c...", "dirty": false},
                  "command": "hornbook train demo", ...}

    environment.json = {"sessions": [{"number": 1, "from_step": 0, "to_step": 400, **capture()},
                                     {"number": 2, "from_step": 400, ..., "ended": "finished"}]}

A resume, perhaps on another machine, adds a session, which the report shows; of more than `MOST_SESSIONS`, the first
and the last ones are kept. Environment variables are never recorded,
since they may hold keys; the price is that the effect of an unusual variable cannot be traced. Passwords and keys on
the command line are removed; see `redacted`.
"""

import datetime
import os
import platform
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from hornbook.errors import DataError
from hornbook.storage.files import replace_file
from hornbook.storage.json_files import dump_json, read_json
from hornbook.storage.system import cpu_flags, cpu_model, output_of, usable_cores
from hornbook.version import __version__
from hornbook.wording import redacted

INSTRUCTION_SETS = (
    "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16",
    "asimd", "asimdhp", "bf16", "i8mm", "sve", "sve2", "svebf16",
)  # fmt: skip
_NO_LIMIT = 1 << 62
"""Version 1 of control groups reports at least this value if there is no limit."""
MOST_SESSIONS = 32
"""Sessions that ``environment.json`` holds: the first and the last ones, so that it does not grow with every resume."""


def capture() -> dict[str, Any]:
    """Return machine, versions and command of this process; sizes in bytes, ``started`` in UTC (ISO 8601)."""
    import torch

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    if not gpus and torch.backends.mps.is_available():
        gpus = ["Apple MPS"]
    return {
        "hornbook": __version__,
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "cuda": torch.version.cuda,
        "threads": torch.get_num_threads(),
        "gpus": gpus,
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "instruction_sets": instruction_sets(),
        "memory_bytes": memory_bytes(),
        "git": git_state(Path.cwd()),
        "command": command_line(sys.argv),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def record_session(path: Path, from_step: int, to_step: int, facts: Mapping[str, Any] | None = None) -> None:
    """Add this process to ``environment.json`` as a session that starts after ``from_step`` finished steps.

    Args:
        path: path of ``environment.json``.
        from_step: finished steps of the run.
        to_step: the run's last step, which is not in a recipe with a length in epochs or tokens.
        facts: further facts to record.

    Raises:
        DataError: the existing file is malformed.
        StorageError: it cannot be read or written.
    """
    recorded, counts = sessions(path), {"from_step": from_step, "to_step": to_step}
    recorded.append({"number": num_sessions(recorded) + 1, **counts, **capture(), **(facts or {})})
    _write(path, recorded if len(recorded) <= MOST_SESSIONS else [recorded[0], *recorded[1 - MOST_SESSIONS :]])


def record_end(path: Path, ended: Literal["finished", "diverged"]) -> None:
    """Record in ``environment.json`` how the last session ended, unless it was stopped or killed.

    Raises:
        DataError: the existing file is malformed.
        StorageError: it cannot be read or written.
    """
    if recorded := sessions(path):
        _write(path, [*recorded[:-1], {**recorded[-1], "ended": ended}])


def _write(path: Path, recorded: list[dict[str, Any]]) -> None:
    try:
        content = dump_json({"sessions": recorded})
    except RecursionError as error:  # reading permits more levels than writing
        raise DataError(f"{path}: the environment is nested too deeply; restore or remove the file") from error
    replace_file(path, content)


def sessions(path: Path) -> list[dict[str, Any]]:
    """Return the sessions in ``environment.json``, oldest first; none without a file, one for a bare capture.

    Raises:
        DataError: the file is malformed.
        StorageError: it cannot be read.
    """
    if not path.exists():
        return []
    content = read_json(path, "the environment", follow=False)
    found = content.get("sessions", [content]) if isinstance(content, dict) else []
    known = [session for session in found if isinstance(session, dict)] if isinstance(found, list) else []
    return [
        session | {"command": redacted(command)} if isinstance(command := session.get("command"), str) else session
        for session in known
    ]


def num_sessions(recorded: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of sessions of a run, with those that ``environment.json`` no longer holds."""
    number = recorded[-1].get("number") if recorded else None
    return number if type(number) is int and number >= len(recorded) else len(recorded)


def instruction_sets(path: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Return the processor's instruction sets that determine the speed of matrix products."""
    flags = cpu_flags(path)
    return [name for name in INSTRUCTION_SETS if name in flags]


def memory_bytes() -> int | None:
    """Return the memory that this process may use: the machine's, or the control group's limit if that is lower."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    limit = memory_limit()
    return total if limit is None else min(total, limit)


def memory_limit(groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the control group's limit in bytes, of version 2 or 1; None if there is none."""
    told = _text(groups / "memory.max") or _text(groups / "memory" / "memory.limit_in_bytes")
    return int(told) if told.isdecimal() and int(told) < _NO_LIMIT else None


def available_memory_bytes(information: Path = Path("/proc/meminfo")) -> int | None:
    """Return the memory that a process can get now without swapping; None if unknown.

    A control group may allow less: see `memory_limit`.
    """
    line = next((line for line in _text(information).splitlines() if line.startswith("MemAvailable:")), None)
    return int(line.split()[1]) * 1024 if line else None


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return the commit of the repository of ``folder`` and whether tracked files differ; ``None`` without one.

    The repository may be untrusted, and `git status` runs programs in its configuration: ``core.fsmonitor``, filters,
    those that fetch missing objects, and all of these in each submodule. So the files are compared in a temporary
    repository with an empty configuration, which borrows index and objects.
    """
    asked = ("HEAD", "--show-toplevel", "--git-path", "index", "--git-path", "objects")
    found = _git("rev-parse", *asked, folder=folder).splitlines()
    if len(found) != 4:
        return None
    commit, top, index, objects = found
    with tempfile.TemporaryDirectory() as empty:
        for name in ("objects", "refs"):
            (Path(empty) / name).mkdir()
        (Path(empty) / "HEAD").write_text(f"{commit}\n", encoding="ascii")
        borrowed = {
            "GIT_DIR": empty,
            "GIT_WORK_TREE": top,
            "GIT_INDEX_FILE": str(folder / index),
            "GIT_OBJECT_DIRECTORY": str(folder / objects),
        }
        options = ("--porcelain", "--untracked-files=no", "--ignore-submodules=dirty")
        changed = _git("status", *options, folder=Path(top), variables=borrowed)
    return {"commit": commit, "dirty": bool(changed)}


def command_line(arguments: list[str]) -> str:
    """Return the command for pasting into a shell, without the program's folder and without passwords."""
    name = Path(arguments[0]).name if arguments else ""
    program = "python -m hornbook" if name == "__main__.py" else name
    words = (word.encode("utf-8", "backslashreplace").decode() for word in arguments[1:])
    return redacted(" ".join([program, *(shlex.quote(redacted(word)) for word in words)]))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _git(*words: str, folder: Path, variables: Mapping[str, str] | None = None) -> str:
    """Return git's output in ``folder``; git starts no other program and writes nothing."""
    switched_off = ("core.fsmonitor=false", "core.hooksPath=/dev/null")
    options = [option for setting in switched_off for option in ("-c", setting)]
    without_transport = {"GIT_ALLOW_PROTOCOL": "none"}
    environment = {**os.environ, **without_transport, **(variables or {})}
    return output_of("git", "--no-optional-locks", *options, "-C", str(folder), *words, environment=environment)
