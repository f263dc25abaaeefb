"""Compile the C++ sources to a shared library, once for each version of sources, flags and compiler.

    csrc/linear.cpp --avx2------->  linear-avx2.o ------+
                    --avx512----->  linear-avx512.o ----+-->  <sources>-<compiler>/libhornbook.so
                    --avx512bf16->  ...             ----+
                    --avx512fp16->  ...             ----+
                    --amx-------->  ...             ----+
    csrc/cpu.cpp    ------------->  cpu.o --------------+

``pip install`` compiles it into the package (``setup.py``) if there is a compiler. Otherwise, or if the package has
changed since, the first process that needs it compiles it into ``$XDG_CACHE_HOME/hornbook/native``. Concurrent
processes wait for the first one's lock; the library is renamed when it is complete, so it is never loaded in part.

The library is not linked with an OpenMP runtime, so that a build works with any PyTorch: `hornbook.ops.native.library`
passes it the functions of the runtime that PyTorch has loaded.

`setup.py` imports this module without PyTorch, so neither it nor its imports may need PyTorch.
"""

import fcntl
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from hornbook.storage.files import make_directory, rename
from hornbook.storage.system import open_own, storage_errors, usable_cores

_logger = logging.getLogger("hornbook.ops")
SOURCES = Path(__file__).parent / "csrc"
INSTALLED = Path(__file__).parent / "built"
"""Folder of the installation's build, if there is one."""
HALVES: Final = "avx512fp16"
"""The instruction set of fp16 vectors; only bf16 linear layers have a form for it."""
TILES: Final = "amx"
"""The instruction set of AMX tiles; only bf16 products have a form for it."""
_AVX512 = ("-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
INSTRUCTION_SETS: Mapping[str, Sequence[str]] = {
    "avx2": ("-mavx2", "-mfma"),
    "avx512": _AVX512,
    "avx512bf16": (*_AVX512, "-mavx512bf16"),
    HALVES: (*_AVX512, "-mavx512bf16", "-mavx512fp16"),
    TILES: (*_AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
}
"""The compiler flags of each form, in the order of the bits in ``csrc/cpu.cpp``."""
_SOURCES: Mapping[str, Sequence[str]] = {
    HALVES: ("form.cpp", "linear.cpp"),
    TILES: ("block_sparse.cpp", "form.cpp", "linear.cpp"),
}
"""The sources that have a form for an instruction set, if not all have one."""
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno", "-w")
_FOR_ANY_PROCESSOR = "cpu.cpp"
_LIBRARY = "libhornbook.so"
_LONGEST_BUILD = 600.0


class BuildError(Exception):
    """The library cannot be built on this machine; the message is a short reason."""


def library(cache: Path | None = None) -> Path:
    """Return the path of the shared library in the installation or the cache, after compiling it if necessary.

    A build is used if sources, flags, version of the C library and compiler match. Without a compiler, the
    installation's build is used whatever its compiler.

    Args:
        cache: folder of all builds; None for the user's.

    Raises:
        BuildError: this is not x86-64 Linux, or there is no compiler, or it fails.
        StorageError: the cache cannot be written.
    """
    _check_system()
    try:
        compiler, version = find_compiler()
    except BuildError:
        installed = next(INSTALLED.glob(f"{_sources_key()}-*/{_LIBRARY}"), None)
        if installed is None:
            raise
        return installed
    name = _name(version)
    installed = INSTALLED / name / _LIBRARY
    return installed if installed.exists() else _built(compiler, (cache or default_cache()) / name)


def build_into(folder: Path) -> Path:
    """Compile the library in ``folder``, for an installation, and return its path.

    Raises:
        BuildError: as for ``library``.
    """
    _check_system()
    compiler, version = find_compiler()
    target = folder / _name(version) / _LIBRARY
    target.parent.mkdir(parents=True, exist_ok=True)
    _build(compiler, target)
    return target


def _built(compiler: str, folder: Path) -> Path:
    """Return the path of the library in ``folder``, after compiling it if necessary."""
    target = folder / _LIBRARY
    if not target.exists():
        make_directory(folder)
        with _lock(folder):
            if not target.exists():  # another process may have built it
                _logger.warning("compiling native operators, once on this machine (about a minute of processor time)")
                _build(compiler, target)
    return target


def sources(isa: str | None) -> list[Path]:
    """Return the sources of an instruction set, or those for any processor if it is None."""
    found = sorted(SOURCES.glob("*.cpp"))
    if isa is not None and isa in _SOURCES:
        return [path for path in found if path.name in _SOURCES[isa]]
    return [path for path in found if (path.name == _FOR_ANY_PROCESSOR) == (isa is None)]


def _check_system() -> None:
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        raise BuildError(f"they require x86-64 Linux, but this is {platform.machine()} {platform.system()}")


def default_cache() -> Path:
    """Return the folder of all builds of this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "hornbook" / "native"


def find_compiler() -> tuple[str, str]:
    """Return the path of the C++ compiler, ``$CXX``, g++, clang++ or c++, and its version text.

    Raises:
        BuildError: there is no compiler.
    """
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        path = shutil.which(name) if name else None
        if path:
            return path, f"{path}\n{_run([path, '--version'])}"
    raise BuildError("there is no C++ compiler; install g++ or clang++, or set CXX")


def _name(version: str) -> str:
    """Return the folder name of a build, a hash of sources and flags, and of the compiler's path and version."""
    return f"{_sources_key()}-{hashlib.sha256(version.encode()).hexdigest()[:12]}"


def _sources_key() -> str:
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(f"{path.name}\n".encode() + path.read_bytes())
    digest.update(f"{_FLAGS}{dict(INSTRUCTION_SETS)}{dict(_SOURCES)}{platform.libc_ver()}".encode())
    return digest.hexdigest()[:24]


def _build(compiler: str, target: Path) -> None:
    known = [isa for isa, flags in INSTRUCTION_SETS.items() if _knows(compiler, flags)]
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        objects, commands = [], []
        for isa in (None, *known):
            flags = () if isa is None else (f"-DHB_ISA={isa}", f"-DHB_{isa.upper()}", *INSTRUCTION_SETS[isa])
            for source in sources(isa):
                objects.append(f"{scratch}/{source.stem}-{isa}.o")
                commands.append([compiler, *_FLAGS, *flags, "-c", str(source), "-o", objects[-1]])
        with ThreadPoolExecutor(usable_cores()) as pool:
            list(pool.map(_run, commands))
        linked = Path(scratch) / target.name
        _run([compiler, "-shared", "-o", str(linked), *objects])
        rename(linked, target)


def _knows(compiler: str, flags: Sequence[str]) -> bool:
    try:
        _run([compiler, *flags, "-x", "c++", "-fsyntax-only", "-"])
    except BuildError:
        return False
    return True


def _run(command: Sequence[str]) -> str:
    """Run a program and return its output.

    Raises:
        BuildError: the program fails.
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
    """Lock the folder of a build, waiting for other processes."""
    with storage_errors("lock", folder):
        descriptor = open_own(folder / "lock")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
