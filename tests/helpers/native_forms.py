"""Native operators in tests: the forms that this machine can run, and operators that use them."""

import ctypes
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hornbook.ops.native import build, kernels
from hornbook.ops.native.build import HALVES, TILES
from hornbook.ops.native.cache import BuildError, default_cache
from hornbook.ops.native.choice import KERNELS
from hornbook.ops.native.kernels import Form, Kernels, instruction_sets, load


def forms() -> list[Form]:
    """Return the form of each instruction set that every kernel has, or skip the test where nothing can be built."""
    built = load()
    if isinstance(built, BuildError):
        pytest.skip(str(built))
    return [Form(isa) for isa in instruction_sets() if isa not in (HALVES, TILES)]


def all_native(isa: str | None = None) -> Kernels:
    """Return the form of ``isa`` of every kernel that has it, and the newest form of all others."""
    forms()
    chosen = {kernel.name: isa if isa in kernel.instruction_sets else kernel.instruction_sets[0] for kernel in KERNELS}
    return Kernels(why="test", forms=chosen)


EMULATED = "emulated"
"""The form for AMX tiles with their instructions in plain C++, which any machine of this test suite runs."""


@contextmanager
def emulated_tiles() -> Iterator[None]:
    """Let ``Form(EMULATED)`` compute what has a form for tiles; skips the test where nothing can be built."""
    forms()
    built, of_library = _emulated_library(), kernels._function

    def function(isa: str, name: str) -> Any:
        if isa != EMULATED:
            return of_library(isa, name)
        found = getattr(built, f"hb_{isa}_{name}")
        found.restype = ctypes.c_int64
        return found

    with patch.object(kernels, "_function", function):
        yield


@functools.cache
def _emulated_library() -> ctypes.CDLL:
    """Compile the sources with a form for tiles, with this machine's vectors, once for each version of them."""
    flags = ["-DHB_AMX", "-DHORNBOOK_EMULATED_TILES", f"-DHB_ISA={EMULATED}", *build.INSTRUCTION_SETS[forms()[0].isa]]
    compiler, _ = build.find_compiler()
    folder = default_cache() / f"{EMULATED}-{forms()[0].isa}-{build._name()}"
    target = folder / "libhornbook.so"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        made = folder / f"{os.getpid()}.so"
        sources = map(str, (*build.sources(None), *build.sources(TILES)))
        build.run_program([*compiler, *build._FLAGS, "-O1", *flags, "-shared", *sources, "-o", str(made)])
        made.rename(target)
    return kernels.open_library(target)


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
def cut_for(second_level_cache: int) -> Iterator[None]:
    """Cut blocks as on a machine whose second-level cache has so many bytes."""
    before = kernels.second_level_cache()
    assert before is not None and kernels.second_level_cache(second_level_cache) == second_level_cache
    try:
        yield
    finally:
        kernels.second_level_cache(before)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def noting_packs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets an entry whenever a weight is packed."""
    packed, call = list[str](), kernels.Form.__call__

    def note(form: kernels.Form, name: str, *arguments: int | torch.Tensor | None) -> int:
        if name.startswith("linear_pack_"):
            packed.append(name)
        return call(form, name, *arguments)

    monkeypatch.setattr(kernels.Form, "__call__", note)
    return packed
