"""Compare Triton's kernels, run by its interpreter, with float64; started by test_triton_kernels.py.

``compare_kernels.py all`` has more dtypes, sizes and models.
"""

import sys
from contextlib import ExitStack
from itertools import product
from unittest.mock import patch

import torch
import torch.distributed as dist
from ranks import fork_ranks
from tiny import random_batch, randomize, tiny_config
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from hornbook.config import DecoderConfig
from hornbook.model import build_model, initialize
from hornbook.objective import CausalLM
from hornbook.ops import layers
from hornbook.ops.cross_entropy import linear_cross_entropy, token_losses
from hornbook.ops.dropout import keep_mask
from hornbook.ops.mixed_linear import mixed_feed_forward, mixed_linear, mixed_stack
from hornbook.ops.native import kernels
from hornbook.ops.native.cross_entropy import exact_cross_entropy
from hornbook.ops.native.kernels import FORMS, copy_of, weights_unchanged
from hornbook.ops.triton.adamw_operators import triton_adamw
from hornbook.ops.triton.embedding_operators import embed
from hornbook.ops.triton.norm_operators import norm_beside
from hornbook.ops.triton.operators import KERNELS, TRITON, triton_cross_entropy, triton_dropout, triton_summary
from hornbook.ops.triton.programs import Drop
from hornbook.ops.vocabulary_parts import Columns
from hornbook.parallel.ranks import Cut
from hornbook.parallel.world import World

RANDOM = torch.Generator().manual_seed(0)
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
COMPARED = 0


def close(ours: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> None:
    global COMPARED
    COMPARED += 1
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(ours.double(), exact.double(), rtol=tolerance, atol=tolerance)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=RANDOM).to(dtype)


def check_cross_entropy(
    dtype: torch.dtype,
    num_rows: int,
    num_real: int,
    padding: int,
    *,
    has_bias: bool,
    num_parts: int = 1,
    cap: float | None = None,
    z_weight: float = 0.0,
) -> None:
    """With several parts, each has as many columns, of which the last ones may be padding alone."""
    logits = normal(num_rows, num_real + padding).mul_(3.0).to(dtype)
    targets = torch.randint(num_real, (num_rows,), generator=RANDOM)
    targets[::3] = -100
    bias = normal(num_real) if has_bias else None
    losses, gradient, _, log_sums, _ = exact_cross_entropy(logits[:, :num_real], targets, bias, cap, z_weight)
    best = (logits[:, :num_real].double() + (0.0 if bias is None else bias)).argmax(1)
    width, given = (num_real + padding) // num_parts, []
    for first in range(0, width * num_parts, width):
        real = min(max(num_real - first, 0), width)
        own = None if bias is None else bias[first : first + real]
        given.append((logits[:, first : first + width], targets, own, real, cap, first))
    summaries = torch.stack([triton_summary(*each) for each in given]) if num_parts > 1 else None
    for own, _, own_bias, real, _, first in given:
        arguments, before = (own, targets, own_bias, real), own.clone()
        found, predictions, sums = triton_cross_entropy(*arguments, False, cap, z_weight, first, summaries)
        assert torch.equal(own, before)
        assert torch.equal(predictions, best)
        close(found, losses, torch.float32)
        close(sums, log_sums, torch.float32)
        triton_cross_entropy(*arguments, True, cap, z_weight, first, summaries)
    close(logits[:, :num_real], gradient, dtype)
    assert not logits[:, num_real:].any() and not logits[::3].any()


def check_dropout(dtype: torch.dtype, shape: tuple[int, ...], *, adds: bool) -> None:
    x, residual = (normal(*shape, dtype=dtype).requires_grad_() for _ in range(2))
    keys = torch.randint(1 << 32, shape[:-1], generator=RANDOM)
    mask, upstream = keep_mask(keys, 5, shape[-1], 0.3), normal(*shape, dtype=dtype)
    y = triton_dropout(x, residual if adds else None, keys, 5, 0.3)
    y.backward(upstream)
    close(y, x.double() * mask / 0.7 + (residual.double() if adds else 0.0), dtype)
    close(x.grad, upstream.double() * mask / 0.7, dtype)
    assert torch.equal(x.grad != 0, mask & (upstream != 0))
    close(kernels._summed[1], (upstream.double() * mask / 0.7).flatten(0, -2).sum(0), torch.float32)
    assert torch.equal(residual.grad, upstream) if adds else residual.grad is None


