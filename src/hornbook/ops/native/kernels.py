"""The compiled library: its forms, and the selection between them and PyTorch's operators (``precision.kernels``).

::

    Form("avx512")("linear_product_bf16", x, ...)   calls hb_avx512_linear_product_bf16
    form_of("linear", x, weight)                    the form that a run uses for these tensors, if any

The selection is a setting of the process, like the number of threads: ``use`` sets it, and the operators of
`hornbook.ops` call ``form_of``. `hornbook.ops.native.choice` selects the kernels of a run.
"""

import ctypes
import functools
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from weakref import ref

import torch
from torch import Tensor

from hornbook.errors import StorageError
from hornbook.ops.native.build import INSTRUCTION_SETS, TILES, library, missing_forms
from hornbook.ops.native.cache import BuildError
from hornbook.parallel.ranks import is_cut, own_part

SUFFIXES: Final[Mapping[torch.dtype, str]] = {torch.float32: "f32", torch.bfloat16: "bf16"}
"""Suffixes of C functions by the dtype of the activations."""
PYTORCH = "torch"
"""Represents PyTorch's operators among the names of instruction sets."""
_RUNTIME = re.compile(r"(libgomp|libiomp5|libomp)[^/]*\.so[.\d]*$")
_LONGEST_PROBE = 60.0
BLOCKS = "block_sparse_f32"
"""Name of the kernel of block-sparse products."""


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


class _Runtime(ctypes.Structure):
    """``Runtime`` of ``csrc/runtime.h``."""

    functions = ("GOMP_parallel", "GOMP_barrier", "omp_get_thread_num", "omp_get_num_threads")
    _fields_ = [(name, ctypes.c_void_p) for name in functions]


@functools.cache
def load() -> ctypes.CDLL | BuildError:
    """Return the library, built if necessary, or the reason why it cannot be built or loaded."""
    try:
        return open_library(path_of_library())
    except BuildError as error:
        return error
    except (OSError, AttributeError, StorageError) as error:
        return BuildError(str(error))


@functools.cache
def path_of_library() -> Path:
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
    return tuple(isa for isa in compiled if isa != TILES or _works(path_of_library(), isa))


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
    missing, bits = missing_forms(path_of_library().parent), built.hb_instruction_sets()
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
def _function(isa: str, name: str) -> Any:
    """Return the C function ``hb_<isa>_<name>``, whose arguments and result are 64-bit words."""
    found = getattr(load(), f"hb_{isa}_{name}")
    found.restype = ctypes.c_int64
    return found


def rows(x: Tensor) -> Tensor:
    """Return ``x`` ``[..., columns]`` as ``[rows, columns]`` with contiguous rows, a view if possible."""
    x = x.reshape(x.shape[:-1].numel(), x.shape[-1])
    return x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()


@dataclass(frozen=True)
class Kernels:
    """The selected native kernels, and the reason."""

    why: str
    forms: Mapping[str, str] = field(default_factory=dict)
    """The instruction set of each selected kernel, by the kernel's name; PyTorch computes all others."""
    blocks: str | None = None
    """The instruction set of block-sparse products, or ``PYTORCH``; None uses the newest one."""

    @property
    def record(self) -> dict[str, str]:
        """The selection as a run stores it, to use the same kernels when it is resumed."""
        return dict(self.forms) if self.blocks is None else {**self.forms, BLOCKS: self.blocks}

    def __str__(self) -> str:
        if self.forms and all(kernel.startswith("triton_") for kernel in self.forms):
            return f"Triton: {', '.join(kernel.removeprefix('triton_') for kernel in self.forms)} ({self.why})"
        forms = ", ".join(f"{kernel} {isa}" for kernel, isa in self.forms.items())
        return f"native: {forms} ({self.why})" if forms else f"torch ({self.why})"


FORMS: dict[str, str] = {}
"""``Kernels.forms`` of the kernels in use. It is empty if PyTorch computes everything, so callers test it first."""
NOT_CHOSEN = Kernels(why="nothing else was asked for")
"""The kernels of a process that has not called ``use``: generation then selects the form of ``token_block`` itself."""
_in_use = NOT_CHOSEN


@dataclass(eq=False)
class Copy:
    """A weight and its copy in 16 bits, of a split weight this rank's part."""

    weight: Tensor
    values: Tensor
    block: int | None = None
    """The last ``weights_unchanged`` block that used it."""
    updated: tuple[Tensor, int] | None = None
    """What an update has changed when it wrote the copy since then, and its version: a tied table has two if split."""

    @property
    def is_current(self) -> bool:
        """Whether an update has written the copy, and nothing has changed the weight since."""
        return self.updated is not None and self.updated[0]._version == self.updated[1]


