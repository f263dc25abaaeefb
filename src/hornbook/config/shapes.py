"""Names and shapes of parameters, without torch: what a model's sizes are counted and divided from.

::

    blocks(2, linear("up", 4, 8))  ->  ("blocks.0.up.weight", (8, 4)), ("blocks.0.up.bias", (8,)), ("blocks.1.up...

Each family's configuration lists its own (``GPTConfig.shapes``); a test holds the lists against the models.
"""

import math
from collections.abc import Iterator
from typing import Final

Shapes = Iterator[tuple[str, tuple[int, ...]]]
"""Names and logical shapes, without padding."""

_ROW_MULTIPLE: Final = 64


def padded_rows(vocab_size: int) -> int:
    """Return the rows of the token table in memory: a multiple of 64, which speeds up matrix products."""
    return -(-vocab_size // _ROW_MULTIPLE) * _ROW_MULTIPLE


def linear(name: str, num_in: int, num_out: int, *, bias: bool = True) -> Shapes:
    """Yield those of a linear map."""
    yield f"{name}.weight", (num_out, num_in)
    if bias:
        yield f"{name}.bias", (num_out,)


def norm(name: str, size: int) -> Shapes:
    """Yield those of a layer norm."""
    yield f"{name}.weight", (size,)
    yield f"{name}.bias", (size,)


def blocks(num_layers: int, block: Shapes) -> Shapes:
    """Yield those of ``num_layers`` blocks of the same shapes."""
    shapes = list(block)
    return ((f"blocks.{layer}.{name}", shape) for layer in range(num_layers) for name, shape in shapes)


def count(shapes: Shapes) -> int:
    """Return the number of parameters."""
    return sum(math.prod(shape) for _, shape in shapes)
