"""Memory of shifted keys, value embeddings, residual scales and smear (`hornbook.model.decoder`)."""

import math
from collections.abc import Iterable

from hornbook.config.parts import Layer, Table
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
