"""The device of a process: its choice, threads, dtype of activations, and settings for speed and exact fp32.

Parameters, gradients and optimizer state have separate dtypes, fp32 by default. bf16 is faster on processors that
multiply it natively: GPUs since Ampere, x86 with AMX or AVX512-BF16 (4.7 times the fp32 rate on an EPYC 9004), Apple
GPUs. Elsewhere it is emulated and slower than fp32.

On a CPU, runs in fp32 are reproducible bit for bit. On a GPU, data, order, masks, dropout and initial weights are the
same in every run, but the order of some sums is not deterministic, even in fp32, such as those of embedding gradients.
"""

import ctypes
import os
import sys
from pathlib import Path
from typing import Literal

import torch

from hornbook.errors import UserError
from hornbook.parallel.launched import choose_name
from hornbook.storage.system import MOST_THREADS_PER_CORE, cpu_flags, usable_cores

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Dtypes by their names in options."""
_CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # the last is Arm's name


def choose_device(name: str) -> torch.device:
    """Return the device ``name``: auto, cpu, cuda (that of this local rank), cuda:N or mps.

    Raises UserError if the machine does not have it.
    """
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    present = [*gpus, *(["mps"] if torch.backends.mps.is_available() else []), "cpu"]
    return torch.device(choose_name(name, present, torch.__version__))


def compute_dtype(choice: str, device: torch.device) -> torch.dtype:
    """Return the dtype of the activations: a key of ``DTYPES``, or "auto" for bf16 if the device multiplies it."""
    if choice != "auto":
        return DTYPES[choice]
    if device.type == "cuda":
        is_fast = torch.cuda.get_device_capability(device) >= (8, 0)
    elif device.type == "mps":
        is_fast = torch.backends.mps.is_macos_or_newer(14, 0)
    else:
        is_fast = bool(_CPU_FLAGS & cpu_flags())
    return torch.bfloat16 if is_fast else torch.float32


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype in options, such as "bf16", or PyTorch's name for other dtypes."""
    names = {known: name for name, known in DTYPES.items()}
    return names.get(dtype, str(dtype).removeprefix("torch."))


def prepare(name: str, threads: int | None) -> torch.device:
    """Choose the device, set the number of threads, flush denormals, keep freed memory and disable TF32.

    Call it before computing the first tensor, since OpenMP's threads inherit the setting for denormals from the thread
    that starts them. Denormal numbers make products four to five times slower.

    Args:
        name: of the device, see ``choose_device``.
        threads: their number; None for ``default_threads``.

    Returns:
        The device.

    Raises:
        UserError: the machine does not have the device, or the number of threads is below 1, or above
            `MOST_THREADS_PER_CORE` times the usable cores.
    """
    device = choose_device(name)
    count, name = (default_threads(), "OMP_NUM_THREADS") if threads is None else (threads, "threads")
    if not 1 <= count <= MOST_THREADS_PER_CORE:  # one core may have so many: no need to ask the system
        most = MOST_THREADS_PER_CORE * usable_cores()
        if not 1 <= count <= most:
            told = f"expected 1 to {most} on this machine, {MOST_THREADS_PER_CORE} for each core"
            raise UserError(f"{name} is {count}; {told}")
    torch.set_num_threads(count)
    torch.set_flush_denormal(True)
    # By default, PyTorch rounds the inputs of convolutions to TF32, 10 bits, on NVIDIA GPUs. It has newer settings per
    # operation, but once one of them is set, ``cudnn.flags``, which CTC loss calls, raises an error.
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    if device.type == "cuda":
        torch.cuda.set_device(device)  # streams, random states and Triton's kernels use the current GPU
    if device.type == "cpu":
        # Each step allocates the same buffers again; if glibc returned them to the kernel, page faults would take a
        # third of the step of a transformers GPT-2. In return, the process never shrinks.
        _call_glibc("mallopt", _M_MMAP_MAX, 0)
        _call_glibc("mallopt", _M_TRIM_THRESHOLD, 2**31 - 1)
    return device


def default_threads(local_ranks: int | None = None) -> int:
    """Return ``OMP_NUM_THREADS`` or, by default, this process's share of the physical cores that it may use.

    With several local ranks, a value of 1 is ignored, since torchrun sets it unless the variable is set.

    Args:
        local_ranks: processes of the run on this machine; None for ``LOCAL_WORLD_SIZE``, or 1.
    """
    local_ranks = local_ranks or int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # a list has a value per nesting level
    if asked.isdecimal() and int(asked) > (1 if local_ranks > 1 else 0):
        return int(asked)
    return max(1, min(physical_cores(), usable_cores()) // local_ranks)


def physical_cores() -> int:
    """Return the number of cores that this process may use, on Linux without hyperthreads."""
    if not hasattr(os, "sched_getaffinity"):
        return usable_cores()
    return len({_siblings(cpu) for cpu in os.sched_getaffinity(0)})


def _siblings(cpu: int) -> str:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return path.read_text(encoding="ascii").strip() if path.exists() else str(cpu)


def return_large_buffers() -> None:
    """Make glibc return freed buffers of 32 MiB or more to the kernel, for a process that must stay small.

    Keeping them fragments the heap: after a step of phased execution, the process was 1.5 times as large as its tensors
    had ever been. 32 MiB is the largest threshold that glibc accepts.
    """
    _call_glibc("mallopt", _M_MMAP_MAX, 65536)
    _call_glibc("mallopt", _M_MMAP_THRESHOLD, 32 << 20)


def return_freed_memory() -> None:
    """Make glibc return to the kernel what a training has freed, for a process that goes on with other work.

    A step of 440 MiB of activations, for example, leaves a process of 710 MiB, and then one of 270 MiB. Takes 40 ms.
    """
    _call_glibc("malloc_trim", 0)


def _call_glibc(name: str, *arguments: int) -> None:
    """Call a function of glibc's allocator; without glibc, this has no effect."""
    function = getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None
    if function is not None:
        function(*arguments)


def add_up_in(partials: Literal["auto", "fp32", "half"]) -> None:
    """Set the dtype in which NVIDIA GPUs accumulate bf16 and fp16 products (``precision.partials``).

    ::

                            in a partial sum  over partial sums
        fp32                fp32              fp32
        auto (PyTorch's)    fp32              bf16 or fp16
        half                fp16 for fp16     bf16 or fp16
    """
    matmul, in_half = torch.backends.cuda.matmul, partials != "fp32"
    matmul.allow_bf16_reduced_precision_reduction = matmul.allow_fp16_reduced_precision_reduction = in_half
    matmul.allow_fp16_accumulation = partials == "half"


def copied_to(device: torch.device, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of host memory on ``device``; a GPU gets it through pinned memory, without being waited for."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def memory_in_use(device: torch.device) -> int | None:
    """Return the memory that this process uses, in bytes: of tensors on a GPU, otherwise resident; None if unknown.

    It does not synchronize with the device.
    """
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    if device.type == "mps":
        return torch.mps.current_allocated_memory()
    if not sys.platform.startswith("linux"):
        return None
    with Path("/proc/self/statm").open("rb") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
