"""The layers of all models as they allocate and free memory, forward and backward: what `hornbook.ops` computes.

::

    linear     y = x Wᵀ + b     keeps x, and a copy of W in the dtype of the activations    [n, in] -> [n, out]
    norm       keeps x, mean and deviation of each token in fp32
    dropout    keeps nothing: its mask is a hash, computed again

``tests/plan`` holds each against what PyTorch's allocator counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from hornbook.config.parallel import cut_dimension
from hornbook.config.sections import DTYPE_BYTES, Dtype
from hornbook.plan.tape import Kind, Tape

FP32 = 4
TABLE = "embedding.tokens"
"""The name of the token table, which a tied head shares."""
SUMMED = "/gradient that is summed"
"""How the name of a whole gradient ends until ranks that hold shards have summed it."""


@dataclass(frozen=True, kw_only=True)
class Compute:
    """Who computes, and in what."""

    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Dtype = "fp32"
    """Of the activations."""
    weights: Dtype = "fp32"
    gradients: Dtype = "fp32"
    is_native: bool = False
    """Whether hornbook's own operators compute instead of PyTorch's."""
    panel_bytes: int = 2
    """Bytes of a number of a weight that a native operator has packed."""

    @property
    def has_native_layers(self) -> bool:
        """Whether they compute more than attention: they take weights in fp32 alone."""
        return self.is_native and self.weights == "fp32"

    @property
    def itemsize(self) -> int:
        """Bytes of an activation."""
        return DTYPE_BYTES[self.dtype]


class Postponed(NamedTuple):
    """The gradient of a parameter that is computed after those of the inputs."""

    name: str
    """Of the parameter."""
    numbers: float
    itemsize: int
    """Bytes of each as it comes."""
    frees: tuple[str, ...]
    """What is not needed any more after that."""


class Layers:
    """Writes what layers allocate and free on a tape; names are those of the parameters.

    Args:
        tape: to write on.
        compute: decides what is kept.
        num_shards: ranks that keep a share of each gradient.
        blocks: the weights of sparse linear maps and of a sparse table by name, which are used as they are.
        num_parts: tensor-parallel ranks.
    """

    def __init__(
        self,
        tape: Tape,
        compute: Compute,
        num_shards: int = 1,
        blocks: Mapping[str, int] | None = None,
        num_parts: int = 1,
    ) -> None:
        self._num_shards, self._blocks, self._num_parts = num_shards, blocks or {}, num_parts
        self.tape, self.compute, self.itemsize = tape, compute, compute.itemsize
        self.postponed: list[Postponed] | None = None
        """Where a backward pass computes the gradients of inputs alone: what those of weights will take."""

    def activation(self, name: str, numbers: float, itemsize: int | None = None) -> None:
        """Allocate what the backward pass needs, or the next layer."""
        self.tape.hold("activations", name, numbers * (itemsize or self.itemsize))

    def scratch(self, name: str, numbers: float, itemsize: int | None = None) -> None:
        """Allocate what is neither: gradients of activations, above all."""
        self.tape.hold("workspace", name, numbers * (itemsize or self.itemsize))

    def is_cut(self, weight: str) -> bool:
        """Tell whether tensor-parallel ranks hold a part of a weight each."""
        return self._num_parts > 1 and cut_dimension(weight) is not None

    @property
    def table_weights(self) -> int | None:
        """The weights of a sparse token table; None where it is dense."""
        return self._blocks.get(TABLE)

    def _is_native(self, name: str) -> bool:
        """Tell whether a native operator computes a linear map: none multiplies by a weight that is cut."""
        return self.compute.has_native_layers and not self.is_cut(f"{name}.weight")

    def linear(self, name: str, num_rows: float, num_in: int, num_out: int, result: str) -> None:
        """Compute ``result`` ``[rows, out]``."""
        if name not in self._blocks:
            self._weight(name, num_in * num_out)
        self.activation(result, num_rows * num_out)

    def linear_backward(
        self,
        name: str,
        num_rows: float,
        num_in: int,
        num_out: int,
        gradient: str,
        result: str,
        *frees: str,
        bias: bool = True,
    ) -> None:
        """Compute the gradient ``result`` ``[rows, in]`` and those of the parameters, then free what was needed.

        Args:
            name: of the layer.
            num_rows: tokens.
            num_in: columns of the input.
            num_out: columns of the output.
            gradient: that of the output, which stays.
            result: the gradient to compute.
            frees: tensors.
            bias: whether there is one.
        """
        size = self._blocks.get(name, num_in * num_out)
        is_native = self._is_native(name)
        itemsize = FP32 if name in self._blocks or is_native else self.itemsize
        if self.postpones(name, size + bias * num_out, itemsize, gradient, *frees):
            if is_native and name not in self._blocks:
                self.panels(f"{name}/panels of the gradient", size)
            self.scratch(result, num_rows * num_in)
            return
        if name in self._blocks:
            self.scratch(result, num_rows * num_in)
            self.add_gradient(name, size + bias * num_out, FP32)
            self.tape.free(*frees)
            return
        if is_native:
            self.panels(f"{name}/panels of the gradient", size)
            self.scratch(result, num_rows * num_in)
            if not self.tape.holds(f"{name}/gradient"):
                self.add_gradient(name, size + bias * num_out, FP32)
            self.tape.free(*frees)
            return
        self.scratch(result, num_rows * num_in)
        self.scratch(f"{name}/new", size + bias * num_out)
        self.tape.free(*frees, f"{name}/cast")
        self.arrived(name, size + bias * num_out)

    def postpones(self, name: str, numbers: float, itemsize: int, gradient: str, *frees: str) -> bool:
        """Keep what the gradient of a parameter takes if it is computed later, and tell whether it is.

        Args:
            name: of the parameter.
            numbers: of its gradient.
            itemsize: bytes of each as it comes.
            gradient: that of the result.
            frees: what is not needed any more after that.
        """
        if self.postponed is None:
            return False
        kept = f"{name}/gradient of the result"
        self.tape.rename(gradient, kept)
        self.postponed.append(Postponed(name, numbers, itemsize, (kept, *frees)))
        return True

    def add_postponed(self, postponed: Postponed) -> None:
        """Compute the gradient of a parameter and free what that took."""
        self.add_gradient(postponed.name, postponed.numbers, postponed.itemsize)
        self.tape.free(*postponed.frees)

    def _weight(self, name: str, size: int) -> None:
        if self._is_native(name):
            self.panels(f"{name}/panels", size)
        elif self.compute.weights != self.compute.dtype:
            self.activation(f"{name}/cast", size)

    def panels(self, name: str, size: int) -> None:
        """Pack a weight, once: its memory stays for the next steps."""
        if not self.tape.holds(name):
            self.scratch(name, size, self.compute.panel_bytes)

    def arrived(self, name: str, size: int) -> None:
        """Keep or add the gradient ``name``/new, which has the dtype of the activations."""
        self.add_gradient(name, size, self.itemsize, new=f"{name}/new")

    def add_gradient(self, name: str, size: float, itemsize: int, new: str | None = None) -> None:
        """Keep the first gradient of a parameter, or add one to it and free it.

        Args:
            name: of the parameter.
            size: numbers.
            itemsize: bytes of each as it comes; it is cast to the dtype of the weights, and of the gradients.
            new: the tensor, if it is live.
        """
        kept, new = f"{name}/gradient", new or f"{name}/new"
        if self.postponed is not None:
            self.tape.free(new)
            self.postponed.append(Postponed(name, size, itemsize, ()))
            return
        self.scratch(new, size, itemsize) if not self.tape.holds(new) else None
        for dtype in (self.compute.weights, self.compute.gradients):
            if DTYPE_BYTES[dtype] != itemsize:
                itemsize = DTYPE_BYTES[dtype]
                self.scratch(new, size, itemsize)
        if self._num_shards > 1:
            self.tape.rename(new, f"{name}{SUMMED}")
        self.tape.free(new)
        if not self.tape.holds(kept):
            self.tape.hold("gradients", kept, size * itemsize / self._num_shards)

    def norm(self, name: str, num_rows: float, size: int, result: str) -> None:
        """Compute ``result`` ``[rows, size]`` and keep two statistics of each row; the input must stay."""
        self.activation(result, num_rows * size)
        self.activation(f"{name}/statistics", 2 * num_rows, FP32)

    def norm_backward(self, name: str, num_rows: float, size: int, gradient: str, result: str, *frees: str) -> None:
        """Compute the gradient ``result`` of the input from that of the output, then free what was needed."""
        self.scratch(result, num_rows * size)
        is_mixed = self.compute.device == "cpu" and self.itemsize < FP32 and not self.compute.has_native_layers
        if is_mixed:
            self.tape.use(num_rows * size * self.itemsize)
        if self.postpones(name, 2 * size, FP32, gradient, f"{name}/statistics", *frees):
            return
        self.add_gradient(name, 2 * size, FP32)
        self.tape.free(*frees, f"{name}/statistics")

    def dropout(self, num_rows: float, size: int, name: str, *, probability: float) -> None:
        """Drop elements of ``name``, which becomes a new tensor; nothing is kept. Its gradient takes the same."""
        if probability == 0.0:
            return
        numbers = num_rows * size
        self.tape.use(numbers * 2 * FP32)
        self.tape.use(numbers * (1 + 2 * self.itemsize))
        kind: Kind = "workspace" if name.endswith("gradient") else "activations"
        self.tape.hold(kind, name, numbers * self.itemsize)

    def take(self, source: str, num_rows: float, size: int, result: str) -> None:
        """Gather rows of ``source`` as ``result`` ``[rows, size]``, and free it."""
        self.activation(result, num_rows * size)
        self.tape.free(source)
