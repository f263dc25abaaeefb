"""Inputs of a model: a text, a sequence of ids, or several; results are returned in the same form.

    "The cat"   [464, 3797]   tensor([464, 3797])        one       -> one result
    ["The cat", "A dog"]      [[464, 3797], [32]]        a list    -> a list with a result for each entry
    tensor([[464, 3797], [32, 3290]])                    a batch   -> one tensor of stacked results

The sequences of a list may differ in length, so their results are not stacked. The trade-off: an empty list is an
error, since it could mean an empty sequence or no sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hornbook.arrays import Int64s
from hornbook.errors import UserError

One: TypeAlias = str | list[int] | tuple[int, ...] | Tensor | NDArray[np.integer[Any]]
"""A text or ids; tensors and arrays of ids may be ``[B, T]``."""
Several: TypeAlias = list[str] | list[list[int]] | list[Tensor]
"""A list of texts, or of sequences of ids."""

_EXPECTED = "expected a text, a list of ids, a list of either, or a tensor of ids"


@dataclass(frozen=True, kw_only=True)
class Given:
    """Texts or sequences of ids, and the form in which they were given."""

    items: list[str | Int64s]
    form: Literal["one", "list", "stack"]

    def texts(self) -> list[str]:
        """Return the texts; an empty list for ids.

        Raises:
            UserError: the input mixes texts and ids.
        """
        texts = [item for item in self.items if isinstance(item, str)]
        if texts and len(texts) < len(self.items):
            raise UserError(f"the input mixes texts and ids; {_EXPECTED}")
        return texts

    def shaped(self, results: list[Tensor]) -> Any:
        """Return the results of the items in the form of the input."""
        if self.form == "list":
            return results
        return results[0] if self.form == "one" else torch.stack(results)


def read_inputs(inputs: object) -> Given:
    """Return the texts or ids of an input, and its form.

    Raises:
        UserError: the input is neither text nor ids, or is empty.
    """
    if isinstance(inputs, Tensor | np.ndarray) and inputs.ndim == 2:
        return Given(items=[_item(row) for row in _rows(inputs)], form="stack")
    is_several = isinstance(inputs, Sequence) and not isinstance(inputs, str | bytes | bytearray | memoryview)
    if not is_several or _is_number(cast("Sequence[object]", inputs)[:1]):
        return Given(items=[_item(inputs)], form="one")
    return Given(items=[_item(entry) for entry in _rows(inputs)], form="list")


def _rows(inputs: Any) -> list[Any]:
    if not len(inputs):
        raise UserError(f"the input is empty; {_EXPECTED}")
    return list(inputs)


def _is_number(first: Any) -> bool:
    return len(first) == 1 and isinstance(first[0], int | np.integer)


def _item(entry: Any) -> str | Int64s:
    """Return a text unchanged, and ids as int64[T]."""
    if isinstance(entry, str):
        return entry
    if isinstance(entry, bytes | bytearray | memoryview):
        raise UserError(f"the input has bytes; {_EXPECTED}; decode the bytes, as in text.decode()")
    if not isinstance(entry, Tensor | np.ndarray | Sequence):
        raise UserError(f"the input is of type {type(entry).__name__}; {_EXPECTED}")
    ids = np.asarray(entry.detach().cpu() if isinstance(entry, Tensor) else entry)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise UserError(f"the input has ids of {ids.dtype} in {ids.ndim} dimensions; {_EXPECTED}")
    if not ids.size:
        raise UserError("a sequence of ids is empty; expected one id or more")
    return ids.astype(np.int64)
