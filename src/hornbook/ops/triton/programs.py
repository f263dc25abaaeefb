"""Where Triton kernels can run, and what they share with their operators."""

from typing import NamedTuple

import torch
from torch import Tensor

from hornbook.config.shapes import words_of_keys

TILE = 64
"""Most queries, or keys, of a program of attention."""
SPARSE_TILES = {16: 128, 32: 256, 64: 256, 128: 128}
"""By block size, most tokens of a program that multiplies blocks of 16 bits, or columns of blocks that one joins."""

PRODUCT = {"height": 128, "width": 256, "step": 64}
"""Rows and columns of a program that multiplies and applies an activation, on an H100, and the depth of its steps."""

SUMMED_ROWS = 32
"""Rows of an embedding's gradient that a program adds."""


class Drop(NamedTuple):
    """A dropout; see `hornbook.ops.dropout.dropout`."""

    keys: Tensor
    site: int
    probability: float


def num_words(longest: int, window: int | None, *, is_causal: bool) -> int:
    """Return how many words of 32 keys, a bit each, cover all keys of any query of attention.

    Args:
        longest: most tokens between the first of a sequence and its end.
        window: a token attends only to tokens that are less than this away; None: no limit.
        is_causal: whether tokens attend only to themselves and earlier tokens.
    """
    if window is None:
        return words_of_keys(longest)
    reach: int = torch.sym_min(longest, window if is_causal else 2 * window - 1)  # type: ignore[no-untyped-call]
    return words_of_keys(reach)


def why_not(device: torch.device) -> str | None:
    """Return why Triton does not support a device; None if it does."""
    try:
        interpreted = is_interpreted()
    except ImportError:
        return "Triton is not installed"
    is_fit = device.type == ("cpu" if interpreted else "cuda")
    return None if is_fit else "Triton is for CUDA devices, or for a CPU with TRITON_INTERPRET=1"


def is_interpreted() -> bool:
    """Return whether Triton's interpreter runs the kernels, on a CPU.

    Raises ImportError if Triton is not installed.
    """
    from triton import knobs

    return bool(knobs.runtime.interpret)
