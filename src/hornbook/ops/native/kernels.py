"""Whose operators compute: PyTorch's, or hornbook's own (``precision.kernels``).

One setting of the process, like the number of threads: ``use`` sets it, and the operators of `hornbook.ops` ask
``is_native`` when they are called. A kernel whose check fails computes with PyTorch whatever is set.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from hornbook.ops.native.build import BuildError
from hornbook.ops.native.library import instruction_sets, load

KernelChoice = Literal["auto", "torch", "native"]
_AUTO_DTYPES = (torch.bfloat16,)
"""fp32 stays with PyTorch unless asked otherwise: its products are as fast there, and old runs keep their numbers."""


@dataclass(frozen=True)
class Kernels:
    """Whose operators compute, and why."""

    is_native: bool
    why: str
    dtypes: tuple[torch.dtype, ...] = ()
    """Dtypes of the activations that native operators take."""
    keeps_packed: bool = True
    """Whether packed weights may be kept until the weight's version changes; not where weights come and go (FSDP)."""

    def __str__(self) -> str:
        return f"{'native' if self.is_native else 'torch'} ({self.why})"


TORCH = Kernels(is_native=False, why="not asked for")
_in_use = TORCH


def choose(asked: KernelChoice, device: torch.device, dtype: torch.dtype, *, keeps_packed: bool = True) -> Kernels:
    """Return whose operators ``precision.kernels = asked`` means for activations of ``dtype`` on ``device``."""
    if asked == "torch":
        return Kernels(is_native=False, why="precision.kernels")
    if device.type != "cpu":
        return Kernels(is_native=False, why=f"native operators are for CPUs, and this is {device.type}")
    dtypes = (torch.float32, torch.bfloat16) if asked == "native" else _AUTO_DTYPES
    if dtype not in dtypes:
        return Kernels(is_native=False, why=f"auto takes native operators for bf16, and this is {dtype}")
    built = load()
    if isinstance(built, BuildError):
        return Kernels(is_native=False, why=str(built))
    if not instruction_sets():
        return Kernels(is_native=False, why="the processor has no AVX2")
    return Kernels(is_native=True, why=instruction_sets()[0], dtypes=dtypes, keeps_packed=keeps_packed)


def use(kernels: Kernels) -> Kernels:
    """Let ``kernels`` compute from now on in this process; returns those before."""
    global _in_use
    before, _in_use = _in_use, kernels
    return before


def in_use() -> Kernels:
    """Return whose operators compute now."""
    return _in_use


def is_native(x: Tensor) -> bool:
    """Tell whether native operators take activations like ``x``."""
    return _in_use.is_native and x.dtype in _in_use.dtypes and x.device.type == "cpu"
