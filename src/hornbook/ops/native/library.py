"""The compiled library: loaded once, and for each kernel the fastest form that is right on this processor.

    find("linear", "bf16", check)  ->  Form(isa="avx512bf16", ...)
    form("linear_product_bf16", x.data_ptr(), ...)     calls hb_avx512bf16_linear_product_bf16

A kernel is a group of C functions that are checked together. The check compares a form with PyTorch on small inputs, in
milliseconds, when the kernel is first asked for; a form that disagrees is never chosen, and `faults` names it.
"""

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hornbook.errors import StorageError
from hornbook.ops.native.build import INSTRUCTION_SETS, BuildError, library

_forms: dict[str, "Form | None"] = {}
faults: list[str] = []
"""What forms disagreed with PyTorch in this process, for the notes: "linear_bf16 (amx)"."""


@dataclass(frozen=True)
class Form:
    """The functions of the library for one instruction set."""

    isa: str
    """A key of ``INSTRUCTION_SETS``."""

    def __call__(self, name: str, *arguments: "int | Tensor | None") -> None:
        """Call ``hb_<isa>_<name>``, which returns nothing.

        A tensor is passed as the address of its first element, None as a null pointer, an integer as int64; all C
        functions of the library take nothing else.
        """
        function(self.isa, name)(*map(_word, arguments))

    def integer(self, name: str, *arguments: int) -> int:
        """Call ``hb_<isa>_<name>``, which returns an int64."""
        return int(function(self.isa, name)(*map(_word, arguments)))


@functools.cache
def load() -> ctypes.CDLL | BuildError:
    """Return the library, built if this machine does not have it, or why it cannot be built or loaded here."""
    try:
        return ctypes.CDLL(str(library()))
    except BuildError as error:
        return error
    except (OSError, StorageError) as error:
        return BuildError(str(error))


@functools.cache
def function(isa: str, name: str) -> Any:
    """Return the C function ``hb_<isa>_<name>`` of the loaded library; arguments and result are 64-bit words."""
    found = getattr(load(), f"hb_{isa}_{name}")
    found.restype = ctypes.c_int64
    return found


@functools.cache
def instruction_sets() -> tuple[str, ...]:
    """Return the forms that library, processor and system have, fastest first; none where nothing can be built."""
    built = load()
    if isinstance(built, BuildError):
        return ()
    bits = built.hb_instruction_sets()
    present = [isa for bit, isa in enumerate(INSTRUCTION_SETS) if bits >> bit & 1]
    return tuple(isa for isa in reversed(present) if hasattr(built, f"hb_{isa}_exists"))


@functools.cache
def pairs_are_fast() -> bool:
    """Tell whether this processor multiplies pairs of bf16 faster than it does floats; Intel's without tiles do not."""
    built = load()
    return not isinstance(built, BuildError) and bool(built.hb_pairs_are_fast())


def find(kernel: str, check: Callable[[Form], bool]) -> Form | None:
    """Return the fastest form of a kernel that passes its check; None where there is none.

    Args:
        kernel: its name, for the cache and for ``faults``.
        check: compares a form with PyTorch's operators on small inputs.
    """
    if kernel not in _forms:
        _forms[kernel] = None
        for isa in instruction_sets():
            with torch.no_grad():
                is_right = check(Form(isa))
            if is_right:
                _forms[kernel] = Form(isa)
                break
            faults.append(f"{kernel} ({isa})")
    return _forms[kernel]


def _word(argument: "int | Tensor | None") -> ctypes.c_int64 | ctypes.c_void_p:
    if argument is None:
        return ctypes.c_void_p(None)
    return ctypes.c_int64(argument.data_ptr() if isinstance(argument, Tensor) else argument)
