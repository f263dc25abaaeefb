"""Load the compiled library, and check and time the forms of its kernels on this machine.

::

    Kernel("linear_bf16", dtype, check, trial)      a group of C functions that are selected together
    seconds(kernel)  ->  {"avx512": 0.0011, "avx512bf16": 0.0018, "torch": 0.0019}
    Form("avx512")("linear_product_bf16", x, ...)   calls hb_avx512_linear_product_bf16

The newest form is not always the fastest: Intel processors without AMX multiply bf16 pairs at half the rate of floats,
AMD's at twice the rate. So each form is timed and compared with float64, within milliseconds, once per machine; the
user's cache has the results, for the build of the library, the processor, PyTorch, and the code that found them. A form
that disagrees is never used.
"""

import ctypes
import functools
import hashlib
import math
import re
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from hornbook.errors import DataError, StorageError
from hornbook.ops.native.build import HALVES, INSTRUCTION_SETS, TILES, library, missing_forms
from hornbook.ops.native.cache import BuildError, default_cache, make_private
from hornbook.storage.files import replace_file
from hornbook.storage.json_files import dump_json, parse_json, read_bytes
from hornbook.storage.system import cpu_facts, wait_for_lock
from hornbook.track.environment import cpu_model

SUFFIXES: Final[Mapping[torch.dtype, str]] = {torch.float32: "f32", torch.bfloat16: "bf16"}
"""Suffixes of C functions by the dtype of the activations."""
PYTORCH = "torch"
"""Represents PyTorch's operators among the names of instruction sets."""
_FIRST_ROUNDS, _ROUNDS, _MOST_ROUNDS = 3, 7, 40
_SPREAD, _FAR = 1.03, 1.5
MOST_PRODUCTS: Final = 1 << 28
"""Multiplications of one product of a trial, which take some ten milliseconds."""
_RUNTIME = re.compile(r"(libgomp|libiomp5|libomp)[^/]*\.so[.\d]*$")
_LONGEST_PROBE = 60.0


@dataclass(frozen=True)
class Form:
    """The functions of the library for one instruction set."""

    isa: str
    """A key of ``INSTRUCTION_SETS``."""

    def __call__(self, name: str, *arguments: "int | Tensor | None") -> int:
        """Call ``hb_<isa>_<name>`` and return its int64; a function without a result returns any number.

        A tensor is passed as the address of its first element, None as a null pointer, an integer as int64; C functions
        of the library have no other types of arguments.
        """
        words = (each.data_ptr() if isinstance(each, Tensor) else each or 0 for each in arguments)
        return int(_function(self.isa, name)(*map(ctypes.c_int64, words)))


