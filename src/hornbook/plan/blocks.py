"""Memory of the blocks of each model: `hornbook.model.block` and `hornbook.model.group_block`.

::

    GPT         x -> norm -> qkv -> attention -> out -(+)-> norm -> up -> f -> down -(+)-> y
    kept, D     1    1       3      1                1      1       4     4                1     + weights of attention

Tensor-parallel ranks compute some of the heads and some of the inner columns; sizes are those of a rank. With sequence
parallelism, a rank holds a slice of the tokens between the split layers, see ``own_tokens``.
"""

from dataclasses import dataclass
from typing import Protocol

from hornbook.config.models import EncoderConfig, GroupBertConfig, TransformerConfig
from hornbook.plan.attention import Attention, Tokens
from hornbook.plan.layers import Layers


class Block(Protocol):
    """A layer of a model."""

    def forward(self, layers: Layers, x: str, y: str) -> None:
        """Compute the hidden states ``y`` from ``x``, which is kept."""

    def backward(self, layers: Layers, x: str) -> None:
        """Replace ``gradient`` of the result by that of ``x``, and free the block's activations, including ``x``."""


def block_of(
    model: TransformerConfig,
    index: int,
    tokens: Tokens,
    num_parts: int = 1,
    num_slices: int = 1,
    *,
    mixes_again: bool = False,
) -> Block:
    """Return a block of a model.

    Args:
        model: determines the sizes.
        index: of the block.
        tokens: of a micro-batch.
        num_parts: number of ranks over which it is split.
        num_slices: number of ranks over which its tokens are split between the split layers.
        mixes_again: whether attention is recomputed in the backward pass.
    """
    is_encoder = isinstance(model, EncoderConfig)
    kind = GroupBlock if isinstance(model, GroupBertConfig) else PostNorm if is_encoder else PreNorm
    return kind(model, f"blocks.{index}", tokens, num_parts, num_slices, mixes_again)


