"""Native operators in tests: the forms that this machine can run, and operators that use them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hornbook.ops.native.choice import KERNELS
from hornbook.ops.native.kernels import Kernels
from hornbook.ops.native.library import BuildError, Form, instruction_sets, load


def forms() -> list[Form]:
    """Return the form of each instruction set, or skip the test where nothing can be built."""
    built = load()
    if isinstance(built, BuildError):
        pytest.skip(str(built))
    return [Form(isa) for isa in instruction_sets()]


def all_native() -> Kernels:
    """Return the newest form of every kernel."""
    isa = forms()[0].isa
    return Kernels(why="test", forms={kernel.name: isa for kernel in KERNELS})


class NativeCalls(TorchDispatchMode):
    """The names of the native operators that are called in a ``with`` block, in ``names``."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self,
        func: object,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        name = str(func)
        if name.startswith("hornbook."):
            self.names.add(name.split(".")[1])
        return func(*args, **(kwargs or {}))


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
