"""Select the form of each kernel according to ``precision.kernels``.

::

    auto     each kernel's fastest form, if it is faster than PyTorch's operators on this machine
    native   each kernel's fastest form
    torch    only PyTorch's operators
    avx2     each kernel's form for this instruction set, or the next older one that it has; so for all of them

Forms with partial sums in fp16 are selected only if ``precision.partials`` is ``half``.

On a GPU, Triton's kernels are selected unless ``precision.kernels`` is ``torch`` (`hornbook.ops.triton.operators`).

Block-sparse products are native if possible, also in fp32, unless ``precision.kernels`` is ``torch`` and
``sparsity.kernel`` is ``auto``.

A resumed run keeps its forms as far as the machine has them, so that it continues with the same bits.
"""

import functools
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from hornbook.errors import UserError
from hornbook.ops.native import (
    attention,
    block_sparse,
    cross_entropy,
    dropout,
    layer_norm,
    linear_trial,
    optimizers,
    token_block,
)
from hornbook.ops.native.build import ARCHITECTURES, HALVES, INSTRUCTION_SETS
from hornbook.ops.native.cache import BuildError
from hornbook.ops.native.kernels import (
    BLOCKS,
    NOT_CHOSEN,
    PYTORCH,
    SUFFIXES,
    Form,
    Kernels,
    form_of,
    form_states,
    in_use,
    instruction_sets,
    load,
    weights_unchanged,
)
from hornbook.ops.native.trials import DEFAULT_SHAPE, Kernel, Shape, is_right, seconds
from hornbook.ops.triton import operators, programs

_logger = logging.getLogger("hornbook.ops")
KERNELS: tuple[Kernel, ...] = (
    *linear_trial.KERNELS,
    *attention.KERNELS,
    *layer_norm.KERNELS,
    *cross_entropy.KERNELS,
    *dropout.KERNELS,
    *optimizers.KERNELS,
    *token_block.KERNELS,
)
_MIN_GAIN = 1.05


def choose(
    asked: Literal["auto", "torch", "native", "avx2", "avx512", "avx512bf16", "avx512fp16", "amx", "neon", "neonbf16"],
    device: torch.device,
    dtype: torch.dtype,
    *,
    partials: Literal["auto", "fp32", "half"] = "auto",
    earlier: Mapping[str, str] | None = None,
    blocks: str | None = None,
    shape: Shape = DEFAULT_SHAPE,
) -> Kernels:
    """Return the kernels of a run.

    Args:
        asked: ``precision.kernels``.
        device: of the run.
        dtype: of the activations.
        partials: ``precision.partials``; only ``half`` permits forms with partial sums in fp16.
        earlier: ``Kernels.record`` of the run before it was resumed; None for a new run.
        blocks: ``sparsity.kernel`` of a run with block-sparse products; None for a dense run.
        shape: of the run, for which forms are timed.

    Raises:
        UserError: a form is asked for that cannot compute the run here.
    """
    if any(asked in forms for forms in ARCHITECTURES.values()):
        _refuse_form(asked, device, dtype, partials)
    dense = _dense(asked, device, dtype, earlier, shape, in_half=partials == "half")
    return dense if blocks is None else replace(dense, blocks=_blocks(asked, blocks, device, earlier))


def _dense(
    asked: str,
    device: torch.device,
    dtype: torch.dtype,
    earlier: Mapping[str, str] | None,
    shape: Shape,
    *,
    in_half: bool,
) -> Kernels:
    if device.type == "cuda" and asked in ("auto", "native"):
        return _for_gpu(device, earlier)
    if reason := _why_not(asked, device, dtype):
        return Kernels(why=reason)
    forms: dict[str, str] = {}
    if asked in INSTRUCTION_SETS:
        forms = {kernel.name: _forced(kernel, asked) for kernel in KERNELS if kernel.dtype in (dtype, None)}
        return Kernels(why="precision.kernels", forms=forms)
    for kernel in KERNELS:
        if kernel.dtype in (dtype, None):
            isa = _form(kernel, earlier, shape, is_free=asked == "auto", in_half=in_half)
            forms |= {} if isa is None else {kernel.name: isa}
    if not forms:
        return Kernels(why="no native form is right and faster here")
    why = "as before" if earlier is not None else "precision.kernels" if asked == "native" else "faster here"
    return Kernels(why=why, forms=forms)


