"""Shapes without torch: of parameters, and of the portions in which operators compute; models and plans share both.

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
HEAD_TOKENS: Final = 512
"""Tokens whose logits the head computes at a time (`hornbook.ops.cross_entropy`).

Each chunk reads and writes the whole weight gradient, so small ones are slow: with GPT-2's vocabulary, 83 tokens a
chunk take twice as long as 512, whose logits are 103 MB. More gain little, and lose where the logits leave the cache.
"""
QUERIES: Final = 128
"""Queries of a block of attention on a CPU (`hornbook.ops.attention`)."""
SCORES: Final = 1 << 19
"""Most scores of such a block: it takes as many heads at once as stay below."""
MOST_WEIGHTS: Final = 1 << 26
"""Most attention weights that a layer keeps on a CPU: 128 MiB in bf16."""
BUCKET_ELEMENTS: Final = 1 << 22
"""Gradients that ranks sum in one message (`hornbook.parallel.gradient_sums`)."""


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


def attention_blocks(
    num_heads: int, num_tokens: int, *, is_causal: bool, size: int = QUERIES
) -> Iterator[tuple[slice, slice, slice]]:
    """Yield heads, queries and keys of each block of attention on a CPU.

    Args:
        num_heads: of all sequences together.
        num_tokens: of a sequence.
        is_causal: whether queries see no later keys.
        size: queries of a block.
    """
    for start in range(0, num_tokens, size):
        stop = min(start + size, num_tokens)
        num_keys = stop if is_causal else num_tokens
        at_once = max(1, SCORES // ((stop - start) * num_keys))
        for first in range(0, num_heads, at_once):
            yield slice(first, min(first + at_once, num_heads)), slice(start, stop), slice(0, num_keys)


def is_blocked(device: str, num_heads: int, num_tokens: int, *, is_causal: bool) -> bool:
    """Tell whether blocks are the better form of attention: on a CPU, with weights that are not too many to keep.

    Other arguments as for `attention_blocks`.
    """
    return device == "cpu" and num_heads * num_tokens**2 // (2 if is_causal else 1) <= MOST_WEIGHTS