def own_tokens(tokens: Tokens, num_slices: int) -> int:
    """Return how many tokens a rank holds outside of the layers that are cut."""
    return -(-tokens.num // num_slices)


def add_residual(layers: Layers, size: float) -> None:
    """Add the gradient ``branch`` to ``gradient``, both with ``size`` elements."""
    if not layers.compute.is_native("layer_norm"):
        layers.scratch("sum", size)
        layers.tape.free("gradient", "branch")
        layers.tape.free("sum")
    layers.tape.free("branch")
    layers.scratch("gradient", size)


@dataclass(frozen=True)
class _Block:
    model: TransformerConfig
    name: str
    tokens: Tokens
    num_parts: int
    num_slices: int
    mixes_again: bool

    @property
    def size(self) -> int:
        """D."""
        return self.model.hidden_size

    @property
    def own(self) -> int:
        """Number of the rank's tokens between the split layers."""
        return own_tokens(self.tokens, self.num_slices)

    def gather(self, layers: Layers, result: str) -> None:
        """Compute ``result``, the tokens of all ranks, concatenated."""
        for name in ("slices", result):
            layers.scratch(name, self.tokens.num * self.size)
        layers.tape.free("slices")

    def scatter(self, layers: Layers, result: str) -> None:
        """Compute the rank's slice of the sum of ``result`` over the ranks, which send copies of its slices."""
        layers.scratch("slices", self.tokens.num * self.size)
        layers.scratch(result, self.own * self.size)
        layers.tape.free("slices")

    def enter(self, layers: Layers, name: str, num_out: int, result: str) -> None:
        """Compute ``result``, for all tokens, by a linear layer that is split by outputs."""
        if self.num_slices > 1:
            self.gather(layers, "all tokens")
        layers.linear(name, self.tokens.num, self.size, num_out, result)
        layers.tape.free("all tokens")

    def enter_backward(
        self, layers: Layers, name: str, num_out: int, gradient: str, result: str, *frees: str, bias: bool = True
    ) -> None:
        """Compute the gradient ``result`` of the input; with slices, the input is gathered once more."""
        whole = result
        if self.num_slices > 1:
            whole, numbers = "all tokens", self.tokens.num * self.size
            layers.scratch(result, numbers)
            self.scatter(layers, result)
            layers.tape.use(numbers * layers.itemsize)
        layers.linear_backward(name, self.tokens.num, self.size, num_out, gradient, whole, *frees, bias=bias)
        layers.tape.free("all tokens")

    def leave(self, layers: Layers, name: str, num_in: int, result: str) -> None:
        """Compute ``result`` by a linear layer that is split by inputs."""
        layers.linear(name, self.tokens.num, num_in, self.size, result)
        if self.num_slices > 1:
            self.scatter(layers, result)

    def leave_backward(
        self, layers: Layers, name: str, num_in: int, gradient: str, result: str, *frees: str, bias: bool = True
    ) -> None:
        """Compute the gradient ``result`` of the input, and free ``gradient`` unless it is that of the residual."""
        whole = gradient
        if self.num_slices > 1:
            self.gather(layers, whole := "all gradients")
        layers.linear_backward(name, self.tokens.num, num_in, self.size, whole, result, *frees, bias=bias)
        layers.tape.free("all gradients", *[gradient] * (gradient != "gradient"))

    @property
    def attention(self) -> Attention:
        """The attention between the projections."""
        heads = self.model.num_heads // self.num_parts
        return Attention(
            name=f"{self.name}.attention",
            num_heads=heads,
            width=heads * self.model.effective_head_size,
            is_causal=not isinstance(self.model, EncoderConfig),
            dropout=self.model.attention_dropout,
            recomputes=self.mixes_again,
        )

    def attend(self, layers: Layers, result: str) -> None:
        """Compute ``result`` by attention with both projections."""
        attention = self.attention
        name, width = attention.name, attention.width
        self.enter(layers, f"{name}.qkv", 3 * width, f"{name}/qkv")
        attention.forward(layers, self.tokens)
        self.leave(layers, f"{name}.out", width, result)

    def attend_backward(self, layers: Layers, gradient: str, result: str, *frees: str) -> None:
        """Compute the gradient ``result`` of the input from ``gradient``."""
        attention = self.attention
        name, width = attention.name, attention.width
        bias = getattr(self.model, "projection_bias", True)
        merged = [f"{name}/y"] if layers.tape.holds(f"{name}/y") and not layers.compute.is_native("attention") else []
        self.leave_backward(layers, f"{name}.out", width, gradient, "dy", *merged, bias=bias)
        attention.backward(layers, self.tokens, "dy", "dqkv")
        bias = getattr(self.model, "qkv_bias", True)
        self.enter_backward(layers, f"{name}.qkv", 3 * width, "dqkv", result, *frees, bias=bias)
        layers.tape.free("dqkv")

    def feed(self, layers: Layers, result: str) -> None:
        """Compute ``result`` by the feed-forward."""
        name, inner, num = f"{self.name}.feed_forward", self._inner, self.tokens.num
        self.enter(layers, f"{name}.up", inner, f"{name}/up")
        layers.activation(f"{name}/hidden", num * inner)
        self.leave(layers, f"{name}.down", inner, result)

    def feed_backward(self, layers: Layers, gradient: str, result: str, *frees: str) -> None:
        """Compute the gradient ``result`` of the input from ``gradient``."""
        name, inner, num = f"{self.name}.feed_forward", self._inner, self.tokens.num
        self.leave_backward(layers, f"{name}.down", inner, gradient, "dhidden", f"{name}/hidden")
        layers.scratch("dup", num * inner)
        layers.tape.free("dhidden", f"{name}/up")
        self.enter_backward(layers, f"{name}.up", inner, "dup", result, *frees)
        layers.tape.free("dup")

    def drop(self, layers: Layers, name: str) -> None:
        """Drop elements before a residual addition."""
        layers.dropout(self.own, self.size, name, probability=self.model.residual_dropout)

    def drop_backward(self, layers: Layers) -> str:
        """Return the name of the gradient before the dropout."""
        if self.model.residual_dropout == 0.0:
            return "gradient"
        layers.dropout(self.own, self.size, "dropped gradient", probability=self.model.residual_dropout)
        return "dropped gradient"

    @property
    def _inner(self) -> int:
        return self.model.effective_feed_forward_size // self.num_parts


class PreNorm(_Block):
    """GPT's block: ``x + attention(norm(x))``, then ``x + feed_forward(norm(x))``."""

    def forward(self, layers: Layers, x: str, y: str) -> None:
        """See ``Block``."""
        name, num, size = self.name, self.own, self.size
        for part, work, result in (
            ("attention_norm", self.attend, f"{name}/middle"),
            ("feed_forward_norm", self.feed, y),
        ):
            layers.norm(f"{name}.{part}", num, size, f"{name}.{part}/y")
            work(layers, "change")
            self.drop(layers, "change")
            layers.activation(result, num * size)
            layers.tape.free("change")

    def backward(self, layers: Layers, x: str) -> None:
        """See ``Block``."""
        name, num, size = self.name, self.own, self.size
        for part, work, source in (
            ("feed_forward_norm", self.feed_backward, f"{name}/middle"),
            ("attention_norm", self.attend_backward, x),
        ):
            work(layers, self.drop_backward(layers), "dnormed", f"{name}.{part}/y")
            layers.norm_backward(f"{name}.{part}", num, size, "dnormed", "branch", source)
            layers.tape.free("dnormed")
            add_residual(layers, num * size)


class PostNorm(_Block):
    """BERT's block: ``norm(x + attention(x))``, then ``norm(x + feed_forward(x))``."""

    def forward(self, layers: Layers, x: str, y: str) -> None:
        """See ``Block``."""
        name, num, size = self.name, self.own, self.size
        for part, work, result in (
            ("attention_norm", self.attend, f"{name}/middle"),
            ("feed_forward_norm", self.feed, y),
        ):
            work(layers, "change")
            self.drop(layers, "change")
            layers.activation(f"{name}.{part}/x", num * size)
            layers.tape.free("change")
            layers.norm(f"{name}.{part}", num, size, result)

    def backward(self, layers: Layers, x: str) -> None:
        """See ``Block``."""
        name, num, size = self.name, self.own, self.size
        for part, work, source in (
            ("feed_forward_norm", self.feed_backward, f"{name}/middle"),
            ("attention_norm", self.attend_backward, x),
        ):
            layers.norm_backward(f"{name}.{part}", num, size, "gradient", "dsum", f"{name}.{part}/x")
            layers.tape.free("gradient")
            layers.scratch("gradient", num * size)
            layers.tape.free("dsum")
            work(layers, self.drop_backward(layers), "branch", source)
            add_residual(layers, num * size)


class GroupBlock(_Block):
    """GroupBERT's block of four pre-norm modules: convolution, feed-forward, attention, feed-forward."""

    @property
    def _group(self) -> GroupBertConfig:
        assert isinstance(self.model, GroupBertConfig), "no other model has this block"
        return self.model

    @property
    def _rows(self) -> int:
        """Number of rows of the column of all sequences, with gaps."""
        gap = self._group.convolution_kernel // 2
        return self.tokens.num_real + gap * (self.tokens.num_sequences + 1)

    def forward(self, layers: Layers, x: str, y: str) -> None:
        """See ``Block``."""
        name, num, size = self.name, self.own, self.size
        for number, work in enumerate((self.convolve, self._first, self.attend, self._second)):
            layers.norm(f"{name}.norms.{number}", num, size, f"{name}.norms.{number}/y")
            work(layers, "change")
            self.drop(layers, "change")
            layers.activation(y if number == 3 else f"{name}/x {number}", num * size)
            layers.tape.free("change")

    def backward(self, layers: Layers, x: str) -> None:
        """See ``Block``."""
        name, num, size = self.name, self.own, self.size
        works = (self.convolve_backward, self._first_backward, self.attend_backward, self._second_backward)
        for number in range(3, -1, -1):
            norm = f"{name}.norms.{number}"
            works[number](layers, self.drop_backward(layers), "dnormed", f"{norm}/y")
            source = f"{name}/x {number - 1}" if number else x
            layers.norm_backward(norm, num, size, "dnormed", "branch", source)
            add_residual(layers, num * size)

    def _first(self, layers: Layers, result: str) -> None:
        self.feed_in_groups(layers, "first_feed_forward", result)

    def _second(self, layers: Layers, result: str) -> None:
        self.feed_in_groups(layers, "second_feed_forward", result)

    def _first_backward(self, layers: Layers, gradient: str, result: str, *frees: str) -> None:
        self.feed_in_groups_backward(layers, "first_feed_forward", gradient, result, *frees)

    def _second_backward(self, layers: Layers, gradient: str, result: str, *frees: str) -> None:
        self.feed_in_groups_backward(layers, "second_feed_forward", gradient, result, *frees)

    def feed_in_groups(self, layers: Layers, part: str, result: str) -> None:
        """Compute ``result`` by a feed-forward whose second layer is grouped."""
        name, inner, num = f"{self.name}.{part}", self._inner, self.tokens.num
        self.enter(layers, f"{name}.up", inner, f"{name}/up")
        layers.activation(f"{name}/hidden", num * inner)
        if layers.compute.weights != layers.compute.dtype:
            layers.activation(f"{name}.grouped/cast", inner * self.size // self._group.feed_forward_groups)
        for what in ("parts", "joined"):
            layers.scratch(what, num * self._middle)
        layers.activation(f"{name}/middle", num * self._middle)
        layers.tape.free("joined", "parts")
        self.leave(layers, f"{name}.down", self._middle, result)

    def feed_in_groups_backward(self, layers: Layers, part: str, gradient: str, result: str, *frees: str) -> None:
        """Compute the gradient ``result`` of the input from ``gradient``."""
        name, inner, num, tape = f"{self.name}.{part}", self._inner, self.tokens.num, layers.tape
        weights = inner * self.size // self._group.feed_forward_groups
        self.leave_backward(layers, f"{name}.down", self._middle, gradient, "dmiddle", f"{name}/middle")
        layers.scratch("dparts", num * inner)
        used = f"{name}/hidden", f"{name}.grouped/cast"
        is_later = layers.postpones(f"{name}.grouped", weights + self.size, layers.itemsize, "dmiddle", *used)
        if not is_later:
            layers.scratch(f"{name}.grouped/new", weights + self.size)
        tape.free(*used, "dmiddle")
        layers.scratch("dhidden", num * inner)
        tape.free("dparts")
        if not is_later:
            layers.arrived(f"{name}.grouped", weights + self.size)
        layers.scratch("dup", num * inner)
        tape.free("dhidden", f"{name}/up")
        self.enter_backward(layers, f"{name}.up", inner, "dup", result, *frees)
        tape.free("dup")

    @property
    def _middle(self) -> int:
        return self.size // self.num_parts

    def convolve(self, layers: Layers, result: str) -> None:
        """Compute ``result`` by the gated convolution."""
        name, num, size, tape, rows = f"{self.name}.convolution", self.tokens.num, self.size, layers.tape, self._rows
        if self.num_slices > 1:  # a convolution needs neighbors, so all tokens are gathered
            layers.tape.rename(f"{self.name}.norms.0/y", "slice")
            self.gather(layers, f"{self.name}.norms.0/y")
            layers.tape.free("slice")
        layers.linear(f"{name}.up", num, size, 2 * size, f"{name}/up")
        layers.activation(f"{name}/gate", num * size)
        layers.scratch("gated", num * size)
        layers.activation(f"{name}/column", rows * size)
        if layers.compute.weights != layers.compute.dtype:
            layers.activation(f"{name}/cast", self._num_filters)
        for what in ("copy", "mixed", "order"):
            layers.scratch(what, rows * size)
        tape.free("copy", "order", "gated")
        layers.activation(f"{name}/mixed", num * size)
        tape.free("mixed")
        layers.norm(f"{name}.norm", num, size, f"{name}/normed")
        layers.activation(f"{name}/silu", num * size)
        layers.linear(f"{name}.down", num, size, size, result)

    def convolve_backward(self, layers: Layers, gradient: str, result: str, *frees: str) -> None:
        """Compute the gradient ``result`` of the input from ``gradient``."""
        name, num, size, tape, rows = f"{self.name}.convolution", self.tokens.num, self.size, layers.tape, self._rows
        layers.scratch("all gradients", num * size * (self.num_slices > 1))
        layers.linear_backward(f"{name}.down", num, size, size, gradient, "dsilu", f"{name}/silu")
        tape.free("all gradients", *[gradient] * (gradient != "gradient"))
        layers.scratch("dnorm", num * size)
        tape.free("dsilu", f"{name}/normed")
        layers.norm_backward(f"{name}.norm", num, size, "dnorm", "dmixed", f"{name}/mixed")
        layers.scratch("drows", rows * size)
        tape.free("dmixed")
        for what in ("copy", "order", "dcolumn"):
            layers.scratch(what, rows * size)
        used = f"{name}/column", f"{name}/cast"
        if layers.postpones(name, self._num_filters, layers.itemsize, "drows", *used):
            tape.free("copy", "order")
        else:
            layers.scratch(f"{name}/new", self._num_filters)
            tape.free("copy", "order", "drows", *used)
            layers.arrived(name, self._num_filters)
        layers.scratch("dgated", num * size)
        tape.free("dcolumn")
        layers.scratch("dgate", 2 * num * size)
        tape.free("dgated", f"{name}/gate")
        layers.scratch("dup", 2 * num * size)
        tape.free("dgate", f"{name}/up")
        layers.linear_backward(f"{name}.up", num, size, 2 * size, "dup", result, *frees)
        tape.free("dup")
        if self.num_slices > 1:
            self.scatter(layers, result)

    @property
    def _num_filters(self) -> int:
        return self.size * self._group.convolution_group_size * self._group.convolution_kernel + self.size
