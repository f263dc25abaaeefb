"""The selection between PyTorch's and native operators (``precision.kernels``).

It is a setting of the process, like the number of threads: ``use`` sets it, and the operators of `hornbook.ops` call
``form_of``. `hornbook.ops.native.choice` selects the kernels of a run.
"""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from weakref import ref

import torch
from torch import Tensor

from hornbook.ops.native.library import SUFFIXES, Form
from hornbook.parallel.ranks import is_cut, own_part

BLOCKS = "block_sparse_f32"
"""Name of the kernel of block-sparse products."""


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
    version: int | None = None
    """That of the weight, if an update has written the copy since then."""


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
    copies, part = unchanged.copies, own_part(weight)
    if copies is None or weight.dtype == dtype or not isinstance(weight, torch.nn.Parameter):
        return part.to(dtype)
    key = (id(weight), dtype)
    known = copies.get(key)
    if known is None or (known.block != unchanged.block and known.version != part._version):
        known = copies[key] = Copy(weight, part.to(dtype))
    known.block, known.version = unchanged.block, None
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
