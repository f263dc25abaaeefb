"""Compile the C++ sources into one shared library, once for each version of sources, flags, compiler and PyTorch.

    csrc/linear.cpp --avx2------->  linear-avx2.o ------+
                    --avx512----->  linear-avx512.o ----+-->  ~/.cache/hornbook/native/<hash>/libhornbook.so
                    --avx512bf16->  ...             ----+
    csrc/cpu.cpp    ------------->  cpu.o --------------+

The folder is ``$XDG_CACHE_HOME/hornbook/native``. Processes that start at once wait for the first one's lock; the
library gets its name by a rename, so nobody ever loads half of one.

Threads are those of the OpenMP runtime that PyTorch has loaded (libgomp in its wheels, Intel's or LLVM's elsewhere):
the library is linked with that very file, so that a process never has two pools.
"""

import fcntl
import hashlib
import logging
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from hornbook.storage.files import make_directory, rename
from hornbook.storage.system import open_own, storage_errors, usable_cores

_logger = logging.getLogger("hornbook.ops")
SOURCES = Path(__file__).parent / "csrc"
_AVX512 = ("-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
INSTRUCTION_SETS: Mapping[str, Sequence[str]] = {
    "avx2": ("-mavx2", "-mfma"),
    "avx512": _AVX512,
    "avx512bf16": (*_AVX512, "-mavx512bf16"),
}
"""The flags of each form; ``csrc/cpu.cpp`` gives the forms' bits in this order."""
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno", "-w")
_FOR_ANY_PROCESSOR = "cpu.cpp"
_RUNTIME = re.compile(r"(libgomp|libiomp5|libomp)[^/]*\.so[.\d]*$")
_LONGEST_BUILD = 600.0


class BuildError(Exception):
    """The library cannot be built here; the message says why, in half a line."""


def library(cache: Path | None = None) -> Path:
    """Return the path of the shared library, compiled now if this machine does not have it yet.

    Args:
        cache: folder of all builds; None for the user's.

    Raises:
        BuildError: no x86-64 Linux, no compiler, or one that fails.
        StorageError: the cache cannot be written.
    """
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        raise BuildError(f"they are written for x86-64 Linux, and this is {platform.machine()} {platform.system()}")
    runtime = openmp_runtime()
    compiler, version = find_compiler()
    folder = (cache or default_cache()) / _fingerprint(version, runtime)
    target = folder / "libhornbook.so"
    if not target.exists():
        make_directory(folder)
        with _lock(folder):
            if not target.exists():  # another process may have built it meanwhile
                _logger.warning("compiling native operators, once on this machine (some 20 s)")
                _build(compiler, runtime, target)
    return target


def default_cache() -> Path:
    """Return the folder of all builds of this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "hornbook" / "native"


def find_compiler() -> tuple[str, str]:
    """Return the path of the C++ compiler, ``$CXX``, g++, clang++ or c++, and what it says of its version.

    Raises:
        BuildError: there is none.
    """
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        path = shutil.which(name) if name else None
        if path:
            return path, f"{path}\n{_run([path, '--version'])}"
    raise BuildError("there is no C++ compiler; install g++ or clang++, or set CXX")


def openmp_runtime() -> Path:
    """Return the file of the OpenMP runtime that this process has loaded, which importing torch does.

    Raises:
        BuildError: there is none.
    """
    import torch  # noqa: F401

    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    files = [line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) == 6]
    found = next((file for file in files if _RUNTIME.search(file)), None)
    if found is None:
        raise BuildError("PyTorch has loaded no OpenMP runtime")
    return Path(found)


def _fingerprint(version: str, runtime: Path) -> str:
    """Return a name that no other build has: of sources, flags, compiler and OpenMP runtime."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(f"{path.name}\n".encode() + path.read_bytes())
    digest.update(f"{_FLAGS}{dict(INSTRUCTION_SETS)}{version}{runtime}".encode())
    return digest.hexdigest()[:24]


def _build(compiler: str, runtime: Path, target: Path) -> None:
    known = [isa for isa, flags in INSTRUCTION_SETS.items() if _knows(compiler, flags)]
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        objects, commands = [], []
        for source in sorted(SOURCES.glob("*.cpp")):
            forms: list[tuple[str, Sequence[str]]] = [("any", ())]
            if source.name != _FOR_ANY_PROCESSOR:
                forms = [(isa, (f"-DHB_ISA={isa}", f"-DHB_{isa.upper()}", *INSTRUCTION_SETS[isa])) for isa in known]
            for form, flags in forms:
                objects.append(f"{scratch}/{source.stem}-{form}.o")
                commands.append([compiler, *_FLAGS, *flags, "-c", str(source), "-o", objects[-1]])
        with ThreadPoolExecutor(usable_cores()) as pool:
            list(pool.map(_run, commands))
        linked = Path(scratch) / target.name
        _run([compiler, "-shared", "-o", str(linked), *objects, str(runtime)])
        rename(linked, target)


def _knows(compiler: str, flags: Sequence[str]) -> bool:
    try:
        _run([compiler, *flags, "-x", "c++", "-fsyntax-only", "-"])
    except BuildError:
        return False
    return True


def _run(command: Sequence[str]) -> str:
    """Return what a program prints.

    Raises:
        BuildError: it fails.
    """
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_LONGEST_BUILD
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"{command[0]} does not run: {error}") from error
    if done.returncode:
        told = next((line for line in done.stderr.splitlines() if "error" in line), f"exit code {done.returncode}")
        raise BuildError(f"{command[0]} fails: {told.strip()}")
    return done.stdout


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the folder of a build, waiting for a process that has it."""
    with storage_errors("lock", folder):
        descriptor = open_own(folder / "lock")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
