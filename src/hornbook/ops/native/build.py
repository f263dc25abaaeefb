"""Compile the C++ sources to a shared library, once for each version of sources and flags.

    csrc/linear.cpp --avx2------->  avx2/linear.o ------+
                    --avx512----->  avx512/linear.o ----+-->  <sources and ABI>/libhornbook.so
                    --avx512bf16->  ...             ----+                       forms.json
                    --avx512fp16->  ...             ----+
                    --amx-------->  ...             ----+
    csrc/cpu.cpp    ------------->  None/cpu.o ---------+

On 64-bit Arm, the forms are neon and neonbf16.

A compiler may crash on one form or not know its instructions. The next compiler then compiles that form; if none can,
the library does without it, and ``forms.json`` says why: no process tries again until there is another compiler.

``pip install`` compiles it into the package (``setup.py``) if there is a compiler. Otherwise, or if the package has
changed since, the first process that needs it compiles it into ``$XDG_CACHE_HOME/hornbook/native``. Concurrent
processes wait for the first one's lock; the library is renamed when it is complete, so it is never loaded in part.

The library is not linked with an OpenMP runtime, so that a build works with any PyTorch: `hornbook.ops.native.kernels`
passes it the functions of the runtime that PyTorch has loaded.

`setup.py` imports this module without PyTorch, so neither it nor its imports may need PyTorch.
"""

import hashlib
import logging
import os
import platform
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from hornbook.errors import DataError, StorageError
from hornbook.ops.native.cache import (
    FORMS,
    LIBRARY,
    BuildError,
    commit,
    compiling_in,
    default_cache,
    find_flaw,
    make_private,
)
from hornbook.storage.json_files import dump_json, read_json
from hornbook.storage.system import storage_errors, usable_cores, wait_for_lock