def check_norm(dtype: torch.dtype, shape: tuple[int, ...], *, centered: bool, has_gain: bool, has_bias: bool) -> None:
    x, width = normal(*shape, dtype=dtype).requires_grad_(), shape[-1]
    affine = [normal(width).requires_grad_() if has else None for has in (has_gain, has_bias)]
    upstream, beside = normal(*shape, dtype=dtype), normal(*shape, dtype=dtype)
    same, y = norm_beside(x, *affine, 1e-5, centered=centered)
    torch.autograd.backward((same, y), (beside, upstream))
    exact = [None if leaf is None else leaf.detach().double().requires_grad_() for leaf in (x, *affine)]
    gain, bias = (1.0 if exact[1] is None else exact[1]), (0.0 if exact[2] is None else exact[2])
    mean = exact[0].mean(-1, keepdim=True) if centered else 0.0
    rate = ((exact[0] - mean).square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    right = (exact[0] - mean) * rate * gain + bias
    torch.autograd.backward((exact[0] * 1.0, right), (beside.double(), upstream.double()))
    close(y, right.detach(), dtype)
    for ours, leaf in zip((x, *affine), exact, strict=True):
        if ours is not None:
            close(ours.grad, leaf.grad, dtype if ours is x else torch.float32)


def check_add_norm(dtype: torch.dtype, *, centered: bool, drops: bool, has_beside: bool) -> None:
    shape = (2, 3, 37)
    x, residual = (normal(*shape, dtype=dtype).requires_grad_() for _ in range(2))
    gain, bias = (normal(shape[-1]).requires_grad_() if has else None for has in (True, centered))
    keys = torch.randint(1 << 32, shape[:-1], generator=RANDOM)
    upstream, beside = (normal(*shape, dtype=dtype) for _ in range(2))
    drop = Drop(keys, 5, 0.3) if drops else None
    added, y = norm_beside(x, gain, bias, 1e-5, centered=centered, residual=residual, drop=drop)
    torch.autograd.backward((added, y) if has_beside else (y,), (beside, upstream) if has_beside else (upstream,))
    close(kernels._summed[1], x.grad.double().flatten(0, -2).sum(0), dtype)
    leaves = [leaf for leaf in (x, residual, gain, bias) if leaf is not None]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    mask = keep_mask(keys, 5, shape[-1], 0.3) / 0.7 if drops else 1.0
    total = exact[0] * mask + exact[1]
    close(added.detach(), total.detach(), dtype)
    # the statistics are those of the rounded sum, which continues
    rounded = total + (added.detach().double() - total.detach())
    mean = rounded.mean(-1, keepdim=True) if centered else 0.0
    rate = ((rounded - mean).square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    right = (rounded - mean) * rate * exact[2] + (exact[3] if centered else 0.0)
    torch.autograd.backward((rounded * 1.0, right), (beside.double() * has_beside, upstream.double()))
    close(y.detach(), right.detach(), dtype)
    for ours, leaf in zip(leaves, exact, strict=True):
        close(ours.grad, leaf.grad, torch.float32 if ours.dim() == 1 else dtype)


def check_feed_forward(dtype: torch.dtype, num_rows: int, activation: str, *, has_bias: bool) -> None:
    """Two micro-batches; f and its slope are inside of the products."""
    sizes = ((256, 64), (64, 256))
    weights = [torch.nn.Parameter(normal(*size) * size[1] ** -0.5) for size in sizes]
    biases = [torch.nn.Parameter(normal(size[0])) if has_bias else None for size in sizes]
    exact = [leaf.detach().to(dtype).double().requires_grad_() for leaf in weights]
    exact += [None if leaf is None else leaf.detach().double().requires_grad_() for leaf in biases]
    function, operators = layers.ACTIVATIONS[activation], Operators()
    with weights_unchanged(copies={}), operators:
        for _ in range(2):
            x, upstream = (
                normal(2, num_rows, 64, dtype=dtype).requires_grad_(),
                normal(2, num_rows, 64, dtype=dtype) / 8,
            )
            pairs = zip(weights, biases, strict=True)
            y = mixed_feed_forward(x, *pairs, (activation, function))
            y.backward(upstream)
            right = x.detach().double().requires_grad_()
            hidden = function(functional.linear(right, exact[0], exact[2]))
            functional.linear(hidden, exact[1], exact[3]).backward(upstream.double())
            close(x.grad, right.grad, dtype)
    assert {"triton_activated_linear", "triton_activated_gradient"} <= operators.names
    for ours, leaf in zip(weights + biases, exact, strict=True):
        if ours is not None:
            scale = leaf.grad.abs().max()
            close(ours.grad / scale, leaf.grad / scale, dtype)


def check_stack(dtype: torch.dtype) -> None:
    """The layers of a stack get their gradients one by one."""
    weight, bias = torch.nn.Parameter(normal(3, 4, 8) / 3), torch.nn.Parameter(normal(3, 4))
    exact = [leaf.detach().to(dtype).double().requires_grad_() for leaf in (weight, bias)]
    x, upstream = normal(2, 5, 8, dtype=dtype).requires_grad_(), normal(3, 2, 5, 4, dtype=dtype)
    parts = mixed_stack(x, weight, bias)
    torch.autograd.backward(parts, upstream.unbind())
    right = x.detach().double().requires_grad_()
    outputs = functional.linear(right, exact[0].flatten(0, 1), exact[1].flatten()).chunk(3, -1)
    torch.autograd.backward(outputs, upstream.double().unbind())
    for ours, leaf in zip((*parts, x.grad), (*outputs, right.grad), strict=True):
        close(ours.detach(), leaf.detach(), dtype)
    for ours, leaf in zip((weight, bias), exact, strict=True):
        close(ours.grad, leaf.grad, torch.float32)


def check_linear(dtype: torch.dtype, shape: tuple[int, ...], activation: str | None, *, has_bias: bool) -> None:
    """Two micro-batches of a step: the second one adds to the gradients of the first."""
    weight = torch.nn.Parameter(normal(3, 5, shape[-1]) * shape[-1] ** -0.5)
    bias = torch.nn.Parameter(normal(3, 5)) if has_bias else None
    exact = [None if leaf is None else leaf.detach().to(dtype).double().requires_grad_() for leaf in (weight, bias)]
    function = None if activation is None else (activation, layers.ACTIVATIONS[activation])
    with weights_unchanged(copies={}):
        for _ in range(2):
            x, upstream = normal(*shape, dtype=dtype).requires_grad_(), normal(*shape[:-1], 15, dtype=dtype) / 8
            y = mixed_linear(x, weight, bias, function)
            y.backward(upstream)
            right = x.detach().double().requires_grad_()
            u = functional.linear(right, exact[0].flatten(0, 1), None if bias is None else exact[1].flatten())
            h = u if activation is None else layers.ACTIVATIONS[activation](u)
            h.backward(upstream.double())
            close(y.detach(), h.detach(), dtype)
            close(x.grad, right.grad, dtype)
        assert copy_of(weight, dtype) is copy_of(weight, dtype)
    for ours, leaf in zip((weight, bias), exact, strict=True):
        if ours is not None:
            assert ours.grad.dtype == torch.float32
            close(ours.grad, leaf.grad, dtype if activation else torch.float32)


def check_embedding(dtype: torch.dtype, ids: torch.Tensor, width: int, *, drops: bool, has_twin: bool) -> None:
    """Two micro-batches; from the second on, or with a tied head's gradient, rows are added to what there is."""
    table, positions = (torch.nn.Parameter(normal(rows, width)) for rows in (90, 7))
    twin = torch.nn.Parameter(table.detach())
    twin.grad = normal(90, width) if has_twin else None
    exact = [leaf.detach().double().requires_grad_() for leaf in (table, positions)]
    begin = twin.grad.double() if has_twin else 0.0
    places = torch.randint(7, ids.shape, generator=RANDOM)
    keys = torch.randint(1 << 32, ids.shape, generator=RANDOM)
    mask = keep_mask(keys, 3, width, 0.3) / 0.7 if drops else 1.0
    drop, upstream = Drop(keys, 3, 0.3) if drops else None, normal(*ids.shape, width, dtype=dtype)
    with weights_unchanged():
        for _ in range(2):
            x = embed(ids, places, table, positions, (twin,), drop, dtype)
            x.backward(upstream)
            right = (exact[0][ids] + exact[1][places]) * mask
            right.backward(upstream.double())
            close(x.detach(), right.detach(), dtype)
    assert (table.grad is None) == has_twin and (twin.grad is None) != has_twin
    close(twin.grad if has_twin else table.grad, exact[0].grad + begin, torch.float32)
    close(positions.grad, exact[1].grad, torch.float32)


def check_adamw(dtype: torch.dtype | None, t: float, *, decoupled: bool) -> None:
    """Tensors of less and more than a chunk; two have copies, with a dtype."""
    sizes = (8, 1024, 1028, 4)
    lists = [[normal(size) for size in sizes] for _ in range(4)]
    lists[3] = [square.square_() for square in lists[3]]
    copies = [torch.empty(size, dtype=dtype) for size in sizes[:2]] if dtype is not None else []
    exact = [[tensor.double() for tensor in tensors] for tensors in lists]
    rate, decay, beta1, beta2, epsilon, factor = 1e-2, 0.1, 0.9, 0.95, 1e-8, 0.5
    triton_adamw(*lists, copies, [rate, decay, beta1, beta2, epsilon, t, factor], decoupled)
    for ours, (weight, gradient, mean, square) in zip(zip(*lists, strict=True), zip(*exact, strict=True), strict=True):
        assert torch.equal(ours[1].double(), gradient)
        added = factor * gradient + (0.0 if decoupled else decay * weight)
        mean, square = beta1 * mean + (1.0 - beta1) * added, beta2 * square + (1.0 - beta2) * added.square()
        moved = rate * mean / (1.0 - beta1**t) / ((square / (1.0 - beta2**t)).sqrt() + epsilon)
        right = (weight * (1.0 - rate * decay * decoupled) - moved, mean, square)
        for tensor, wanted in zip((ours[0], *ours[2:]), right, strict=True):
            close(tensor, wanted, torch.float32)
    for copy, weight in zip(copies, lists[0], strict=False):
        close(copy, weight, dtype)


def check_split_head() -> None:
    """As one of two ranks, of which the second has padding; the operators are PyTorch's but for the cross-entropy."""
    world = World.join(torch.device("cpu"))
    x, table, bias = normal(40, 6).requires_grad_(), normal(128, 6), normal(100)
    targets = torch.randint(100, (40,), generator=RANDOM)
    targets[::3] = -100
    exact = [leaf.detach().double().requires_grad_() for leaf in (x, table, bias)]
    logits = functional.linear(exact[0], exact[1][:100], exact[2])
    right = functional.cross_entropy(logits, targets, reduction="sum", ignore_index=-100)
    right.backward()
    first, num_real, operators = 64 * world.rank, (64, 36)[world.rank], Operators()
    weight, own_bias = table[first : first + 64].requires_grad_(), bias[first : first + num_real].requires_grad_()
    head = Columns(weight, own_bias, num_real, first, Cut(0, world.rank, dist.group.WORLD))
    with patch.object(torch.Tensor, "is_cuda", True), patch.dict(FORMS, dict.fromkeys(KERNELS, TRITON)), operators:
        loss, num_correct = linear_cross_entropy(x, targets, head, with_count=True)
        loss.backward()
        losses = token_losses(x, targets, head)
    assert {"triton_summary", "triton_cross_entropy"} <= operators.names and "exp_" not in operators.names
    assert num_correct == (logits.argmax(1) == targets).sum()
    assert losses.sum() == loss
    gradients = (exact[0].grad, exact[1].grad[first : first + 64], exact[2].grad[first : first + num_real])
    for ours, wanted in zip((loss, x.grad, weight.grad, own_bias.grad), (right, *gradients), strict=True):
        close(ours.detach(), wanted.detach(), torch.float32)
    world.leave()


class Operators(TorchDispatchMode):
    """Notes the names of operators."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def check_model(config, *others: str, lacks: str | None = None) -> None:
    """A whole model that takes its tensors for those of a GPU: loss and gradients are those of PyTorch's operators."""
    found, operators = [], Operators()
    for uses in (False, True):
        model = build_model(config, torch.float32)
        initialize(model, 7)
        randomize(model)
        with ExitStack() as stack:
            if uses:
                stack.enter_context(patch.object(torch.Tensor, "is_cuda", True))
                stack.enter_context(patch.dict(FORMS, dict.fromkeys(KERNELS, TRITON)))
                stack.enter_context(operators)
            loss = model(CausalLM().sums, random_batch(3, 8, unscored=0.2))["causal_lm"]
            loss.backward()
        found.append({"loss": loss.detach(), **{name: weight.grad for name, weight in model.named_parameters()}})
    assert {"triton_cross_entropy", "triton_norm", "triton_norm_gradients", *others} <= operators.names
    assert lacks not in operators.names  # dropouts are parts of other kernels
    for name, exact in found[0].items():
        largest = exact.abs().max()
        close(found[1][name] / largest, exact / largest, torch.float32)


def main(*, has_all: bool) -> None:
    for dtype in TOLERANCES if has_all else (torch.bfloat16,):
        for rows, real, padding, has_bias in ((5, 70, 2, True), (1, 1, 0, False), (4, 9003, 61, False)):
            check_cross_entropy(dtype, rows, real, padding, has_bias=has_bias)
        for shape, adds in product(((3, 5, 37), (1, 1), (2, 1300), (2, 3, 4, 4)), (False, True)):
            check_dropout(dtype, shape, adds=adds)
        for options in product((False, True), repeat=3):
            check_norm(dtype, (2, 3, 37), **dict(zip(("centered", "has_gain", "has_bias"), options, strict=True)))
        for options in product((False, True), repeat=3):
            check_add_norm(dtype, **dict(zip(("centered", "drops", "has_beside"), options, strict=True)))
    for activation in layers.ACTIVATIONS:
        check_feed_forward(torch.bfloat16, 5, activation, has_bias=True)
    check_feed_forward(torch.float16, 70, "gelu_tanh", has_bias=False)  # more rows than a tile
    check_stack(torch.bfloat16)
    of_few = torch.randint(4, (2, 50), generator=RANDOM)  # each fills several blocks of 32 places
    ids = (of_few, torch.randint(90, (3, 11), generator=RANDOM), torch.full((1, 96), 3))
    for options in product(ids, (False, True), (False, True)):
        check_embedding(torch.bfloat16, options[0], 9, drops=options[1], has_twin=options[2])
    for dtype, t, decoupled in ((torch.bfloat16, 3.0, True), (torch.float16, 1.0, False), (None, float("inf"), True)):
        check_adamw(dtype, t, decoupled=decoupled)
    of_half = ((torch.float16, name) for name in (None, "gelu_tanh"))
    for dtype, activation in (*product((torch.bfloat16,), (None, *layers.ACTIVATIONS)), *of_half):
        check_linear(dtype, (2, 5, 8), activation, has_bias=True)
    check_linear(torch.bfloat16, (2200, 8), "gelu", has_bias=False)  # more rows than a step of all programs
    check_linear(torch.bfloat16, (0, 8), "gelu", has_bias=True)
    embeds, dropouts = ("triton_embedding", "triton_add_rows"), {"residual_dropout": 0.2, "embedding_dropout": 0.2}
    check_model(tiny_config(**dropouts), *embeds, lacks="triton_dropout")
    if has_all:
        check_model(tiny_config(attention_dropout=0.2), *embeds, "triton_dropout")
        check_norm(torch.float32, (270, 16), centered=True, has_gain=True, has_bias=True)  # more rows than programs
        sizes = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "num_kv_heads": 2, "query_key_norm": "head"}
        check_model(DecoderConfig(**sizes, vocab_size=70, max_positions=24, norm="rms"))
    for dtype in TOLERANCES if has_all else (torch.bfloat16,):
        for real, padding, num_parts in ((70, 2, 2), (60, 12, 6), (9003, 61, 4)):
            check_cross_entropy(dtype, 5, real, padding, has_bias=real != 9003, num_parts=num_parts)
        for num_parts, settings in product((1, 3), ({"cap": 4.0}, {"z_weight": 0.1}, {"cap": 2.0, "z_weight": 0.1})):
            check_cross_entropy(dtype, 5, 70, 2, has_bias=True, num_parts=num_parts, **settings)
    fork_ranks(2, check_split_head)
    sys.stdout.write(f"{COMPARED}\n")


if __name__ == "__main__":
    main(has_all="all" in sys.argv)
