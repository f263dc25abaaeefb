"""The layers of a description, with their parameters, and the parts of a block that they form."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple


class Parameter(NamedTuple):
    """A parameter: its name, logical shape, and the dimension that tensor parallelism splits, if any."""

    name: str
    shape: tuple[int, ...]
    cut: int | None = None


@dataclass(frozen=True)
class Linear:
    """A linear layer, ``[num_out, num_in]``, or several stacked or grouped ones."""

    name: str
    num_in: int
    num_out: int
    """Of all parts."""
    bias: bool = True
    num_parts: int = 1
    """Stacked matrices of equal shape, such as query, key and value: ``[parts, num_out / parts, num_in]``."""
    num_groups: int = 1
    """Groups of outputs that each depend on one group of inputs: ``[groups, num_out / groups, num_in / groups]``."""
    cut: Literal["outputs", "inputs"] | None = None
    """What tensor parallelism splits; groups are split whole, and count as outputs."""
    is_scored: bool = True
    """In a head, whether it computes every scored token."""

    @property
    def num_weights(self) -> int:
        """Number of weights, without biases."""
        return self.num_out * self.num_in // self.num_groups

    def parameters(self) -> Iterator[Parameter]:
        """Yield the weight and the bias."""
        stacked = self.num_parts > 1
        shape: tuple[int, ...] = (self.num_out, self.num_in)
        bias: tuple[int, ...] = (self.num_out,)
        if stacked:
            bias = (self.num_parts, self.num_out // self.num_parts)
            shape = (*bias, self.num_in)
        elif self.num_groups > 1:
            shape = (self.num_groups, self.num_out // self.num_groups, self.num_in // self.num_groups)
        rows = 1 if stacked else 0
        yield Parameter(f"{self.name}.weight", shape, {"outputs": rows, "inputs": 1, None: None}[self.cut])
        if self.bias:
            yield Parameter(f"{self.name}.bias", bias, rows if self.cut == "outputs" else None)


@dataclass(frozen=True)
class Norm:
    """A norm of each token, over all columns or over groups of them."""

    name: str
    size: int
    kind: Literal["layer", "rms"] = "layer"
    """``rms`` has neither a mean nor a bias."""
    gain: bool = True
    """Whether an RMS norm has a gain."""
    bias: bool = True
    """Whether a layer norm has a bias."""

    def parameters(self) -> Iterator[Parameter]:
        """Yield the gain and the bias, if it has them."""
        if self.gain:
            yield Parameter(f"{self.name}.weight", (self.size,))
        if self.kind == "layer" and self.bias:
            yield Parameter(f"{self.name}.bias", (self.size,))

    @property
    def num_weights(self) -> int:
        """0: it multiplies no matrix."""
        return 0


@dataclass(frozen=True)
class Table:
    """Any other parameter: a table of embeddings, a bias of the vocabulary, the filters of a convolution."""

    name: str
    shape: tuple[int, ...]
    cut: int | None = None
    num_weights: int = 0
    """Number of weights that multiply each token; 0 if it is only looked up or added."""

    def parameters(self) -> Iterator[Parameter]:
        """Yield the parameter."""
        yield Parameter(self.name, self.shape, self.cut)


Layer = Linear | Norm | Table


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Softmax attention with its projections."""

    name: str = "attention"
    inputs: tuple[Linear, ...]
    """Query, key and value: one stacked layer, query and stacked key and value, or one each; split by heads."""
    out: Linear
    num_heads: int
    num_kv_heads: int
    head_size: int
    is_causal: bool
    dropout: float = 0.0
    others: tuple[Layer, ...] = ()
    """Further layers, such as norms of queries and keys."""
    is_rotary: bool = False
    """Whether queries and keys are rotated by their positions."""
    shifts_keys: bool = False
    """Whether half of the columns of keys are the previous token's."""
    windows: tuple[int | None, ...] = (None,)
    """How many tokens, with itself, a token sees, by layer, repeated; None: all, or all earlier ones if causal.

    Without ``is_causal``, as many on either side.
    """
    cap: float | None = None
    """Soft limit of the scores."""
    scale: float | None = None
    """Factor of the scores; None: 1 / √(size of a head)."""

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All layers in order."""
        return (*self.inputs, *self.others, self.out)

    @property
    def is_plain(self) -> bool:
        """Whether queries, keys and values are the results of one layer, and nothing else limits or scales scores."""
        is_unlimited = self.windows == (None,) and self.cap is None and self.scale is None
        is_changed = self.others or self.is_rotary or self.shifts_keys
        return len(self.inputs) == 1 and not is_changed and is_unlimited

    def window(self, index: int) -> int | None:
        """Return the window of the layer ``index``."""
        return self.windows[index % len(self.windows)]


@dataclass(frozen=True, kw_only=True)
class FeedForward:
    """``out(f(inputs))``: one input layer, or a gate and one that it multiplies."""

    name: str = "feed_forward"
    inputs: tuple[Linear, ...]
    """The layer before the activation; with two, also stacked, the activation of the first multiplies the second."""
    out: Linear
    activation: str
    middle: Linear | None = None
    """A grouped layer between the activation and ``out``."""

    @property
    def inner(self) -> int:
        """Columns of the activation."""
        return self.inputs[0].num_out // self.inputs[0].num_parts

    @property
    def is_gated(self) -> bool:
        """Whether the activation of one layer multiplies another one."""
        return len(self.inputs) > 1 or self.inputs[0].num_parts > 1

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All layers in order."""
        return (*self.inputs, self.out) if self.middle is None else (*self.inputs, self.middle, self.out)


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """GroupBERT's gated convolution over neighboring tokens."""

    name: str = "convolution"
    up: Linear
    filters: Table
    filter_bias: Table
    norm: Norm
    down: Linear
    kernel: int

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All layers in order."""
        return (self.filters, self.filter_bias, self.up, self.norm, self.down)


@dataclass(frozen=True, kw_only=True)
class Other:
    """A part of another kind, such as a registered model's own; tensor parallelism does not split it."""

    name: str
    layers: tuple[Layer, ...]
    kept: float = 0.0
    """Numbers per token, in the dtype of the activations, that its operators keep for the backward pass."""
    kept_fp32: float = 0.0
    """The same in fp32."""
    temporary_fp32: float = 0.0
    """Further numbers per token, in fp32, at its peak."""


Part = Attention | FeedForward | Convolution | Other
