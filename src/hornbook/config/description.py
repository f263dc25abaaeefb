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
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from hornbook.config.parts import Attention, FeedForward, Layer, Linear, Norm, Parameter, Part, Table
from hornbook.config.shapes import Shapes


@dataclass(frozen=True, kw_only=True)
class Block:
    """A residual block: ``x + output_norm(part(norm(x)))`` for each part, or ``norm(x + part(x))``."""

    norms: tuple[Norm, ...]
    """Before each part, or after each addition; may be none if there are ``output_norms``."""
    parts: tuple[Part, ...]
    """As many as norms, in the order in which they compute."""
    norm_first: bool
    output_norms: tuple[Norm, ...] = ()
    """After each part, before the addition."""
    dropout: float = 0.0
    """Before each residual addition."""
    others: tuple[Layer, ...] = ()
    """Layers before the norms and parts."""
    order: tuple[str, ...] | None = None
    """Names of norms and parts in the order of the parameters; None: each norm before its part."""

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """All layers in the order of the parameters, with names relative to the block."""
        own: dict[str, tuple[Layer, ...]] = {layer.name: (layer,) for layer in self.others}
        for number, part in enumerate(self.parts):
            before, after = (norms[number : number + 1] for norms in (self.norms, self.output_norms))
            own |= {norm.name: (norm,) for norm in before}
            own[part.name] = part.layers
            own |= {norm.name: (norm,) for norm in after}
        return tuple(layer for name in self.order or own for layer in own[name])

    @property
    def size(self) -> int:
        """Columns of the hidden states."""
        return (self.norms or self.output_norms)[0].size

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
    logit_cap: float | None = None
    """Soft limit of the logits."""
    lacks: tuple[frozenset[str], ...] = ()
    """Names of layers that a block does not have, beginning with the first block; later blocks have all."""
    splits: bool = True
    """Whether its modules compute with weights that tensor parallelism has split."""
    reads_embedding: bool = False
    """Whether all blocks also read the embedding's result, which only one process with the whole model has."""

    def shapes(self) -> Shapes:
        """Yield the name and the logical shape of each parameter, a tied token table once."""
        for parameter in self.parameters():
            yield parameter.name, parameter.shape

    def parameters(self) -> Iterator[Parameter]:
        """Yield each parameter, a tied token table once."""
        for layer in self.embedding:
            yield from layer.parameters()
        in_block = [(layer.name, [*layer.parameters()]) for layer in self.block.layers]
        for number in range(self.num_layers):
            for name, parameters in in_block:
                if name not in self._lacks(number):
                    yield from (own._replace(name=f"blocks.{number}.{own.name}") for own in parameters)
        for layer in self.head:
            yield from layer.parameters()

    @property
    def num_parameters(self) -> int:
        """Number of parameters; the time does not depend on the number of layers."""
        counts = {layer.name: _count((layer,)) for layer in self.block.layers}
        absent = sum(counts[name] for names in self.lacks[: self.num_layers] for name in names)
        return _count(self.embedding) + self.num_layers * sum(counts.values()) - absent + _count(self.head)

    def _lacks(self, number: int) -> frozenset[str]:
        return self.lacks[number] if number < len(self.lacks) else frozenset()

    def block_at(self, number: int) -> Block:
        """Return the block of this number, without the tables and gates that it lacks."""

        def own(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
            return tuple(layer for layer in layers if layer.name not in self._lacks(number))

        parts = tuple(
            replace(part, others=own(part.others)) if isinstance(part, Attention) else part for part in self.block.parts
        )
        return replace(self.block, parts=parts, others=own(self.block.others)) if self._lacks(number) else self.block

    def linears(self) -> Iterator[tuple[str, Linear]]:
        """Yield the linear layers that are not grouped, with their whole names."""
        for number in range(self.num_layers):
            for layer in self.block.layers:
                if isinstance(layer, Linear) and layer.num_groups == 1 and layer.name not in self._lacks(number):
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
        return self.block.size

    @property
    def feed_forward_size(self) -> int:
        """Inner columns of the widest feed-forward; the hidden states' if there is none."""
        inner = [part.inner for part in self.block.parts if isinstance(part, FeedForward)]
        return max(inner, default=self.hidden_size)

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
        tables, biases and norms do not count. L D T is blocks · total size of heads · ``length``, or the window of a
        layer: causal attention counts as if every token attended to the whole sequence, and recomputation does not
        count (Chowdhery et al. 2022, PaLM, appendix B).

        Args:
            length: tokens of a sequence, or the mean over sequences.
            scored: share of the tokens for which logits are computed.
        """
        in_block = {layer.name: layer.num_weights for layer in self.block.layers}
        in_head = sum(layer.num_weights for layer in self.head if isinstance(layer, Linear) and layer.is_scored)
        in_head += math.prod(self.table.shape)
        absent = sum(in_block[name] for names in self.lacks[: self.num_layers] for name in names)
        weights = self.num_layers * sum(in_block.values()) - absent + scored * in_head
        weights += sum(layer.num_weights for layer in self.embedding if isinstance(layer, Linear))
        return 6.0 * weights + self.attention_flops(length)

    def attention_flops(self, length: float) -> float:
        """Return the part of ``flops_per_token`` between the projections of all attentions."""
        return 12.0 * sum(
            attention.num_heads * attention.head_size * min(length, attention.window(number) or length)
            for attention in self.block.attentions
            for number in range(self.num_layers)
        )

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

    def sees_share(self, name: str) -> bool:
        """Return whether tensor parallelism applies a parameter, of which all ranks have a copy, to a rank's heads.

        Its gradient is then summed over the tensor-parallel ranks.
        """
        layer = name.rpartition(".")[0].partition(".")[2].partition(".")[2]
        return any(layer == other.name for attention in self.block.attentions for other in attention.others)

    def divided(self) -> dict[str, int]:
        """Return the sizes that tensor parallelism divides, by the option of ``[model]`` that sets them."""
        sizes: dict[str, int] = {}
        for part in self.block.parts:
            if isinstance(part, Attention):
                sizes["num_heads"] = part.num_heads
                if part.num_kv_heads != part.num_heads:
                    sizes["num_kv_heads"] = part.num_kv_heads
            elif isinstance(part, FeedForward):
                sizes["feed_forward_size"] = part.inner
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


@lru_cache(maxsize=64)
def description_of(model: object) -> Description | None:
    """Return the description of the model of a ``[model]`` section; None for a custom family that gives none."""
    return model.description() if isinstance(model, Described) and callable(model.description) else None


def _count(layers: tuple[Layer, ...]) -> int:
    return sum(math.prod(parameter.shape) for layer in layers for parameter in layer.parameters())
