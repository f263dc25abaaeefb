"""The products of a linear layer, without autograd, with weights packed once for all products.

::

    weight fp32 --pack--> panels in the dtype of x, kept for all micro-batches of a step
    x, panels  ---------> y, or f(y) and y                    product
    g, panels of Wᵀ ----> gradient of x, or that times f'(x)  product
    g, x  --------------> dW, db in fp32, stored or added     add_weight_gradient
"""

import functools
from collections.abc import MutableMapping
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.weak import WeakTensorKeyDictionary

from hornbook.config.shapes import HEAD_TOKENS
from hornbook.ops.native import kernels
from hornbook.ops.native.build import HALVES, TILES
from hornbook.ops.native.library import MOST_PRODUCTS, SUFFIXES, Form, Kernel, rows
from hornbook.ops.operators import scalar_with_gradient

ACTIVATIONS: Final = ("none", "gelu", "gelu_tanh", "relu", "relu_squared", "silu")
"""In the order of ``Activation`` in csrc/activations.h."""
_Key = tuple[torch.dtype, bool, str, bool]
"""Dtype of the activations, whether panels are for the gradient, instruction set, whether they are of gates."""
_State = tuple[int, int]
"""The number of the block in which a weight does not change, and its address."""
_packed: MutableMapping[Tensor, dict[_Key, tuple[_State, Tensor]]] = WeakTensorKeyDictionary()


def panels_of(form: Form, weight: Tensor, dtype: torch.dtype, *, for_gradient: bool, is_gated: bool = False) -> Tensor:
    """Return the weight packed for activations of ``dtype``, cached as long as the weight does not change.

    ``is_gated`` is for the product with a stack of gates and of what they multiply, see ``product``.
    """
    block = kernels.unchanged.block
    if block is None or not isinstance(weight, torch.nn.Parameter):
        return pack(form, weight, dtype, for_gradient, None, is_gated=is_gated)
    kept, state = _packed.setdefault(weight, {}), (block, weight.data_ptr())
    key = (dtype, for_gradient, form.isa, is_gated)
    known_state, panels = kept.get(key, (None, None))
    if panels is None or known_state != state:
        panels = pack(form, weight, dtype, for_gradient, panels, is_gated=is_gated)
        kept[key] = (state, panels)
    return panels


def pack(
    form: Form,
    weight: Tensor,
    dtype: torch.dtype,
    for_gradient: bool,
    panels: Tensor | None,
    *,
    is_gated: bool = False,
) -> Tensor:
    """Pack a weight into ``panels``, or into new memory if that is None."""
    name, matrix = SUFFIXES[dtype], rows(weight.detach())
    num_out, num_in = matrix.shape
    columns, depth = (num_in, num_out) if for_gradient else (num_out, num_in)
    size = form(f"linear_packed_bytes_{name}", columns, depth)
    if panels is None or panels.numel() != size:
        panels = torch.empty(size, dtype=torch.uint8)
    kind = (int(for_gradient), int(is_gated))
    form(f"linear_pack_{name}", matrix, matrix.stride(0), num_out, num_in, *kind, panels, torch.get_num_threads())
    return panels


