"""Memory of parts of blocks besides attention and feed-forward.

These are shifted keys, value embeddings, residual scales and smear (`hornbook.model.decoder`), and parts whose
descriptions state their memory (`hornbook.config.parts.Other`).
"""

import math
from collections.abc import Iterable

from hornbook.config.parts import Layer, Linear, Other, Table
from hornbook.plan.layers import FP32, Layers

_COPIES = 2
"""The scaled embedding, or the previous tokens' share, and the sum."""


def keys(layers: Layers, block: str, num: float, width: int) -> None:
    """Replace half of the columns of the keys of ``num`` tokens, each of ``width`` columns."""
    layers.tape.use(num * width * layers.itemsize)  # the half, of each token and of the one before
    layers.activation(f"{block}/keys", num * width)


def keys_backward(layers: Layers, block: str, num: float, width: int) -> None:
    """Compute the gradient of the keys from that of the replaced ones."""
    layers.tape.use(2 * num * width * layers.itemsize)
    layers.tape.free(f"{block}/keys")


def values(layers: Layers, block: str, tables: Iterable[Layer], num: float, width: int) -> None:
    """Add embeddings to the values of ``num`` tokens, each of ``width`` columns; without ``tables``, do nothing."""
    if any(isinstance(table, Table) for table in tables):
        layers.tape.use(num * width * FP32)  # rows are looked up in fp32
        layers.activation(f"{block}/rows", num * width)
        layers.tape.use(num * width * layers.itemsize)
        layers.activation(f"{block}/values", num * width)


def values_backward(layers: Layers, block: str, tables: Iterable[Layer], num: float, width: int) -> None:
    """Compute the gradients of the table and the gates from that of the values."""
    own = [table for table in tables if isinstance(table, Table)]
    if not own:
        return
    layers.tape.use(num * width * (layers.itemsize + FP32))
    layers.tape.free(f"{block}/rows", f"{block}/values")
    for table in own:
        layers.add_gradient(f"{block}.{table.name}", math.prod(table.shape), FP32)


def enter(layers: Layers, block: str, tables: Iterable[Layer], size: float) -> None:
    """Compute the hidden states, of ``size`` numbers, after the smear and the scales."""
    for table in _of_states(tables):
        layers.tape.use(_COPIES * size * layers.itemsize)
        layers.activation(f"{block}/{table.name}", size)


def entered(block: str, tables: Iterable[Layer], x: str) -> str:
    """Return the name of these hidden states; ``x`` if there is neither smear nor scales."""
    return [x, *(f"{block}/{table.name}" for table in _of_states(tables))][-1]


def enter_backward(layers: Layers, block: str, tables: Iterable[Layer], size: float, x: str) -> None:
    """Compute the gradients of ``x`` and of the factors from ``gradient``, and free ``x`` unless that is done."""
    before = [x, *(f"{block}/{table.name}" for table in _of_states(tables))][:-1]
    for name in reversed(before):
        layers.tape.use(_COPIES * size * layers.itemsize)
        layers.tape.free(name)
    for table in tables:
        (parameter,) = table.parameters()
        layers.add_gradient(f"{block}.{table.name}", math.prod(parameter.shape), FP32)


def _of_states(tables: Iterable[Layer]) -> list[Layer]:
    """Return one table for the smear and one for the scales, if there are any."""
    return [table for table in tables if table.name in ("smear.scale", "state_scale")]


def compute(layers: Layers, block: str, part: Other, num_tokens: float, size: int, result: str) -> None:
    """Compute ``result``, ``size`` columns of each token.

    Args:
        layers: the recorder.
        block: name of the block.
        part: its part.
        num_tokens: of the micro-batch.
        size: columns of the hidden states.
        result: name of the result.
    """
    name = f"{block}.{part.name}"
    if layers.compute.weights != layers.compute.dtype:
        linears = [layer.num_weights for layer in part.layers if isinstance(layer, Linear)]
        layers.activation(f"{name}/cast", sum(linears))
    layers.activation(f"{name}/kept", num_tokens * part.kept)
    layers.activation(f"{name}/kept in fp32", num_tokens * part.kept_fp32, FP32)
    layers.tape.use(num_tokens * part.temporary_fp32 * FP32)
    layers.activation(result, num_tokens * size)


def compute_backward(
    layers: Layers, block: str, part: Other, num_tokens: float, size: int, gradient: str, result: str, *frees: str
) -> None:
    """Compute the gradient ``result`` of the input from ``gradient``, and free tensors; see ``compute``."""
    name = f"{block}.{part.name}"
    layers.tape.use(num_tokens * part.temporary_fp32 * FP32)
    layers.scratch(result, num_tokens * size)
    for layer in part.layers:
        num_weights = sum(math.prod(parameter.shape) for parameter in layer.parameters())
        layers.add_gradient(f"{block}.{layer.name}", num_weights, FP32)
    layers.tape.free(f"{name}/cast", f"{name}/kept", f"{name}/kept in fp32", *frees)
    layers.tape.free(*[gradient] * (gradient != "gradient"))
