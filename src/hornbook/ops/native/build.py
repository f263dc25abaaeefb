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

import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from hornbook.ops.native.cache import (
    LIBRARY,
    BuildError,
    commit,
    compiling_in,
    default_cache,
    find_flaw,
    locked,
    make_private,
)
from hornbook.storage.system import usable_cores

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
_LONGEST_BUILD = 600.0


def library(cache: Path | None = None) -> Path:
    """Return the path of the shared library in the installation or the cache, after compiling it if necessary.

    A build is used if sources, flags, version of the C library and compiler match, and if it has no flaw, see
    `hornbook.ops.native.cache`. Without a compiler, the installation's build is used whatever its compiler.

    Args:
        cache: folder of all builds; None for the user's.

    Raises:
        BuildError: this is not x86-64 Linux, there is no compiler, it fails, or other users can write to the cache.
        StorageError: the cache cannot be written.
    """
    _check_system()
    try:
        compiler, version = find_compiler()
    except BuildError as error:
        found = sorted(INSTALLED.glob(f"{_sources_key()}-*/{LIBRARY}"))
        flaws = [find_flaw(path, installed=True) for path in found]
        if None in flaws:
            return found[flaws.index(None)]
        raise BuildError("; ".join(map(str, (*flaws, error)))) from error
    name = _name(version)
    installed = INSTALLED / name / LIBRARY
    if installed.exists() and find_flaw(installed, installed=True) is None:
        return installed
    return _built(compiler, (cache or default_cache()) / name)


def build_into(folder: Path) -> Path:
    """Compile the library in a folder in ``folder``, for an installation, and return its path; its hash is beside it.

    Raises:
        BuildError: as for ``library``.
    """
    _check_system()
    compiler, version = find_compiler()
    target = folder / _name(version) / LIBRARY
    target.parent.mkdir(parents=True, exist_ok=True)
    _build(compiler, target.parent)
    return target


def _built(compiler: Sequence[str], folder: Path) -> Path:
    """Return the path of the library in ``folder``, after compiling it if necessary."""
    make_private(folder)
    target = folder / LIBRARY
    if find_flaw(target) is not None:
        with locked(folder):
            if (flaw := find_flaw(target)) is None:  # another process has built it
                return target
            again = f" again, since {flaw}" if target.exists() else ", once on this machine"
            _logger.warning("compiling native operators%s (about a minute of processor time)", again)
            _build(compiler, folder)
            if flaw := find_flaw(target):
                raise BuildError(flaw)
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


def find_compiler() -> tuple[list[str], str]:
    """Return the command of the C++ compiler and its version text: of ``$CXX``, g++, clang++ or c++.

    ``$CXX`` is split as a shell does, so it may have arguments: ``ccache g++``.

    Raises:
        BuildError: there is no compiler.
    """
    try:
        given = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise BuildError(f"CXX is {os.environ['CXX']}, which a shell could not split: {error}") from error
    for name, *options in filter(None, (given, ["g++"], ["clang++"], ["c++"])):
        if path := shutil.which(name):
            command = [path, *options]
            return command, f"{shlex.join(command)}\n{run_program([*command, '--version'])}"
    raise BuildError("there is no C++ compiler; install g++ or clang++, or set CXX")


def _name(version: str) -> str:
    """Return the folder name of a build, a hash of sources and flags, and of the compiler's command and version."""
    return f"{_sources_key()}-{hashlib.sha256(version.encode()).hexdigest()[:12]}"


def _sources_key() -> str:
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(f"{path.name}\n".encode() + path.read_bytes())
    digest.update(f"{_FLAGS}{dict(INSTRUCTION_SETS)}{dict(_SOURCES)}{platform.libc_ver()}".encode())
    return digest.hexdigest()[:24]


def _build(compiler: Sequence[str], folder: Path) -> None:
    known = [isa for isa, flags in INSTRUCTION_SETS.items() if _knows(compiler, flags)]
    with compiling_in(folder) as work:
        objects, commands = [], []
        for isa in (None, *known):
            flags = () if isa is None else (f"-DHB_ISA={isa}", f"-DHB_{isa.upper()}", *INSTRUCTION_SETS[isa])
            for source in sources(isa):
                objects.append(f"{work}/{source.stem}-{isa}.o")
                commands.append([*compiler, *_FLAGS, *flags, "-c", str(source), "-o", objects[-1]])
        with ThreadPoolExecutor(usable_cores()) as pool:
            list(pool.map(lambda command: run_program(command, temporary=work), commands))
        linked = work / LIBRARY
        run_program([*compiler, "-shared", "-o", str(linked), *objects], temporary=work)
        commit(linked, folder)


def _knows(compiler: Sequence[str], flags: Sequence[str]) -> bool:
    try:
        run_program([*compiler, *flags, "-x", "c++", "-fsyntax-only", "-"])
    except BuildError:
        return False
    return True


def run_program(command: Sequence[str], temporary: Path | None = None) -> str:
    """Run a program, with its temporary files in ``temporary``, and return its output.

    Raises:
        BuildError: the program fails.
    """
    environment = os.environ | ({} if temporary is None else {"TMPDIR": str(temporary)})
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LONGEST_BUILD,
            env=environment,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"{command[0]} does not run: {error}") from error
    if done.returncode:
        told = next((line for line in done.stderr.splitlines() if "error" in line), f"exit code {done.returncode}")
        raise BuildError(f"{command[0]} fails: {told.strip()}")
    return done.stdout
