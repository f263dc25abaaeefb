"""Storage outside of the device, and threads that load and save tensors in the background.

::

    home, executor --Lane.ahead---> load(offset)   loads the next tensor while the caller computes with this one
                   --Lane.behind--> save(offset)   saves the last tensor while the caller computes with this one

A space is a file (``FileSpace``) or a GPU's pinned host memory (``PinnedSpace``). ``at_rest`` maps a stored tensor
without loading it, so that checkpoints and initialization process one tensor at a time.
"""

import math
import mmap
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from hornbook.storage.scratch import ScratchFile

_ALIGNMENT = 512


class _Pages(mmap.mmap):
    """Anonymous pages of the host; unlike the base class, they are unpinned by a finalizer before they are unmapped."""


def pinned_bytes(size: int) -> Tensor:
    """Return uint8 zeros ``[size]`` in pinned host memory, which is released with the last view of the tensor.

    PyTorch's allocator rounds up to a power of two, 40 GiB to 64, so whole pages of the host are pinned instead.
    """
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


T = TypeVar("T")
Shape = tuple[int, ...]


class Space(Protocol):
    """Zero-initialized storage of tensors at offsets in bytes."""

    @property
    def num_read(self) -> int:
        """Number of bytes loaded to the device so far."""

    @property
    def num_written(self) -> int:
        """Number of bytes saved from the device so far."""

    def reserve(self, size: int) -> None:
        """Reserve ``size`` bytes in total; raises StorageError if there is not enough space."""

    def at_rest(self, offset: int, shape: Shape, dtype: torch.dtype) -> Tensor:
        """Return a CPU tensor that maps the storage at ``offset``: writing to it changes what is stored."""

    def load(self, offset: int, shape: Shape, dtype: torch.dtype) -> Tensor:
        """Return a copy of the tensor at ``offset`` on the device."""

    def save(self, offset: int, tensor: Tensor) -> None:
        """Write a tensor, which is on the device, to ``offset``."""


class FileSpace:
    """A space in a scratch file.

    Args:
        file: empty.
        device: that computes.
    """

    def __init__(self, file: ScratchFile, device: torch.device) -> None:
        self._file, self._device = file, device
        self._map: memoryview | None = None

    @property
    def num_read(self) -> int:
        return self._file.num_read

    @property
    def num_written(self) -> int:
        return self._file.num_written

    def reserve(self, size: int) -> None:
        self._file.reserve(size)

    def at_rest(self, offset: int, shape: Shape, dtype: torch.dtype) -> Tensor:
        """See ``Space``; reserve everything before the first call."""
        if self._map is None:
            self._map = memoryview(self._file.map())
        count = math.prod(shape)
        if not count:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=offset).view(shape)

    def load(self, offset: int, shape: Shape, dtype: torch.dtype) -> Tensor:
        tensor = torch.empty(shape, dtype=dtype)
        self._file.read(_bytes_of(tensor), offset)
        return tensor.to(self._device)

    def save(self, offset: int, tensor: Tensor) -> None:
        self._file.write(_bytes_of(tensor.detach().cpu().contiguous()), offset)


class PinnedSpace:
    """A space in pinned host memory, with a CUDA stream for each direction.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._bytes = device, torch.empty(0, dtype=torch.uint8)
        self._streams = {
            name: torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            for name in ("load", "save")
        }
        self.num_read = self.num_written = 0

    def reserve(self, size: int) -> None:
        """See ``Space``; enlarging the space discards its content."""
        if size > len(self._bytes):
            self._bytes = self._bytes.new_empty(0)  # frees it before more is pinned
            self._bytes = pinned_bytes(size)

    def at_rest(self, offset: int, shape: Shape, dtype: torch.dtype) -> Tensor:
        size = math.prod(shape) * dtype.itemsize
        return self._bytes[offset : offset + size].view(dtype).view(shape)

    def load(self, offset: int, shape: Shape, dtype: torch.dtype) -> Tensor:
        """See ``Space``; the copy is complete on return."""
        source, stream = self.at_rest(offset, shape, dtype), self._streams["load"]
        with torch.cuda.stream(stream):
            tensor = source.to(self._device, non_blocking=True)
        stream.synchronize()
        tensor.record_stream(torch.cuda.default_stream(self._device))
        self.num_read += source.nbytes
        return tensor

    def save(self, offset: int, tensor: Tensor) -> None:
        """See ``Space``; waits for the work that was queued on the device before the call."""
        target, stream = self.at_rest(offset, tuple(tensor.shape), tensor.dtype), self._streams["save"]
        stream.wait_stream(torch.cuda.default_stream(self._device))
        with torch.cuda.stream(stream):
            target.copy_(tensor.detach(), non_blocking=True)
        stream.synchronize()
        self.num_written += target.nbytes


class Lane:
    """A background thread that loads or saves tensors in order.

    Args:
        name: of the thread.

    Attributes:
        thread: runs the calls; `hornbook.measure.memory_check` replaces it.
    """

    def __init__(self, name: str) -> None:
        self.thread: Executor = ThreadPoolExecutor(1, thread_name_prefix=f"hornbook-{name}")
        self._behind: Future[None] | None = None

    def begin(self, call: Callable[[], T]) -> "Future[T]":
        """Submit ``call`` to the thread, after earlier calls."""
        return self.thread.submit(call)

    def ahead(self, calls: Iterable[Callable[[], T]]) -> Generator[T, None, None]:
        """Yield the result of each call; the next call runs while the caller uses the result."""
        begun: deque[Future[T]] = deque()
        try:
            for call in calls:
                begun.append(self.begin(call))
                if len(begun) > 1:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:
            wait(begun)

    def behind(self, call: Callable[[], None]) -> None:
        """Wait for the previous call of ``behind``, raise its error if it failed, and submit ``call`` to the thread."""
        self.settle()
        self._behind = self.begin(call)

    def settle(self) -> None:
        """Wait for the last call of ``behind`` and raise its error if it failed."""
        behind, self._behind = self._behind, None
        if behind is not None:
            behind.result()


def _bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the CPU as bytes."""
    return tensor.view(-1).view(torch.uint8).numpy().data
