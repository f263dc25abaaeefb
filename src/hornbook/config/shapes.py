"""Types of shapes, and block sizes of operators, shared by models and plans, without torch.

`hornbook.config.description` lists the parameters of a model.
"""

from collections.abc import Iterator
from typing import Final

Shapes = Iterator[tuple[str, tuple[int, ...]]]
"""Names and logical shapes, without padding."""

_ROW_MULTIPLE: Final = 64
HEAD_TOKENS: Final = 512
"""Tokens whose logits the head computes at a time (`hornbook.ops.cross_entropy`).

Each chunk reads and writes the whole weight gradient, so small chunks are slow: with GPT-2's vocabulary, chunks of 83
tokens take twice as long as chunks of 512, whose logits are 103 MB. Larger chunks gain little, and are slower if the
logits exceed the cache.
"""
HEAD_TOKENS_FUSED: Final = 4096
"""The same on a GPU with Triton's cross-entropy, which keeps nothing else of the size of the logits."""
QUERIES: Final = 128
"""Queries per block of attention on a CPU (`hornbook.ops.attention`)."""
SCORES: Final = 1 << 19
"""Maximum scores of such a block, which determines the number of heads that are processed at once."""
MOST_WEIGHTS: Final = 1 << 26
"""Maximum attention weights that a layer keeps on a CPU: 128 MiB in bf16."""
BUCKET_ELEMENTS: Final = 1 << 22
"""Gradient elements that ranks sum in one message (`hornbook.parallel.gradient_sums`)."""


def padded_rows(vocab_size: int) -> int:
    """Return the rows of the token table in memory: a multiple of 64, which speeds up matrix products."""
    return -(-vocab_size // _ROW_MULTIPLE) * _ROW_MULTIPLE


def attention_blocks(
    num_heads: int, num_tokens: int, *, is_causal: bool, size: int = QUERIES
) -> Iterator[tuple[slice, slice, slice]]:
    """Yield the heads, queries and keys of each block of attention on a CPU.

    Args:
        num_heads: of all sequences.
        num_tokens: of a sequence.
        is_causal: whether the attention is causal.
        size: queries per block.
    """
    for start in range(0, num_tokens, size):
        stop = min(start + size, num_tokens)
        num_keys = stop if is_causal else num_tokens
        at_once = max(1, SCORES // ((stop - start) * num_keys))
        for first in range(0, num_heads, at_once):
            yield slice(first, min(first + at_once, num_heads)), slice(start, stop), slice(0, num_keys)


def is_blocked(device: str, num_heads: int, num_tokens: int, *, is_causal: bool) -> bool:
    """Return whether to compute attention in blocks: on a CPU, if the attention weights are not too large to keep.

    Other arguments as for `attention_blocks`.
    """
    return device == "cpu" and num_heads * num_tokens**2 // (2 if is_causal else 1) <= MOST_WEIGHTS


def words_of_keys(reach: int) -> int:
    """Return how many words of 32 keys, a bit each, cover any ``reach`` keys in a row."""
    return (reach + 62) // 32  # the first word may begin with 31 others