@dataclass(frozen=True)
class Shape:
    """What the times of a run's kernels depend on; that of the trials without a run by default."""

    tokens: int = 1024
    """Of a step."""
    hidden_size: int = 384
    feed_forward_size: int = 768
    sequence_length: int = 256
    head_size: int = 64
    vocab_size: int = 8192
    activation: str = "gelu_tanh"
    """Of the feed-forward."""
    is_gated: bool = False
    """Whether the feed-forward's activation multiplies the results of another layer."""
    has_bias: bool = True
    """Whether the feed-forward's layers add biases."""

    def rounded(self) -> "Shape":
        """Return the class of the shape, so that similar runs share their times.

        Sizes become the next 2ⁿ or 1.5·2ⁿ, so that they keep what affects blocks of caches. Tokens become few enough
        for a trial of some ten milliseconds, but at least 256 if there are more.
        """
        ceilings = sorted(base << bits for base in (2, 3) for bits in range(16))
        given = {name: size for name, size in vars(self).items() if type(size) is int}  # a bool is an int, too
        sizes: dict[str, Any] = {name: next((c for c in ceilings if c >= n), ceilings[-1]) for name, n in given.items()}
        # wider products leave the caches in the same way, but their weights take gigabytes
        hidden, inner = min(sizes["hidden_size"], 1024), min(sizes["feed_forward_size"], 4096)
        sizes |= {"hidden_size": hidden, "feed_forward_size": inner}
        most = min(2048, max(256, MOST_PRODUCTS // (hidden * inner)))
        sizes["tokens"] = max(c for c in ceilings if c <= min(most, sizes["tokens"]))
        sizes["sequence_length"] = min(sizes["sequence_length"], 512)
        sizes["vocab_size"] = min(sizes["vocab_size"], 1 << 15)
        return replace(self, **sizes)


DEFAULT_SHAPE: Final = Shape()


@dataclass(frozen=True)
class Kernel:
    """A group of C functions that are checked, timed and selected together."""

    name: str
    """Ends with the dtype, if there is one: ``linear_bf16``."""
    dtype: torch.dtype | None
    """Dtype of the activations; None: the kernel does not depend on it."""
    check: Callable[[Form, Any], bool]
    """Compares a form with PyTorch's operators on small inputs."""
    trial: Callable[..., None]
    """Runs a typical call to be timed, given the form, None for PyTorch's operators, the dtype, and ``sizes``."""
    special: Collection[str] = ()
    """Which of ``HALVES`` and ``TILES`` it has a form for."""
    sizes: tuple[str, ...] = ()
    """The fields of ``Shape`` that its time depends on."""

    @property
    def instruction_sets(self) -> tuple[str, ...]:
        """The forms that this machine supports, newest first."""
        return tuple(isa for isa in instruction_sets() if isa in self.special or isa not in (HALVES, TILES))


class _Runtime(ctypes.Structure):
    """``Runtime`` of ``csrc/runtime.h``."""

    functions = ("GOMP_parallel", "GOMP_barrier", "omp_get_thread_num", "omp_get_num_threads")
    _fields_ = [(name, ctypes.c_void_p) for name in functions]


@functools.cache
def load() -> ctypes.CDLL | BuildError:
    """Return the library, built if necessary, or the reason why it cannot be built or loaded."""
    try:
        return open_library(_path())
    except BuildError as error:
        return error
    except (OSError, AttributeError, StorageError) as error:
        return BuildError(str(error))


@functools.cache
def _path() -> Path:
    """Return the path of the library, built if necessary; it is verified once per process."""
    return library()


def open_library(path: Path) -> ctypes.CDLL:
    """Load a build of the library, and pass it PyTorch's OpenMP runtime; on macOS it does without one, on one thread.

    Raises:
        BuildError: PyTorch has loaded no OpenMP runtime.
        OSError: the library or the runtime cannot be loaded.
        AttributeError: a function is missing in one of them.
    """
    built = ctypes.CDLL(str(path))
    if sys.platform == "darwin":
        return built
    runtime = ctypes.CDLL(str(openmp_runtime()))
    addresses = [ctypes.cast(getattr(runtime, name), ctypes.c_void_p) for name in _Runtime.functions]
    built.hb_use_runtime(ctypes.byref(_Runtime(*addresses)))
    return built


def openmp_runtime() -> Path:
    """Return the path of the OpenMP runtime that this process has loaded with torch.

    It is libgomp in PyTorch's wheels, Intel's or LLVM's elsewhere.

    Raises:
        BuildError: no OpenMP runtime is loaded.
    """
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    files = [line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) == 6]
    found = next((file for file in files if _RUNTIME.search(file)), None)
    if found is None:
        raise BuildError("PyTorch has loaded no OpenMP runtime")
    return Path(found)


@functools.cache
def instruction_sets() -> tuple[str, ...]:
    """Return the forms that library and processor support, newest first; none if the library cannot be built."""
    built = load()
    if isinstance(built, BuildError):
        return ()
    bits = built.hb_instruction_sets()
    present = [isa for bit, isa in enumerate(INSTRUCTION_SETS) if bits >> bit & 1]
    compiled = [isa for isa in reversed(present) if hasattr(built, f"hb_{isa}_works")]
    return tuple(isa for isa in compiled if isa != TILES or _works(_path(), isa))


def second_level_cache(forced: int = 0) -> int | None:
    """Return the bytes of the second-level cache that blocks of kernels are cut for; None without a library.

    They are those that the system reports, limited to 256 KiB to 2 MiB, and 512 KiB if it reports none. Results do not
    depend on them. Tests replace them by ``forced``.
    """
    built = load()
    if isinstance(built, BuildError):
        return None
    built.hb_second_level_cache.restype = ctypes.c_int64
    return int(built.hb_second_level_cache(ctypes.c_int64(forced)))


def form_states() -> dict[str, str]:
    """Return, for each instruction set, "available" or why there is no form of it here; nothing without a library."""
    built = load()
    if isinstance(built, BuildError):
        return {}
    missing, bits = missing_forms(_path().parent), built.hb_instruction_sets()
    states = {}
    for bit, isa in enumerate(INSTRUCTION_SETS):
        if isa in instruction_sets():
            states[isa] = "available"
        elif isa in missing:
            states[isa] = f"not compiled, since {missing[isa]}"
        elif not bits >> bit & 1:
            states[isa] = "not supported by this processor or its operating system"
        else:
            states[isa] = "its instructions do not run here"
    return states


def _works(built: Path, isa: str) -> bool:
    """Return whether the instructions of a form run, tested in a separate process, which they may kill.

    CPUID is sufficient for vectors, but tiles also need the permission of the kernel and support by a hypervisor.
    """
    program = f"import ctypes; built = ctypes.CDLL({str(built)!r}); built.hb_instruction_sets()"
    command = [sys.executable, "-I", "-S", "-c", f"{program}; raise SystemExit(built.hb_{isa}_works() != 1)"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, timeout=_LONGEST_PROBE).returncode == 0
    return False


@functools.cache
def is_right(kernel: Kernel, isa: str) -> bool:
    """Return whether this machine supports the form and it passes the kernel's check, made once per machine."""

    def check() -> dict[str, float]:
        with torch.no_grad():
            return {isa: float(kernel.check(Form(isa), kernel.dtype))}

    return isa in kernel.instruction_sets and bool(_found_once(f"{kernel.name} {isa} is right", (isa,), check)[isa])


def seconds(kernel: Kernel, shape: Shape = DEFAULT_SHAPE) -> Mapping[str, float]:
    """Return the time of the kernel's trial for each instruction set, and for ``PYTORCH``.

    It is processor time on one thread, on which other load has little effect, and measured once per machine and class
    of shapes, so that the selection does not change.
    """
    sizes = {name: size for name, size in vars(shape.rounded()).items() if name in kernel.sizes}
    name = " ".join([kernel.name, *(f"{size_name}={size}" for size_name, size in sizes.items())])
    return _found_once(name, (PYTORCH, *kernel.instruction_sets), functools.partial(_measure, kernel, sizes))


def _measure(kernel: Kernel, sizes: Mapping[str, int | str]) -> dict[str, float]:
    """Return the shortest time of each form, which other processes can only lengthen.

    Rounds are added until each form's shortest time is confirmed by another one, or there are too many. Forms that are
    far behind after the first rounds are left out of the others; the form with partial sums in fp16, which few runs
    permit, leaves out none.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    taken: dict[str, list[float]] = {isa: [] for isa in (PYTORCH, *kernel.instruction_sets)}
    near = taken
    try:
        with torch.no_grad():
            for number in range(_MOST_ROUNDS):
                shortest = {isa: sorted(times[1:])[:2] for isa, times in near.items()}  # the first ones warm up
                if number == _FIRST_ROUNDS:
                    limit = _FAR * min(times[0] for isa, times in shortest.items() if isa != HALVES)
                    near = {isa: taken[isa] for isa, times in shortest.items() if times[0] <= limit}
                elif number > _ROUNDS and all(second <= _SPREAD * first for first, second in shortest.values()):
                    break
                for isa, times in near.items():
                    start = time.thread_time()
                    kernel.trial(None if isa == PYTORCH else Form(isa), kernel.dtype, **sizes)
                    times.append(time.thread_time() - start)
    finally:
        torch.set_num_threads(threads)
    return {isa: min(times[1:]) for isa, times in taken.items()}


def _found_once(name: str, forms: Collection[str], find: Callable[[], Mapping[str, float]]) -> Mapping[str, float]:
    """Return what ``find`` returns for ``forms``, called once per machine and build of the library.

    Processes that start together use what one of them finds. Without a cache, each finds it.
    """
    found: Mapping[str, float] = {}
    try:
        file = _facts_file()
        found = _known_facts(file).get(_circumstances(), {}).get(name, {})
        if not found.keys() >= {*forms}:
            make_private(file.parent)
            with wait_for_lock(file.parent / "lock"):
                known = _known_facts(file)
                here = known.get(_circumstances(), {})
                found = here.get(name, {})
                if not found.keys() >= {*forms}:
                    found = find()
                    replace_file(file, dump_json({**known, _circumstances(): {**here, name: found}}))
    except (BuildError, StorageError):
        return found if found.keys() >= {*forms} else find()
    return found


def _facts_file() -> Path:
    """Return the path of what was found, in the cache also for an installed library. Raises BuildError."""
    return default_cache() / _path().parent.name / "seconds.json"  # an installation may be read-only


def _known_facts(file: Path) -> dict[str, dict[str, Mapping[str, float]]]:
    """Return the facts in a file by circumstances and name; none if it cannot be read."""
    try:
        return _parsed(read_bytes(file, "the times of native operators"))
    except (DataError, StorageError):
        return {}


@functools.lru_cache(1)  # the file is read again for each kernel, and rarely changes
def _parsed(content_bytes: bytes) -> dict[str, dict[str, Mapping[str, float]]]:
    """Return the facts without those that cannot be numbers of forms."""
    content, isas = parse_json(content_bytes, "the file of times"), {PYTORCH, *INSTRUCTION_SETS}
    return {
        circumstances: {
            name: found
            for name, found in facts.items()
            if isinstance(found, dict)
            and found.keys() <= isas
            and all(isinstance(number, float) and 0 <= number < math.inf for number in found.values())
        }
        for circumstances, facts in (content.items() if isinstance(content, dict) else ())
        if isinstance(facts, dict) and (circumstances + "".join(facts)).isprintable()
    }


@functools.cache
def _circumstances() -> str:
    """Return what facts depend on besides the library: the processor, PyTorch, and the Python code that finds them."""
    digest, native = hashlib.sha256(), Path(__file__).parent
    for path in sorted((*native.glob("*.py"), *native.parent.glob("*.py"))):  # trials call the operators of both
        digest.update(path.read_bytes())
    facts = cpu_facts()  # hypervisors give different processors one name
    numbers = " ".join(f"{name} {facts.get(name, '?')}" for name in ("cpu family", "model", "stepping"))
    return f"{cpu_model()}, {numbers}, PyTorch {torch.__version__}, trials {digest.hexdigest()[:12]}"


@functools.cache
def _function(isa: str, name: str) -> Any:
    """Return the C function ``hb_<isa>_<name>``, whose arguments and result are 64-bit words."""
    found = getattr(load(), f"hb_{isa}_{name}")
    found.restype = ctypes.c_int64
    return found


def rows(x: Tensor) -> Tensor:
    """Return ``x`` ``[..., columns]`` as ``[rows, columns]`` with contiguous rows, a view if possible."""
    x = x.reshape(x.shape[:-1].numel(), x.shape[-1])
    return x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()
