"""Whose operators compute: PyTorch's, or hornbook's own (``precision.kernels``).

One setting of the process, like the number of threads: ``use`` sets it, and the operators of `hornbook.ops` ask
``form_of`` when they are called. `hornbook.ops.native.choice` makes the setting of a run.
"""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor

from hornbook.ops.native.library import Form
from hornbook.ops.native.operands import SUFFIXES

BLOCKS = "block_sparse_f32"
"""The kernel of block-sparse products."""


@dataclass(frozen=True)
class Kernels:
    """Whose operators compute, and why."""

    why: str
    forms: Mapping[str, str] = field(default_factory=dict)
    """The instruction set of each kernel that computes, by its name; PyTorch computes all others."""
    blocks: str | None = None
    """That of block-sparse products, ``PYTORCH`` where none computes them; None: not chosen, so the newest one may."""

    @property
    def record(self) -> dict[str, str]:
        """What a run keeps of them, to be computed in the same way when it goes on."""
        return dict(self.forms) if self.blocks is None else {**self.forms, BLOCKS: self.blocks}

    def __str__(self) -> str:
        forms = ", ".join(f"{kernel} {isa}" for kernel, isa in self.forms.items())
        return f"native: {forms} ({self.why})" if forms else f"torch ({self.why})"


FORMS: dict[str, str] = {}
"""``Kernels.forms`` in use; empty where PyTorch computes all, which callers ask before they call anything here."""
NOT_CHOSEN = Kernels(why="nothing else was asked for")
"""In use before a run chooses; what generates then chooses for itself."""
_in_use = NOT_CHOSEN
_periods = itertools.count(1)
_period: int | None = None
_adds_gradients = True


def use(kernels: Kernels) -> Kernels:
    """Let ``kernels`` compute from now on in this process; returns those before."""
    global _in_use
    before, _in_use = _in_use, kernels
    FORMS.clear()
    FORMS.update(kernels.forms)
    return before


@contextmanager
def using(kernels: Kernels) -> Iterator[None]:
    """Let ``kernels`` compute within the block."""
    before = use(kernels)
    try:
        yield
    finally:
        use(before)


def in_use() -> Kernels:
    """Return whose operators compute now."""
    return _in_use


@contextmanager
def weights_unchanged() -> Iterator[None]:
    """Promise that weights stay as they are within the block, so that each is packed once.

    A weight's version counter does not tell: PyTorch's fused optimizers leave it, and so does FSDP when it gathers a
    weight anew.
    """
    global _period
    before, _period = _period, next(_periods)
    try:
        yield
    finally:
        _period = before


@contextmanager
def gradients_returned() -> Iterator[None]:
    """Let native backward passes return all gradients of weights within the block, and add none to ``.grad``.

    `torch.autograd.grad` needs them, and zero-bubble schedules run a backward pass once for inputs, once for weights.
    """
    global _adds_gradients
    before, _adds_gradients = _adds_gradients, False
    try:
        yield
    finally:
        _adds_gradients = before


def adds_gradients() -> bool:
    """Tell whether gradients of weights may be added to ``.grad``: in an executor's passes, if it allows this."""
    return _adds_gradients and _period is not None


def period() -> int | None:
    """Return a number of the block of ``weights_unchanged`` around the caller, None outside of one."""
    return _period


def form_of(operator: str, x: Tensor) -> Form | None:
    """Return the form of an operator, such as ``linear``, for activations like ``x``; None if PyTorch computes it."""
    if x.device.type != "cpu" or x.dtype not in SUFFIXES:
        return None
    isa = FORMS.get(f"{operator}_{SUFFIXES[x.dtype]}")
    return None if isa is None else Form(isa)
