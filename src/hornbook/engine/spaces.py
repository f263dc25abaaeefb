"""Bytes outside of the device, and the threads that move tensors between the two.

::

    home, executor --Lane.ahead---> load(offset)   tensor on the device, the next one while this one is computed with
                   --Lane.behind--> save(offset)   the last one while this one is computed with

A space is a file (``FileSpace``) or pinned memory of the host beside a GPU (``PinnedSpace``). What lies in it can also
be seen at rest, as a tensor in its place, so that checkpoints and initial weights stream through a tensor at a time.
"""

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from hornbook.storage.scratch import ScratchFile

T = TypeVar("T")
Shape = tuple[int, ...]


class Space(Protocol):
    """Zeros that tensors are written into, at offsets in bytes."""

    @property
    def num_read(self) -> int:
        """Bytes that went to the device so far."""

    @property
    def num_written(self) -> int:
        """Bytes that came from it."""

    def reserve(self, size: int) -> None:
        """Take room for ``size`` bytes in all. Raises StorageError if there is not as much."""

    def at_rest(self, offset: int, shape: Shape, dtype: torch.dtype) -> Tensor:
        """Return the tensor at ``offset`` in its place, on the CPU: writing into it changes what is stored."""

    def load(self, offset: int, shape: Shape, dtype: torch.dtype) -> Tensor:
        """Return a copy of the tensor at ``offset``, on the device."""

    def save(self, offset: int, tensor: Tensor) -> None:
        """Write a tensor, which lies on the device, to ``offset``."""


class FileSpace:
    """A scratch file.

    Args:
        file: empty.
        device: that computes.
    """

    def __init__(self, file: ScratchFile, device: torch.device) -> None:
        self._file, self._device = file, device
        self._map: memoryview | None = None

    @property
    def num_read(self) -> int:
        """See ``Space``."""
        return self._file.num_read

    @property
    def num_written(self) -> int:
        """See ``Space``."""
        return self._file.num_written

    def reserve(self, size: int) -> None:
        """See ``Space``."""
        self._file.reserve(size)

    def at_rest(self, offset: int, shape: Shape, dtype: torch.dtype) -> Tensor:
        """See ``Space``; all room must have been reserved."""
        if self._map is None:
            self._map = memoryview(self._file.map())
        count = math.prod(shape)
        if not count:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=offset).view(shape)

    def load(self, offset: int, shape: Shape, dtype: torch.dtype) -> Tensor:
        """See ``Space``."""
        tensor = torch.empty(shape, dtype=dtype)
        self._file.read(_bytes_of(tensor), offset)
        return tensor.to(self._device)

    def save(self, offset: int, tensor: Tensor) -> None:
        """See ``Space``."""
        self._file.write(_bytes_of(tensor.detach().cpu().contiguous()), offset)


class PinnedSpace:
    """Memory of the host that a GPU reads and writes by itself, over a stream of its own for each direction.

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
        """See ``Space``; what was stored is lost if there was less."""
        if size > len(self._bytes):
            self._bytes = torch.zeros(size, dtype=torch.uint8, pin_memory=True)

    def at_rest(self, offset: int, shape: Shape, dtype: torch.dtype) -> Tensor:
        """See ``Space``."""
        size = math.prod(shape) * dtype.itemsize
        return self._bytes[offset : offset + size].view(dtype).view(shape)

    def load(self, offset: int, shape: Shape, dtype: torch.dtype) -> Tensor:
        """See ``Space``; the copy is there when it returns."""
        source, stream = self.at_rest(offset, shape, dtype), self._streams["load"]
        with torch.cuda.stream(stream):
            tensor = source.to(self._device, non_blocking=True)
        stream.synchronize()
        tensor.record_stream(torch.cuda.default_stream(self._device))
        self.num_read += source.nbytes
        return tensor

    def save(self, offset: int, tensor: Tensor) -> None:
        """See ``Space``; waits for what the device was to compute before the call."""
        target, stream = self.at_rest(offset, tuple(tensor.shape), tensor.dtype), self._streams["save"]
        stream.wait_stream(torch.cuda.default_stream(self._device))
        with torch.cuda.stream(stream):
            target.copy_(tensor.detach(), non_blocking=True)
        stream.synchronize()
        self.num_written += target.nbytes


class Lane:
    """A thread that moves tensors one after the other while the caller computes.

    Args:
        name: of the thread.

    Attributes:
        thread: begins the calls; `hornbook.measure.memory_check` replaces it.
    """

    def __init__(self, name: str) -> None:
        self.thread: Executor = ThreadPoolExecutor(1, thread_name_prefix=f"hornbook-{name}")
        self._behind: Future[None] | None = None

    def begin(self, call: Callable[[], T]) -> "Future[T]":
        """Call ``call`` in the thread, after what was begun before."""
        return self.thread.submit(call)

    def ahead(self, calls: Iterable[Callable[[], T]]) -> Generator[T, None, None]:
        """Yield what each call returns; the next one runs while the caller has the last one's result."""
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
        """Call ``call`` in the thread, once the last such call is finished, whose error this raises."""
        self.settle()
        self._behind = self.begin(call)

    def settle(self) -> None:
        """Wait for the last call of ``behind``, and raise its error."""
        behind, self._behind = self._behind, None
        if behind is not None:
            behind.result()


def _bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a contiguous tensor on the CPU as bytes."""
    return tensor.view(-1).view(torch.uint8).numpy().data