def product(
    form: Form,
    x: Tensor,
    panels: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    *,
    for_gradient: bool = False,
    activation: str = "none",
    before: Tensor | None = None,
    derivative_at: Tensor | None = None,
    is_gated: bool = False,
) -> Tensor:
    """Return ``f(x Wᵀ + b)``, or ``x W`` for a gradient, ``[M, columns]``.

    With ``is_gated``, half of the columns of ``x Wᵀ + b`` are gates, and the result is ``f(gate) · up``
    ``[M, columns / 2]`` (Shazeer 2020). With ``derivative_at``, too, ``x W`` is the gradient of that, and the result
    those of gate and up, ``[M, 2 columns]``.

    Args:
        form: of the product.
        x: fp32 or bf16, ``[..., depth]``, M rows.
        panels: of the weight, packed for this product.
        weight: determines the number of columns.
        bias: fp32.
        out: contiguous; the result is written to it if it is given.
        for_gradient: whether the product is with ``W`` rather than ``Wᵀ``.
        activation: f, of ``ACTIVATIONS``.
        before: ``[M, columns]``, contiguous; ``x Wᵀ + b`` is written to it.
        derivative_at: ``before``; multiply the product by f' of these instead of applying f.
        is_gated: see above; panels are of gates, too, unless there is ``derivative_at``.
    """
    x_MK = rows(x)
    num_rows, depth = x_MK.shape
    columns = weight.shape[-1] if for_gradient else weight.shape[:-1].numel()
    gated = 0 if not is_gated else columns if derivative_at is not None else columns // 2
    width = columns if not is_gated else 2 * gated if derivative_at is not None else gated
    y_MN = x_MK.new_empty(num_rows, width) if out is None else out
    bias = None if bias is None else bias.detach().contiguous()
    at_stride = 0 if derivative_at is None else derivative_at.stride(0)
    form(
        f"linear_product_{SUFFIXES[x_MK.dtype]}", x_MK, x_MK.stride(0), panels, num_rows, columns, depth,
        ACTIVATIONS.index(activation), bias, before, derivative_at, at_stride, y_MN, width, gated,
        torch.get_num_threads(),
    )  # fmt: skip
    return y_MN


def activation_gradient(form: Form, gradient: Tensor, u: Tensor, activation: str) -> Tensor:
    """Return ``gradient · f'(u)``, or the gradients of gate and up if ``u`` has both, ``[..., 2 F]``."""
    gradient, u, size = gradient.contiguous(), u.contiguous(), gradient.shape[-1]
    result = torch.empty_like(u)
    form(
        f"activation_gradient_{SUFFIXES[u.dtype]}", gradient, u, gradient.shape[:-1].numel(), size,
        int(u.shape[-1] != size), ACTIVATIONS.index(activation), result, torch.get_num_threads(),
    )  # fmt: skip
    return result


def add_weight_gradient(
    form: Form, gradient: Tensor, x: Tensor, of_weight: Tensor, of_bias: Tensor | None, *, accumulate: bool
) -> None:
    """Write, or with ``accumulate`` add, the gradients of weight and bias to contiguous fp32 tensors."""
    g_MN, x_MK = rows(gradient), rows(x)
    form(
        f"linear_weight_gradient_{SUFFIXES[x.dtype]}", g_MN, g_MN.stride(0), x_MK, x_MK.stride(0), len(x_MK),
        g_MN.shape[1], x_MK.shape[1], of_weight, of_bias, int(accumulate), torch.get_num_threads(),
    )  # fmt: skip


def _agrees(form: Form, dtype: torch.dtype) -> bool:
    """Compare all products with float64, on sizes that no block divides."""
    generator = torch.Generator().manual_seed(0)
    x, g, weight, bias = (torch.randn(shape, generator=generator) for shape in ((55, 131), (55, 75), (75, 131), (75,)))
    x, g = x.to(dtype), g.to(dtype)
    y = product(form, x, pack(form, weight, dtype, False, None), weight, bias)
    before = torch.empty_like(g)
    active = product(form, x, pack(form, weight, dtype, False, None), weight, bias, activation="gelu", before=before)
    back = pack(form, weight, dtype, True, None)
    of_x = product(form, g, back, weight, for_gradient=True)
    of_u = product(form, g, back, weight, for_gradient=True, activation="relu", derivative_at=x)
    gated_panels = pack(form, weight[:74], dtype, False, None, is_gated=True)
    u = x.new_empty(55, 74)
    gated = product(form, x, gated_panels, weight[:74], bias[:74], activation="silu", before=u, is_gated=True)
    half = pack(form, weight[:, :37], dtype, True, None)
    of_gated = product(
        form,
        g,
        half,
        weight[:, :37],
        for_gradient=True,
        activation="relu_squared",
        derivative_at=g[:, :74],
        is_gated=True,
    )
    of_weight, of_bias = torch.ones(75, 131), torch.ones(75)
    add_weight_gradient(form, g, x, of_weight, of_bias, accumulate=True)
    exact_x, exact_g, exact_weight = x.double(), g.double(), weight.to(dtype).double()
    exact_y = exact_x @ exact_weight.t() + bias
    gate, up = exact_y[:, :74].chunk(2, 1)
    at_gate, at_up = exact_g[:, :74].chunk(2, 1)
    of_half = exact_g @ exact_weight[:, :37]
    of_both = torch.cat((of_half * at_up * 2 * at_gate.relu(), of_half * at_gate.relu().square()), 1)
    pairs = (
        (y, exact_y),
        (u, exact_y[:, :74]),
        (gated, functional.silu(gate) * up),
        (of_gated, of_both),
        (before, exact_y),
        (active, functional.gelu(exact_y)),
        (of_u, exact_g @ exact_weight * (exact_x > 0)),
        (of_x, exact_g @ exact_weight),
        (of_weight, exact_g.t() @ exact_x + 1),
        (of_bias, exact_g.sum(0) + 1),
    )
    tolerance = 1e-5 if dtype == torch.float32 else 5e-3  # of the largest value: small ones are sums that cancel
    return all(bool((ours.double() - exact).abs().max() <= tolerance * exact.abs().max()) for ours, exact in pairs)