def _refuse_form(isa: str, device: torch.device, dtype: torch.dtype, partials: str) -> None:
    """Raise UserError if the form of an instruction set cannot compute a run."""
    reason = _why_not(isa, device, dtype)
    if reason is None and isa not in instruction_sets():
        state = form_states().get(isa, "it is for another kind of processor")
        reason = f"{state}; this machine has {', '.join(instruction_sets())}"
    if reason is None and isa == HALVES and partials != "half":
        reason = 'its partial sums are in fp16, which requires precision.partials = "half"'
    if reason is not None:
        raise UserError(f'precision.kernels = "{isa}" cannot compute here: {reason}; or set it to "auto"')


def _forced(kernel: Kernel, isa: str) -> str:
    """Return the form of an instruction set, or of the next older one that the kernel has. Raises UserError."""
    order = list(INSTRUCTION_SETS)
    form = next(each for each in kernel.instruction_sets if order.index(each) <= order.index(isa))
    if not is_right(kernel, form):
        raise UserError(f'precision.kernels = "{isa}": {kernel.name} {form} computes wrong results here; use "auto"')
    return form


def _for_gpu(device: torch.device, earlier: Mapping[str, str] | None) -> Kernels:
    """Return Triton's kernels, or of them those that the run used before."""
    if reason := programs.why_not(device):
        return Kernels(why=reason)
    names = [name for name in operators.KERNELS if earlier is None or name in earlier]
    return Kernels(why="CUDA" if earlier is None else "as before", forms=dict.fromkeys(names, operators.TRITON))


def _blocks(asked: str, kernel: str, device: torch.device, earlier: Mapping[str, str] | None) -> str:
    """Return the instruction set of block-sparse products, or ``PYTORCH`` if they are not native."""
    if device.type != "cpu" or kernel not in ("auto", "native"):
        return PYTORCH
    if asked in INSTRUCTION_SETS:
        return _forced(block_sparse.KERNEL, asked)
    # versions that did not record it always used the newest form, whatever precision.kernels was
    before = None if earlier is None else earlier.get(BLOCKS, "")
    if kernel == "auto" and (before == PYTORCH or (before is None and asked == "torch")):
        return PYTORCH
    if before and is_right(block_sparse.KERNEL, before):
        return before
    newest = block_sparse.newest_form()
    if isinstance(newest, Form):
        return newest.isa
    _warn_of_pytorch(newest)
    return PYTORCH


@functools.cache
def _warn_of_pytorch(why: str) -> None:
    """Warn, once a process, that block-sparse products are slower than they could be."""
    _logger.warning("PyTorch computes the block-sparse products, which is slower: %s", why)


def form_for_tokens(x: Tensor) -> Form | None:
    """Return the form of ``token_block`` for activations like ``x``: the run's or, by default, the fastest."""
    if in_use() is not NOT_CHOSEN:
        return form_of("token_block", x)
    kernel = next((kernel for kernel in token_block.KERNELS if kernel.dtype == x.dtype), None)
    if kernel is None or _why_not("native", x.device, x.dtype):
        return None
    isa = _form(kernel, None, DEFAULT_SHAPE, is_free=True, in_half=False)
    return None if isa is None else Form(isa)


def _why_not(asked: str, device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why native operators cannot be used; None if they can."""
    if asked == "torch":
        return "precision.kernels"
    if device.type != "cpu":
        return "native operators are for CPUs"
    if asked != "native" and dtype not in SUFFIXES:
        return "native operators are for fp32 and bf16"
    built = load()
    if isinstance(built, BuildError):
        return f"no native operators: {built}"
    return None if instruction_sets() else "no native operators: the processor has no AVX2"


def _form(
    kernel: Kernel, earlier: Mapping[str, str] | None, shape: Shape, *, is_free: bool, in_half: bool
) -> str | None:
    """Return the instruction set for a kernel; None for PyTorch.

    Args:
        kernel: to select a form of.
        earlier: the forms of the run before it was resumed.
        shape: of the run.
        is_free: whether PyTorch's operators may be selected if they are faster.
        in_half: whether partial sums may be in fp16.
    """
    if earlier is not None:
        before = earlier.get(kernel.name)
        if before is not None and (in_half or before != HALVES) and is_right(kernel, before):
            return before
        if before is None and is_free:
            return None
    with weights_unchanged():  # packed once, as in a step
        times = {isa: time for isa, time in seconds(kernel, shape).items() if in_half or isa != HALVES}
    linear_trial.trial_layers.cache_clear()
    of_torch = times.pop(PYTORCH)
    fast = [isa for isa in sorted(times, key=times.__getitem__) if not is_free or of_torch > _MIN_GAIN * times[isa]]
    return next((isa for isa in fast if is_right(kernel, isa)), None)
