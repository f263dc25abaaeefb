"""The description of a model, its layers by name and size, from which all that counts them follows, without torch.

::

    Description
      embedding   Table("embedding.tokens"), ...                                        layers before the blocks
      block       Block(norms and parts: Attention, FeedForward, Convolution)           names relative to blocks.N
      head        Norm("head.norm"), ...                                                layers after the blocks

A family's configuration describes its model; shapes, tensor-parallel cuts, sparse layers, FLOPs, memory plans and the
names of imports and exports are read from there. A test compares the shapes with those of the modules.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

from hornbook.config.shapes import Shapes


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

    def parameters(self) -> Iterator[Parameter]:
        """Yield the gain and the bias."""
        yield Parameter(f"{self.name}.weight", (self.size,))
        if self.kind == "layer":
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
    """Query, key and value: one stacked layer, or one each; split by heads."""
    out: Linear
    num_heads: int
    num_kv_heads: int
    head_size: int
    is_causal: bool
    dropout: float = 0.0
    others: tuple[Layer, ...] = ()
    """Further layers, such as norms of queries and keys."""

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All layers in order."""
        return (*self.inputs, *self.others, self.out)


@dataclass(frozen=True, kw_only=True)
class FeedForward:
    """``out(f(inputs))``: one input layer, or a gate and one that it multiplies."""

    name: str = "feed_forward"
    inputs: tuple[Linear, ...]
    """The layer before the activation; with two, the activation of the first multiplies the second."""
    out: Linear
    activation: str
    middle: Linear | None = None
    """A grouped layer between the activation and ``out``."""

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


Part = Attention | FeedForward | Convolution


@dataclass(frozen=True, kw_only=True)
class Block:
    """A residual block: ``x + part(norm(x))`` for each part, or ``norm(x + part(x))``."""

    norms: tuple[Norm, ...]
    parts: tuple[Part, ...]
    """As many as norms, in the order in which they compute."""
    norm_first: bool
    dropout: float = 0.0
    """Before each residual addition."""
    order: tuple[str, ...] | None = None
    """Names of norms and parts in the order of the parameters; None: each norm before its part."""

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """All layers in the order of the parameters, with names relative to the block."""
        own: dict[str, tuple[Layer, ...]] = {}
        for norm, part in zip(self.norms, self.parts, strict=True):
            own |= {norm.name: (norm,), part.name: part.layers}
        return tuple(layer for name in self.order or own for layer in own[name])

    @property
    def attentions(self) -> list[Attention]:
        """The parts that are attention."""
        return [part for part in self.parts if isinstance(part, Attention)]