_logger = logging.getLogger("hornbook.ops")
SOURCES = Path(__file__).parent / "csrc"
INSTALLED = Path(__file__).parent / "built"
"""Folder of the installation's build, if there is one."""
HALVES: Final = "avx512fp16"
"""The instruction set of fp16 vectors; only bf16 linear layers have a form for it."""
TILES: Final = "amx"
"""The instruction set of AMX tiles; only bf16 products have a form for it."""
_AVX512 = ("-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
_ARM = (
    "-fno-strict-aliasing",  # pairs of bf16 are loaded as floats, for which only x86 intrinsics make an exception
    "-fno-schedule-insns",  # GCC would load operands so early that sums of products leave the registers
)
ARCHITECTURES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "x86_64": {
        "avx2": ("-mavx2", "-mfma"),
        "avx512": _AVX512,
        "avx512bf16": (*_AVX512, "-mavx512bf16"),
        HALVES: (*_AVX512, "-mavx512bf16", "-mavx512fp16"),
        TILES: (*_AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
    },
    "aarch64": {"neon": ("-march=armv8-a", *_ARM), "neonbf16": ("-march=armv8.2-a+bf16", *_ARM)},
}
"""The compiler flags of each form, in the order of the bits in ``csrc/cpu.cpp``, by kind of processor."""
_MACHINE = platform.machine().replace("arm64", "aarch64")  # macOS's name
INSTRUCTION_SETS: Mapping[str, Sequence[str]] = ARCHITECTURES.get(_MACHINE, {})
"""Those of this kind of processor."""
_SOURCES: Mapping[str, Sequence[str]] = {
    HALVES: ("form.cpp", "linear.cpp"),
    TILES: ("block_sparse.cpp", "form.cpp", "linear.cpp"),
}
"""The sources that have a form for an instruction set, if not all have one."""
_FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno", "-w")
_FOR_ANY_PROCESSOR = "cpu.cpp"
_SYSTEMS = {("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "arm64")}
_LONGEST_BUILD = 600.0


def library(cache: Path | None = None, progress: Callable[[int, int], None] | None = None) -> Path:
    """Return the path of the shared library in the installation or the cache, after compiling it if necessary.

    A build is used if sources, flags and ABI match, if it can be loaded, and if it has no flaw, see
    `hornbook.ops.native.cache`. A build in the cache without all forms is repeated once there is another compiler.

    Args:
        cache: folder of all builds; None for the user's.
        progress: called with the numbers of finished and of all files while it is compiled.

    Raises:
        BuildError: another system or processor, no compiler, one that fails, or a cache that other users can write to.
        StorageError: the cache cannot be written.
    """
    _check_system()
    installed = INSTALLED / _name() / LIBRARY
    flaw = find_flaw(installed, installed=True) if installed.exists() else None
    if installed.exists() and flaw is None:
        return installed
    try:
        folder = (cache or default_cache()) / _name()
        make_private(folder)
        target = folder / LIBRARY
        if find_flaw(target) or _may_have_more_forms(folder):
            with storage_errors("write", folder), wait_for_lock(folder / "lock"):
                if why := find_flaw(target) or _may_have_more_forms(folder):  # else another process has built it
                    again = f" again, since {why}" if target.exists() else ", once on this machine"
                    _logger.warning("compiling native operators%s (about a minute of processor time)", again)
                    _build(folder, progress)
                    if why := find_flaw(target):
                        raise BuildError(why)
        return target
    except BuildError as error:
        raise BuildError("; ".join(map(str, filter(None, (flaw, error))))) from error


def build_into(folder: Path) -> Path:
    """Compile the library in a folder in ``folder``, for an installation, and return its path; its hash is beside it.

    Raises:
        BuildError: as for ``library``.
    """
    _check_system()
    target = folder / _name() / LIBRARY
    target.parent.mkdir(parents=True, exist_ok=True)
    _build(target.parent)
    return target


def missing_forms(folder: Path) -> dict[str, str]:
    """Return the instruction sets that the build in ``folder`` has no form for, and why."""
    return _missing_and_tried(folder)[0]


def _may_have_more_forms(folder: Path) -> str | None:
    """Return why the build in ``folder`` should be repeated, namely a compiler that has not been tried; None if not."""
    missing, tried = _missing_and_tried(folder)
    new = [name for name in map(_identity, _compilers()) if name not in tried] if missing else []
    return f"{new[0]} may compile its {', '.join(missing)}" if new else None


def _missing_and_tried(folder: Path) -> tuple[dict[str, str], list[object]]:
    """Return why forms are missing by instruction set, and the compilers tried, by ``forms.json``, if there is one."""
    try:
        found = read_json(folder / FORMS, "the forms of native operators")
    except (DataError, StorageError):
        found = None
    why, tried = (found.get("missing"), found.get("tried")) if isinstance(found, dict) else (None, None)
    missing = {isa: str(why[isa]) for isa in INSTRUCTION_SETS if isa in why} if isinstance(why, dict) else {}
    return missing, tried if isinstance(tried, list) else []


def sources(isa: str | None) -> list[Path]:
    """Return the sources of an instruction set, or those for any processor if it is None."""
    found = sorted(SOURCES.glob("*.cpp"))
    if isa is not None and isa in _SOURCES:
        return [path for path in found if path.name in _SOURCES[isa]]
    return [path for path in found if (path.name == _FOR_ANY_PROCESSOR) == (isa is None)]


def _check_system() -> None:
    if (platform.system(), platform.machine()) not in _SYSTEMS:
        this = f"{platform.machine()} {platform.system()}"
        raise BuildError(f"they require Linux on x86-64 or 64-bit Arm, or macOS on Apple silicon, but this is {this}")


def find_compiler() -> tuple[list[str], str]:
    """Return the command of the C++ compiler and its version text: of ``$CXX``, g++, clang++ or c++.

    ``$CXX`` is split as a shell does, so it may have arguments: ``ccache g++``.

    Raises:
        BuildError: there is no compiler.
    """
    command = _compilers()[0]
    return command, f"{shlex.join(command)}\n{run_program([*command, '--version'])}"


def _compilers() -> list[list[str]]:
    """Return the command of each C++ compiler, the preferred one first. Raises BuildError if there is none."""
    found: dict[tuple[Path | str, ...], list[str]] = {}
    for name, *options in filter(None, (_given_compiler(), ["g++"], ["clang++"], ["c++"])):
        if path := shutil.which(name):
            found.setdefault((Path(path).resolve(), *options), [path, *options])
    if not found:
        raise BuildError("there is no C++ compiler; install g++ or clang++, or set CXX")
    return list(found.values())


def _given_compiler() -> list[str]:
    try:
        return shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise BuildError(f"CXX is {os.environ['CXX']}, which a shell could not split: {error}") from error


def _identity(command: Sequence[str]) -> str:
    """Return the command of a compiler with the time of its file, which an update changes."""
    return f"{shlex.join(command)} of {Path(command[0]).stat().st_mtime_ns}"


def _name() -> str:
    """Return the folder name of a build, a hash of sources, flags and ABI.

    Neither compiler nor version of the C library is part of it: any build that can be loaded computes the same.
    """
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(f"{path.name}\n".encode() + path.read_bytes())
    abi = platform.machine(), platform.libc_ver()[0]
    options = [word for word in _given_compiler() if word.startswith("-")]
    digest.update(f"{_FLAGS}{options}{dict(INSTRUCTION_SETS)}{dict(_SOURCES)}{abi}".encode())
    return digest.hexdigest()[:24]


def _build(folder: Path, progress: Callable[[int, int], None] | None = None) -> None:
    pending: dict[str | None, list[str]] = {isa: [] for isa in (None, *INSTRUCTION_SETS)}
    objects: list[str] = []
    tried, linker = [], None
    with compiling_in(folder) as work:
        for compiler in _compilers():
            tried.append(_identity(compiler))
            failed = _compile(compiler, pending, work, progress)
            for isa in [isa for isa in pending if isa not in failed]:
                linker = compiler if isa is None else linker
                del pending[isa]
                objects += [f"{work}/{isa}/{source.stem}.o" for source in sources(isa)]
            for isa, why in failed.items():
                pending[isa].append(why)
            if not pending:
                break
        if linker is None or len(pending) == len(INSTRUCTION_SETS):
            raise BuildError(next(iter(pending.values()))[0])
        missing = {str(isa): "; ".join(dict.fromkeys(whys)) for isa, whys in pending.items()}
        for isa, why in missing.items():
            _logger.warning("the native operators have no %s form, since %s", isa, why)
        linked = work / LIBRARY
        run_program([*linker, "-shared", "-o", str(linked), *objects], temporary=work)
        commit(linked, folder, dump_json({"missing": missing, "tried": tried}))


def _compile(
    compiler: Sequence[str],
    forms: Collection[str | None],
    work: Path,
    progress: Callable[[int, int], None] | None,
) -> dict[str | None, str]:
    """Compile the sources of forms to ``<work>/<form>/<source>.o``; return why, of those that the compiler fails at."""
    failed, jobs = {}, []
    for isa in forms:
        flags = () if isa is None else INSTRUCTION_SETS[isa]
        if not _knows(compiler, flags):
            failed[isa] = f"{shlex.join(compiler)} does not know {' '.join(flags)}"
            continue
        (work / str(isa)).mkdir(exist_ok=True)
        names = () if isa is None else (f"-DHB_ISA={isa}", f"-DHB_{isa.upper()}")
        for source in sources(isa):
            target = work / str(isa) / f"{source.stem}.o"
            jobs.append((isa, [*compiler, *_FLAGS, *names, *flags, "-c", str(source), "-o", str(target)]))

    def attempt(job: tuple[str | None, list[str]]) -> str | None:
        try:
            run_program(job[1], temporary=work)
        except BuildError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(usable_cores()) as pool:
        for done, ((isa, _), why) in enumerate(zip(jobs, pool.map(attempt, jobs), strict=True), 1):
            if why is not None:
                failed.setdefault(isa, why)
            if progress is not None:
                progress(done, len(jobs))
    return failed


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
        code = done.returncode
        ended = f"exit code {code}" if code > 0 else f"ended by {signal.Signals(-code).name}"
        told = next((line for line in done.stderr.splitlines() if "error" in line), ended)
        raise BuildError(f"{command[0]} fails: {told.strip()}")
    return done.stdout
