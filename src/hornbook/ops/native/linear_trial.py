"""Check the native products of linear layers, and time them beside PyTorch's in what a model calls.

::

    x --feed_forward--> y, g --backward--> gradients added     the activation, gate and biases of the model's
    x --table--> logits --> gradients of 512 tokens            a part of the head

The trial calls the operators of `hornbook.ops.layers`, with a form selected or none, so that a form is preferred for
what it does in a step. Trade-off: it leaves out the attention's projections, which have no activation.
"""

import functools
from typing import Final

import torch
from torch.nn import functional

from hornbook.config.shapes import HEAD_TOKENS
from hornbook.ops.layers import feed_forward
from hornbook.ops.native.build import HALVES, TILES
from hornbook.ops.native.kernels import SUFFIXES, Form, Kernels, using
from hornbook.ops.native.linear import linear_weight_gradient, panels_of, product
from hornbook.ops.native.trials import MOST_PRODUCTS, Kernel
from hornbook.ops.operators import scalar_with_gradient


def _agrees(form: Form, dtype: torch.dtype) -> bool:
    """Compare all products with float64, on sizes that no block divides."""
    generator = torch.Generator().manual_seed(0)
    x, g, weight, bias = (torch.randn(shape, generator=generator) for shape in ((55, 131), (55, 75), (75, 131), (75,)))
    x, g = x.to(dtype), g.to(dtype)
    panels = panels_of(form, weight, dtype, for_gradient=False)
    y = product(form, x, panels, weight, bias)
    before = torch.empty_like(g)
    active = product(form, x, panels, weight, bias, activation="gelu", before=before)
    back = panels_of(form, weight, dtype, for_gradient=True)
    of_x = product(form, g, back, weight, for_gradient=True)
    of_u = product(form, g, back, weight, for_gradient=True, activation="relu", derivative_at=x)
    gated_panels = panels_of(form, weight[:74], dtype, for_gradient=False, is_gated=True)
    u = x.new_empty(55, 74)
    gated = product(form, x, gated_panels, weight[:74], bias[:74], activation="silu", before=u, is_gated=True)
    half = panels_of(form, weight[:, :37], dtype, for_gradient=True)
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
    linear_weight_gradient(g, x, of_weight, of_bias, form.isa, True)
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
def trial_layers(*shapes: tuple[int, ...]) -> tuple[torch.nn.Parameter, ...]:
    """Return parameters of these shapes with gradients, kept until the caller clears the cache.

    Products of ones with them are ones: far from zero, PyTorch's hyperbolic tangent takes three times as long.
    """
    weights = tuple(torch.nn.Parameter(torch.full(shape, 1 / shape[-1])) for shape in shapes)
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    return weights


def _trial(
    form: Form | None,
    dtype: torch.dtype,
    tokens: int,
    hidden_size: int,
    feed_forward_size: int,
    vocab_size: int,
    activation: str,
    is_gated: bool,
    has_bias: bool,
) -> None:
    """Run a feed-forward and the head, of 512 tokens and part of the table, forward and backward, adding gradients."""
    most_columns = max(1, MOST_PRODUCTS // (HEAD_TOKENS * hidden_size * 64)) * 64
    inner = (2, feed_forward_size) if is_gated else (feed_forward_size,)
    shapes = ((*inner, hidden_size), (hidden_size, feed_forward_size), (min(vocab_size, most_columns), hidden_size))
    up, down, table, *biases = trial_layers(*shapes, *(inner, (hidden_size,)) * has_bias)
    x, g = torch.ones(2, tokens, hidden_size, dtype=dtype)
    up_bias, down_bias = biases or (None, None)
    name = f"linear_{SUFFIXES[dtype]}"
    with using(Kernels(why="a trial", forms={} if form is None else {name: form.isa})), torch.enable_grad():
        leaf = x.detach().requires_grad_()
        y = feed_forward(leaf, (up, up_bias), (down, down_bias), activation, is_gated=is_gated)
        scalar_with_gradient(y, g).backward()  # type: ignore[no-untyped-call]
    last = x[:HEAD_TOKENS]
    assert table.grad is not None, "made with it"
    if form is None:
        columns = table.to(dtype)
        logits = last @ columns.t()
        torch.mm(logits, columns)
        table.grad += logits.t() @ last
        return
    forward, backward = (panels_of(form, table, dtype, for_gradient=back) for back in (False, True))
    logits = product(form, last, forward, table)
    product(form, logits, backward, table, for_gradient=True)
    linear_weight_gradient(logits, last, table.grad, None, form.isa, True)


_SIZES: Final = (
    "tokens", "hidden_size", "feed_forward_size", "vocab_size", "activation", "is_gated", "has_bias",
)  # fmt: skip
KERNELS: Final = (
    Kernel("linear_f32", torch.float32, _agrees, _trial, sizes=_SIZES),
    Kernel("linear_bf16", torch.bfloat16, _agrees, _trial, special=(HALVES, TILES), sizes=_SIZES),
)
