"""Where Triton kernels can run."""

import torch

TILE = 64
"""Most queries, or keys, of a program of attention."""
SPARSE_TILES = {16: 128, 32: 256, 64: 256, 128: 128}
"""By block size, most tokens of a program that multiplies blocks of 16 bits, or columns of blocks that one joins."""


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
