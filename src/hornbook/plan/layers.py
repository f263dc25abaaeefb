"""Memory of the layers of all models, forward and backward, as computed by `hornbook.ops`.

::

    linear     y = x Wᵀ + b     keeps x, and a copy of W in the dtype of the activations    [n, in] -> [n, out]
    norm       keeps x, mean and deviation of each token in fp32
    dropout    keeps nothing: its mask is a hash, which is recomputed

``tests/plan`` compares each with the counts of PyTorch's allocator.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from hornbook.config.sections import DTYPE_BYTES, Dtype
from hornbook.plan.tape import Kind, Tape

FP32 = 4
TABLE = "embedding.tokens"
"""The name of the token table, which a tied head shares."""
Operator = Literal["linear", "attention", "layer_norm", "cross_entropy"]
"""A native operator whose memory differs from that of PyTorch's."""
NormKind = Literal["layer", "rms"]
ALL_NATIVE = frozenset[Operator](get_args(Operator))
SUMMED = "/gradient that is summed"
"""How the name of a whole gradient ends until ranks that hold shards have summed it."""


@dataclass(frozen=True, kw_only=True)
class Compute:
    """The device, dtypes and operators of the computation."""

    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Dtype = "fp32"
    """Dtype of the activations."""
    weights: Dtype = "fp32"
    gradients: Dtype = "fp32"
    native: frozenset[Operator] = frozenset()
    """The operators that are native instead of PyTorch's."""
    has_triton: bool = False
    """Whether Triton computes norms, dropout, cross-entropy, and attention that PyTorch has no fused operator for."""
    panel_bytes: int = 2
    """Bytes per element of weights that native operators have packed."""

    def is_native(self, operator: Operator) -> bool:
        """Return whether an operator is native; linear layers and norms only with weights in fp32."""
        return operator in self.native and (self.weights == "fp32" or operator not in ("linear", "layer_norm"))

    @property
    def adds_in_norms(self) -> bool:
        """Whether the operator of a norm's gradient adds that of the residual, and needs no temporary tensors."""
        return self.has_triton or self.is_native("layer_norm")

    @property
    def itemsize(self) -> int:
        """Bytes per element of activations."""
        return DTYPE_BYTES[self.dtype]

    @property
    def gathered(self) -> int:
        """Bytes per element of gathered weights of blocks and head; the embedding's are as stored."""
        return DTYPE_BYTES[self.dtype if self.device == "cuda" else self.weights]


Casts = Literal["layer", "step", "never"]


class Postponed(NamedTuple):
    """The gradient of a parameter that is computed after those of the inputs."""

    name: str
    """Name of the parameter."""
    numbers: float
    itemsize: int
    """Bytes per element of the new gradient."""
    frees: tuple[str, ...]
    """Tensors to free afterwards."""