Copies = dict[tuple[int, torch.dtype], Copy]
"""By the identity of a weight and the dtype."""


@dataclass(frozen=True)
class Unchanged:
    """The ``weights_unchanged`` block that runs; by default none does."""

    block: int | None = None
    """Its number."""
    copies: Copies | None = None
    """None if copies are not kept."""
    adds_gradients: bool = False
    """Whether the backward pass of a forward pass may add gradients of weights to ``.grad``: in executors."""


unchanged = Unchanged()
_numbers = itertools.count(1)
_summed: tuple[tuple[ref[torch.UntypedStorage], int, int], Tensor] | None = None
"""The last gradient that a kernel stored with its sums over the rows, with its version, and these."""


def use(kernels: Kernels) -> Kernels:
    """Set the kernels of this process, and return the previous ones."""
    global _in_use
    before, _in_use = _in_use, kernels
    FORMS.clear()
    FORMS.update(kernels.forms)
    return before


@contextmanager
def using(kernels: Kernels) -> Iterator[None]:
    """Set the kernels of this process in the ``with`` block."""
    before = use(kernels)
    try:
        yield
    finally:
        use(before)


def in_use() -> Kernels:
    """Return the kernels in use."""
    return _in_use


@contextmanager
def weights_unchanged(copies: Copies | None = None) -> Iterator[None]:
    """Declare that weights do not change in the ``with`` block, so that each is packed once.

    With ``copies``, where they are kept, `copy_of` makes one copy of each; ranks that hold shards have no memory for
    all copies.

    A weight's version counter is not sufficient: PyTorch's fused optimizers do not increment it, nor does FSDP when it
    gathers a weight again.
    """
    global unchanged, _summed
    before, unchanged = unchanged, Unchanged(next(_numbers), copies, adds_gradients=True)
    try:
        yield
    finally:
        unchanged, _summed = before, None


@contextmanager
def gradients_returned() -> Iterator[None]:
    """Make backward passes return gradients of weights, for forward passes in this block inside of `weights_unchanged`.

    `torch.autograd.grad` requires this, and so do zero-bubble schedules, which run separate backward passes for inputs
    and weights.
    """
    global unchanged
    before, unchanged = unchanged, replace(unchanged, adds_gradients=False)
    try:
        yield
    finally:
        unchanged = before


def copy_of(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``weight`` in a dtype, without a gradient; a parameter once, if ``weights_unchanged`` keeps copies.

    Of a split weight, it is this rank's part. A copy that the update before wrote is returned if nothing else has
    changed the weight since.
    """
    copies = unchanged.copies
    if copies is None or weight.dtype == dtype or not isinstance(weight, torch.nn.Parameter):
        return own_part(weight).to(dtype)
    key = (id(weight), dtype)
    known = copies.get(key)
    if known is None or not (known.block == unchanged.block or known.is_current):
        known = copies[key] = Copy(weight, own_part(weight).to(dtype))
    known.block, known.updated = unchanged.block, None
    return known.values


def note_sums(gradient: Tensor, sums: Tensor) -> Tensor:
    """Return ``gradient`` ``[..., C]`` after noting its sums over the rows ``[C]`` for the layer that gets it next."""
    global _summed
    if gradient.is_contiguous():  # a reference to its memory only, which other layers may free
        _summed = ((ref(gradient.untyped_storage()), gradient.numel(), gradient._version), sums)
    return gradient


def sums_of(gradient: Tensor) -> Tensor:
    """Return the sums of ``gradient`` ``[..., C]`` over the rows, fp32 ``[C]``, which ``note_sums`` may know."""
    global _summed
    known, _summed = _summed, None
    if known is not None and len(known[1]) == gradient.shape[-1] and gradient.is_contiguous():
        storage, *shape = known[0]
        if storage() is gradient.untyped_storage() and shape == [gradient.numel(), gradient._version]:
            return known[1]
    return gradient.flatten(0, -2).sum(0, dtype=torch.float32)


def form_of(operator: str, x: Tensor, *weights: Tensor | None) -> Form | None:
    """Return the form of an operator, such as ``linear``, for activations like ``x``; None if PyTorch computes it.

    It does for weights in 16 bits, or split over ranks.
    """
    if not FORMS or x.device.type != "cpu" or x.dtype not in SUFFIXES:
        return None
    isa = FORMS.get(f"{operator}_{SUFFIXES[x.dtype]}")
    for weight in weights if isa else ():
        if weight is not None and (weight.dtype != torch.float32 or is_cut(weight)):
            return None
    return None if isa is None else Form(isa)