@dataclass(frozen=True, kw_only=True)
class Description:
    """A model: an embedding, equal blocks and a head."""

    embedding: tuple[Layer, ...]
    block: Block
    num_layers: int
    head: tuple[Layer, ...]
    embedding_dropout: float = 0.0
    splits: bool = True
    """Whether its modules compute with weights that tensor parallelism has split."""

    def shapes(self) -> Shapes:
        """Yield the name and the logical shape of each parameter, a tied token table once."""
        for parameter in self.parameters():
            yield parameter.name, parameter.shape

    def parameters(self) -> Iterator[Parameter]:
        """Yield each parameter, a tied token table once."""
        for layer in self.embedding:
            yield from layer.parameters()
        block = [parameter for layer in self.block.layers for parameter in layer.parameters()]
        for number in range(self.num_layers):
            for parameter in block:
                yield parameter._replace(name=f"blocks.{number}.{parameter.name}")
        for layer in self.head:
            yield from layer.parameters()

    @property
    def num_parameters(self) -> int:
        """Number of parameters; the time does not depend on the number of layers."""
        block = _count(self.block.layers)
        return _count(self.embedding) + self.num_layers * block + _count(self.head)

    def linears(self) -> Iterator[tuple[str, Linear]]:
        """Yield the linear layers that are not grouped, with their whole names."""
        for number in range(self.num_layers):
            for layer in self.block.layers:
                if isinstance(layer, Linear) and layer.num_groups == 1:
                    yield f"blocks.{number}.{layer.name}", layer
        for layer in (*self.embedding, *self.head):
            if isinstance(layer, Linear):
                yield layer.name, layer

    @property
    def is_tied(self) -> bool:
        """Whether the head's table is the embedding's."""
        return all(layer.name != "head.table" for layer in self.head)

    @property
    def is_causal(self) -> bool:
        """Whether tokens see only earlier ones."""
        return all(attention.is_causal for attention in self.block.attentions)

    @property
    def hidden_size(self) -> int:
        """Columns of the hidden states."""
        return self.block.norms[0].size

    @property
    def feed_forward_size(self) -> int:
        """Inner columns of the widest feed-forward; the hidden states' if there is none."""
        inner = [part.inputs[0].num_out for part in self.block.parts if isinstance(part, FeedForward)]
        return max(inner, default=self.hidden_size)

    @property
    def width(self) -> int:
        """Total size of the query heads of a block."""
        return sum(attention.num_heads * attention.head_size for attention in self.block.attentions)

    def layer(self, name: str) -> Layer | None:
        """Return the layer of the embedding or the head with this name; None if there is none."""
        return next((layer for layer in (*self.embedding, *self.head) if layer.name == name), None)

    @property
    def table(self) -> Table:
        """The token table."""
        return next(layer for layer in self.embedding if isinstance(layer, Table) and layer.name == "embedding.tokens")

    def flops_per_token(self, length: float, scored: float = 1.0) -> float:
        """Return the floating-point operations of a training step per token: 6 N + 12 L D T.

        N is the number of weights of all matrices that multiply a token: 2 operations each in the forward pass, 4 in
        the backward pass. The token table counts as the matrix of the logits, times the share of scored tokens; other
        tables, biases and norms do not count. L D T is blocks · total size of heads · ``length``: causal attention
        counts as if every token attended to the whole sequence, and recomputation does not count (Chowdhery et al.
        2022, PaLM, appendix B).

        Args:
            length: tokens of a sequence, or the mean over sequences.
            scored: share of the tokens for which logits are computed.
        """
        in_block = sum(layer.num_weights for layer in self.block.layers)
        in_head = sum(layer.num_weights for layer in self.head if isinstance(layer, Linear) and layer.is_scored)
        in_head += math.prod(self.table.shape)
        weights = self.num_layers * in_block + scored * in_head
        weights += sum(layer.num_weights for layer in self.embedding if isinstance(layer, Linear))
        return 6.0 * weights + 12.0 * self.num_layers * self.width * length

    def cut(self, name: str) -> int | None:
        """Return the dimension of a parameter that tensor parallelism splits; None if it is replicated.

        The first layer of a pair is split by its outputs and the second by its inputs (Shoeybi et al. 2019, section
        3); the token table by its rows, query, key and value by heads, and grouped layers by whole groups.
        """
        if name == "head.table":
            return self.table.cut
        kind, _, rest = name.partition(".")
        return self._cuts.get(f"blocks.{rest.partition('.')[2]}" if kind == "blocks" else name)

    def sees_slice(self, name: str) -> bool:
        """Return whether sequence parallelism applies a parameter only to the tokens of its rank.

        Its gradient is then summed over the tensor-parallel ranks. The head processes all tokens.
        """
        return name.startswith(("embedding.", "blocks.")) and self.cut(name) is None

    def divided(self) -> dict[str, int]:
        """Return the sizes that tensor parallelism divides, by the option of ``[model]`` that sets them."""
        sizes: dict[str, int] = {}
        for part in self.block.parts:
            if isinstance(part, Attention):
                sizes["num_heads"] = part.num_heads
                if part.num_kv_heads != part.num_heads:
                    sizes["num_kv_heads"] = part.num_kv_heads
            elif isinstance(part, FeedForward):
                sizes["feed_forward_size"] = part.inputs[0].num_out
                if part.middle is not None:
                    sizes["feed_forward_groups"] = part.middle.num_groups
        return sizes

    @cached_property
    def _cuts(self) -> dict[str, int]:
        outside = [parameter for layer in (*self.embedding, *self.head) for parameter in layer.parameters()]
        inside = [
            parameter._replace(name=f"blocks.{parameter.name}")
            for layer in self.block.layers
            for parameter in layer.parameters()
        ]
        return {name: cut for name, _, cut in (*outside, *inside) if cut is not None}


class Described(ABC):
    """A model's options that describe the model; a registered family that does so is planned, split and counted.

    A family that inherits the options of another one but builds other layers overrides ``description``, or sets it to
    None.
    """

    @abstractmethod
    def description(self, vocab_size: int | None = None) -> Description:
        """Return the description, whose token table has ``vocab_size`` rows; None: those of the option, or none."""

    def shapes(self, vocab_size: int | None = None) -> Shapes:
        """Yield the name and the logical shape of each parameter, the tied token table once."""
        return self.description(vocab_size).shapes()

    def num_parameters(self, vocab_size: int | None = None) -> int:
        """Return the number of parameters; the tied token table once, or not at all if the vocabulary is not known."""
        return self.description(vocab_size).num_parameters

    def flops_per_token(self, length: float, *, scored: float = 1.0) -> float:
        """Return the floating-point operations of a training step per token; see ``Description``."""
        return self.description().flops_per_token(length, scored)


def description_of(model: object) -> Description | None:
    """Return the description of the model of a ``[model]`` section; None for a custom family that gives none."""
    return _described(model) if isinstance(model, Described) and callable(model.description) else None


@lru_cache(maxsize=64)
def _described(model: Described) -> Description:
    return model.description()


def _count(layers: tuple[Layer, ...]) -> int:
    return sum(math.prod(parameter.shape) for layer in layers for parameter in layer.parameters())