class Layers:
    """The recorder of the layers' allocations on a tape; names are those of the parameters.

    Args:
        tape: to write on.
        compute: determines which tensors are kept.
        num_shards: number of ranks over which gradients are sharded.
        blocks: number of weights of block-sparse layers and of a sparse token table by name, which are not copied.
        cut: the dimension of a parameter that tensor parallelism splits, by its name; None if no rank splits any.
        casts: when a weight is cast to the dtype of activations: whenever its layer computes; once a step, where
            products also write its gradient in fp32; or never, since it is gathered in that dtype.
    """

    def __init__(
        self,
        tape: Tape,
        compute: Compute,
        num_shards: int = 1,
        blocks: Mapping[str, int] | None = None,
        cut: Callable[[str], int | None] | None = None,
        *,
        casts: Casts = "layer",
    ) -> None:
        self.casts = casts
        self._num_shards, self._blocks, self._cut = num_shards, blocks or {}, cut
        self.tape, self.compute, self.itemsize = tape, compute, compute.itemsize
        self.postponed: list[Postponed] | None = None
        """In backward passes that compute only the gradients of inputs, the postponed gradients of weights."""

    def activation(self, name: str, numbers: float, itemsize: int | None = None) -> None:
        """Allocate a tensor that the backward pass or the next layer needs."""
        self.tape.hold("activations", name, numbers * (itemsize or self.itemsize))

    def scratch(self, name: str, numbers: float, itemsize: int | None = None) -> None:
        """Allocate other tensors, mainly gradients of activations."""
        self.tape.hold("workspace", name, numbers * (itemsize or self.itemsize))

    def is_cut(self, weight: str) -> bool:
        """Return whether a weight is split over tensor-parallel ranks."""
        return self._cut is not None and self._cut(weight) is not None

    @property
    def table_weights(self) -> int | None:
        """The number of weights of a sparse token table; None if it is dense."""
        return self._blocks.get(TABLE)

    def is_native(self, name: str) -> bool:
        """Return whether a native operator computes a linear layer; there is none for split weights."""
        return self.compute.is_native("linear") and not self.is_cut(f"{name}.weight")

    def is_mixed(self, name: str) -> bool:
        """Return whether a linear layer is that of `hornbook.ops.mixed_linear`."""
        return self.casts == "step" and name not in self._blocks

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
        """Compute the gradient ``result`` ``[rows, in]`` and those of the parameters, then free tensors.

        Args:
            name: of the layer.
            num_rows: number of tokens.
            num_in: columns of the input.
            num_out: columns of the output.
            gradient: gradient of the output, which is kept.
            result: the gradient to compute.
            frees: tensors to free.
            bias: whether the layer has a bias.
        """
        size = self._blocks.get(name, num_in * num_out)
        is_native = self.is_native(name)
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
        if self.is_mixed(name):
            if not self.tape.holds(f"{name}/gradient"):
                self.add_gradient(name, size + bias * num_out, FP32)
            self.tape.free(*frees)
            return
        self.scratch(f"{name}/new", size + bias * num_out)
        self.tape.free(*frees, f"{name}/cast")
        self.arrived(name, size + bias * num_out)

    def postpones(self, name: str, numbers: float, itemsize: int, gradient: str, *frees: str) -> bool:
        """Return whether the gradient of a parameter is computed later, and keep the tensors that it needs.

        Args:
            name: of the parameter.
            numbers: number of its elements.
            itemsize: bytes per element of the new gradient.
            gradient: gradient of the result.
            frees: tensors to free afterwards.
        """
        if self.postponed is None:
            return False
        kept = f"{name}/gradient of the result"
        self.tape.rename(gradient, kept)
        self.postponed.append(Postponed(name, numbers, itemsize, (kept, *frees)))
        return True

    def add_postponed(self, postponed: Postponed) -> None:
        """Compute a postponed gradient, and free the tensors that it needed."""
        self.add_gradient(postponed.name, postponed.numbers, postponed.itemsize)
        self.tape.free(*postponed.frees)

    def _weight(self, name: str, size: int) -> None:
        if self.is_native(name):
            self.panels(f"{name}/panels", size)
        elif self.is_mixed(name):
            self.copy(name, size)
        elif self.compute.weights != self.compute.dtype and self.casts != "never":
            self.activation(f"{name}/cast", size)

    def copy(self, name: str, size: int) -> None:
        """Cast a weight, once a step."""
        if not self.tape.holds(f"{name}/copy"):
            self.scratch(f"{name}/copy", size)

    def panels(self, name: str, size: int) -> None:
        """Pack a weight, once: its memory is kept for later steps."""
        if not self.tape.holds(name):
            self.scratch(name, size, self.compute.panel_bytes)

    def arrived(self, name: str, size: int) -> None:
        """Store or accumulate the gradient ``name``/new, which has the dtype of the activations."""
        self.add_gradient(name, size, self.itemsize, new=f"{name}/new")

    def add_gradient(self, name: str, size: float, itemsize: int, new: str | None = None) -> None:
        """Store the first gradient of a parameter, or add a later one to it and free that.

        Args:
            name: of the parameter.
            size: number of elements.
            itemsize: bytes per element of the new gradient, which is cast to the dtypes of weights and gradients.
            new: name of the new gradient, if it is live.
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

    def norm(self, name: str, num_rows: float, size: int, result: str, *, kind: NormKind = "layer") -> None:
        """Compute ``result`` ``[rows, size]`` and keep each row's mean, if any, and deviation; the caller keeps x."""
        self.activation(result, num_rows * size)
        self.activation(f"{name}/statistics", (2 if kind == "layer" else 1) * num_rows, FP32)

    def norm_backward(
        self,
        name: str,
        num_rows: float,
        size: int,
        gradient: str,
        result: str,
        *frees: str,
        kind: NormKind = "layer",
        gain: bool = True,
    ) -> None:
        """Compute the gradient ``result`` of the input from that of the output, then free tensors."""
        numbers = 2 * size if kind == "layer" else gain * size
        if kind == "rms" and not self.compute.adds_in_norms:
            self.tape.use(num_rows * size * 4 * FP32)
        self.scratch(result, num_rows * size)
        is_mixed = self.compute.device == "cpu" and self.itemsize < FP32 and not self.compute.is_native("layer_norm")
        if is_mixed and kind == "layer":
            self.tape.use(num_rows * size * self.itemsize)
        if not numbers:
            self.tape.free(*frees, f"{name}/statistics")
            return
        if self.postpones(name, numbers, FP32, gradient, f"{name}/statistics", *frees):
            return
        self.add_gradient(name, numbers, FP32)
        self.tape.free(*frees, f"{name}/statistics")

    def dropout(self, num_rows: float, size: int, name: str, *, probability: float) -> None:
        """Replace ``name`` by a new tensor with dropped elements, keeping nothing; also used for its gradient."""
        if probability == 0.0:
            return
        numbers = num_rows * size
        if not self.compute.has_triton:
            self.tape.use(numbers * 2 * FP32)
            self.tape.use(numbers * (1 + 2 * self.itemsize))
        kind: Kind = "workspace" if name.endswith("gradient") else "activations"
        self.tape.hold(kind, name, numbers * self.itemsize)

    def take(self, source: str, num_rows: float, size: int, result: str) -> None:
        """Gather rows of ``source`` as ``result`` ``[rows, size]``, and free it."""
        self.activation(result, num_rows * size)
        self.tape.free(source)