@functools.lru_cache(1)
def trial_layers(*shapes: tuple[int, int]) -> tuple[torch.nn.Parameter, ...]:
    """Return weights of these shapes with gradients, kept until the caller clears the cache."""
    weights = tuple(torch.nn.Parameter(torch.ones(shape)) for shape in shapes)
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    return weights


def _trial(
    form: Form | None, dtype: torch.dtype, tokens: int, hidden_size: int, feed_forward_size: int, vocab_size: int
) -> None:
    """Run a feed-forward and the head, of 512 tokens and part of the table, forward and backward, adding gradients."""
    most_columns = max(1, MOST_PRODUCTS // (HEAD_TOKENS * hidden_size * 64)) * 64
    shapes = (
        (feed_forward_size, hidden_size),
        (hidden_size, feed_forward_size),
        (min(vocab_size, most_columns), hidden_size),
    )
    weights = up, down, table = trial_layers(*shapes)
    x, g = torch.ones(2, tokens, hidden_size, dtype=dtype)
    up_bias, down_bias, last = torch.ones(feed_forward_size), torch.ones(hidden_size), x[:HEAD_TOKENS]
    if form is None:
        with torch.enable_grad():
            leaf, *bias = (tensor.detach().requires_grad_() for tensor in (x, up_bias, down_bias))
            h = functional.gelu(functional.linear(leaf, up.to(dtype), bias[0].to(dtype)), approximate="tanh")
            scalar_with_gradient(functional.linear(h, down.to(dtype), bias[1].to(dtype)), g).backward()  # type: ignore[no-untyped-call]
        columns = table.to(dtype)
        logits = last @ columns.t()
        torch.mm(logits, columns)
        table.grad += logits.t() @ last
        return
    forward, backward = (
        [panels_of(form, weight, dtype, for_gradient=back) for weight in weights] for back in (False, True)
    )
    u = x.new_empty(tokens, feed_forward_size)
    h = product(form, x, forward[0], up, up_bias, activation="gelu_tanh", before=u)
    product(form, h, forward[1], down, down_bias)
    of_u = product(form, g, backward[1], down, for_gradient=True, activation="gelu_tanh", derivative_at=u)
    product(form, of_u, backward[0], up, for_gradient=True)
    logits = product(form, last, forward[2], table)
    product(form, logits, backward[2], table, for_gradient=True)
    pairs = ((of_u, x, torch.zeros_like(up_bias)), (g, h, torch.zeros_like(down_bias)), (logits, last, None))
    for weight, (gradient, operand, of_bias) in zip(weights, pairs, strict=True):
        assert weight.grad is not None, "made with it"
        add_weight_gradient(form, gradient, operand, weight.grad, of_bias, accumulate=True)


_SIZES = ("tokens", "hidden_size", "feed_forward_size", "vocab_size")
KERNELS = (
    Kernel("linear_f32", torch.float32, _agrees, _trial, sizes=_SIZES),
    Kernel("linear_bf16", torch.bfloat16, _agrees, _trial, special=(HALVES, TILES), sizes=_SIZES),
)
