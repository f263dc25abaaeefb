"""Pinned host memory without rounding.

PyTorch's allocator rounds each pinned tensor up to a power of two, 40 GiB to 64, so whole pages of the host are pinned
here instead.
"""

import mmap
import weakref
from collections.abc import Mapping

import torch
from torch import Tensor

_ALIGNMENT = 512


class _Pages(mmap.mmap):
    """Anonymous pages of the host; unlike the base class, they are unpinned by a finalizer before they are unmapped."""


def pinned_bytes(size: int) -> Tensor:
    """Return uint8 zeros ``[size]`` in pinned host memory, which is released with the last view of the tensor."""
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    pages = _Pages(-1, size)
    memory = torch.frombuffer(pages, dtype=torch.uint8)
    cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    torch.cuda.check_error(cudart.cudaHostRegister(memory.data_ptr(), size, 0))
    weakref.finalize(pages, cudart.cudaHostUnregister, memory.data_ptr()).atexit = False
    return memory


def pinned_zeros_like(tensors: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """Return zeros of the same shapes and dtypes, on any device, as views of one piece of pinned host memory."""
    sizes = [-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for group in tensors.values() for tensor in group.values()]
    pieces = iter(torch.split(pinned_bytes(sum(sizes)), sizes))
    return {
        name: {key: next(pieces)[: like.nbytes].view(like.dtype).view(like.shape) for key, like in group.items()}
        for name, group in tensors.items()
    }
