"""Memory of the blocks of described models: `hornbook.model.block` and `hornbook.model.group_block`.

::

    GPT         x -> norm -> qkv -> attention -> out -(+)-> norm -> up -> f -> down -(+)-> y
    kept, D     1    1       3      1                1      1       4     4                1     + weights of attention

Tensor-parallel ranks compute some of the heads and some of the inner columns; sizes are those of a rank. With sequence
parallelism, a rank holds a slice of the tokens between the split layers, see ``own_tokens``.
"""

from collections.abc import Sequence
from typing import Protocol

from hornbook.config.description import Block as BlockDescription
from hornbook.config.parts import Attention as AttentionPart
from hornbook.config.parts import Convolution, FeedForward, Linear, Norm, Other
from hornbook.plan import other_parts
from hornbook.plan.attention import Attention, Tokens
from hornbook.plan.block_layers import BlockLayers, add_residual
from hornbook.plan.layers import FP32, Layers


class Block(Protocol):
    """A layer of a model."""

    def forward(self, layers: Layers, x: str, y: str) -> None:
        """Compute the hidden states ``y`` from ``x``, which is kept."""

    def backward(self, layers: Layers, x: str) -> None:
        """Replace ``gradient`` of the result by that of ``x``, and free the block's activations, including ``x``."""


def block_of(
    description: BlockDescription,
    index: int,
    tokens: Tokens,
    num_parts: int = 1,
    num_slices: int = 1,
    *,
    mixes_again: bool = False,
) -> Block:
    """Return a block of a model.

    Args:
        description: of the blocks.
        index: of the block.
        tokens: of a micro-batch.
        num_parts: number of ranks over which it is split.
        num_slices: number of ranks over which its tokens are split between the split layers.
        mixes_again: whether attention is recomputed in the backward pass.
    """
    kind = PreNorm if description.norm_first else PostNorm
    return kind(description, index, tokens, num_parts, num_slices, mixes_again)


class _Block(BlockLayers):
    def compute(self, layers: Layers, number: int, result: str) -> None:
        """Compute ``result`` by the block's part of this number."""
        part = self.block.parts[number]
        if isinstance(part, AttentionPart):
            self.attend(layers, part, result)
        elif isinstance(part, FeedForward):
            self.feed(layers, part, result)
        elif isinstance(part, Other):
            other_parts.compute(layers, self.name, part, self.tokens.num, self.size, result)
        else:
            self.convolve(layers, part, number, result)

    def compute_backward(self, layers: Layers, number: int, gradient: str, result: str, *frees: str) -> None:
        """Compute the gradient ``result`` of a part's input from ``gradient``."""
        part = self.block.parts[number]
        if isinstance(part, AttentionPart):
            self.attend_backward(layers, part, gradient, result, *frees)
        elif isinstance(part, FeedForward):
            self.feed_backward(layers, part, gradient, result, *frees)
        elif isinstance(part, Other):
            sizes = (self.tokens.num, self.size)
            other_parts.compute_backward(layers, self.name, part, *sizes, gradient, result, *frees)
        else:
            self.convolve_backward(layers, part, gradient, result, *frees)

    def _attention(self, layers: Layers, part: AttentionPart) -> Attention:
        """Return the attention between the projections."""
        heads = part.num_heads // self.num_parts
        is_native = layers.compute.is_native("attention") and not self.tokens.is_masked
        return Attention(
            name=f"{self.name}.{part.name}",
            num_heads=heads,
            width=heads * part.head_size,
            is_causal=part.is_causal,
            dropout=part.dropout,
            recomputes=self.mixes_again,
            is_stacked=part.is_plain or (is_native and len(part.inputs) == 1 and not self._norms_all_heads(part)),
            stacks=not (part.is_plain and layers.is_mixed(f"{self.name}.{part.inputs[0].name}")),
            key_width=part.num_kv_heads // self.num_parts * part.head_size,
            window=part.window(self.index),
            cap=part.cap,
        )

    def attend(self, layers: Layers, part: AttentionPart, result: str) -> None:
        """Compute ``result`` by attention with its projections."""
        attention = self._attention(layers, part)
        if attention.is_stacked:
            self.enter(layers, part.inputs[0], f"{attention.name}/qkv")
        else:
            for linear in part.inputs:
                self.enter(layers, linear, f"{self.name}.{linear.name}/result")
            self._turn(layers, part, attention)
        if part.shifts_keys:
            other_parts.keys(layers, self.name, self.tokens.num, attention.key_width)
        other_parts.values(layers, self.name, part.others, self.tokens.num, attention.key_width)
        attention.forward(layers, self.tokens)
        self.leave(layers, part.out, result)

    def _turn(self, layers: Layers, part: AttentionPart, attention: Attention) -> None:
        """Compute queries, keys and values with their norms and rotations, a key and value for each head.

        Native attention takes them as they are, but for norms over all heads.
        """
        num, is_grouped = self.tokens.num, part.num_kv_heads != part.num_heads
        is_native = attention.is_native(layers, self.tokens)
        if is_native and not self._norms_all_heads(part):
            return
        projected = [f"{self.name}.{linear.name}/result" for linear in part.inputs]
        for norm in (layer for layer in part.others if isinstance(layer, Norm)):
            layers.activation(f"{self.name}.{norm.name}/statistics", num * self._rows_of(part, norm), FP32)
        if is_native:
            layers.activation(f"{attention.name}/qkv", num * (attention.width + attention.key_width))
            return
        is_view = len(part.inputs) == 1 and not is_grouped and part.is_causal  # values are not copied
        layers.activation(f"{attention.name}/qkv", num * (2 if is_view else 3) * attention.width)
        if is_view and not part.others:
            layers.tape.rename(projected[0], f"{attention.name}/values")
        elif not part.others:
            layers.tape.free(*projected)

    def _norms_all_heads(self, part: AttentionPart) -> bool:
        """Return whether a norm of queries spans all heads."""
        return any(isinstance(layer, Norm) and layer.size > part.head_size for layer in part.others)

    def _rows_of(self, part: AttentionPart, norm: Norm) -> int:
        """Return how many rows of a token a norm of queries or keys normalizes."""
        num_heads = part.num_kv_heads if norm is part.others[-1] else part.num_heads
        return num_heads // self.num_parts * part.head_size // norm.size

    def _turn_backward(self, layers: Layers, part: AttentionPart, *, is_native: bool) -> None:
        """Compute the gradients of the norms of queries and keys; native attention needs no memory for it."""
        for norm in (layer for layer in part.others if isinstance(layer, Norm)):
            name, numbers = f"{self.name}.{norm.name}", self.tokens.num * self._rows_of(part, norm) * norm.size
            if not layers.compute.has_triton and (not is_native or self._norms_all_heads(part)):
                layers.tape.use(4 * FP32 * numbers)
            if norm.gain:
                layers.add_gradient(name, norm.size, FP32)
            layers.tape.free(f"{name}/statistics")

    def attend_backward(self, layers: Layers, part: AttentionPart, gradient: str, result: str, *frees: str) -> None:
        """Compute the gradient ``result`` of the input from ``gradient``."""
        attention = self._attention(layers, part)
        name, is_native = attention.name, attention.is_native(layers, self.tokens)
        merged = [f"{name}/y"] if layers.tape.holds(f"{name}/y") and not is_native else []
        self.leave_backward(layers, part.out, gradient, "dy", *merged)
        attention.backward(layers, self.tokens, "dy", "dqkv")
        if part.shifts_keys:
            other_parts.keys_backward(layers, self.name, self.tokens.num, attention.key_width)
        other_parts.values_backward(layers, self.name, part.others, self.tokens.num, attention.key_width)
        self._turn_backward(layers, part, is_native=is_native)
        if attention.is_stacked:
            self.enter_backward(layers, part.inputs[0], "dqkv", result, *frees)
        else:
            projected = [f"{self.name}.{linear.name}/result" for linear in part.inputs]
            sources = ["dqkv", f"{name}/values", *projected]
            self._separate_backward(layers, part.inputs, sources, result, *frees)
        layers.tape.free("dqkv")

    def _separate_backward(
        self, layers: Layers, linears: Sequence[Linear], sources: Sequence[str], result: str, *frees: str
    ) -> None:
        """Compute the gradient ``result`` of several layers' common input, and free the gradients ``sources``."""
        names = [f"{self.name}.{linear.name}/dresult" for linear in linears]
        for linear, name in zip(linears, names, strict=True):
            layers.scratch(name, self.tokens.num * linear.num_out // self.num_parts)
        layers.tape.free(*sources)
        for number, (linear, name) in enumerate(zip(linears, names, strict=True)):
            is_last = number == len(linears) - 1
            part = result if number == 0 else f"{result} {number}"
            self.enter_backward(layers, linear, name, part, *frees if is_last else ())
            layers.tape.free(name, *[part] * (number > 0))

    def feed(self, layers: Layers, part: FeedForward, result: str) -> None:
        """Compute ``result`` by the feed-forward."""
        name, num = f"{self.name}.{part.name}", self.tokens.num
        inner = part.inner // self.num_parts
        for number, linear in enumerate(part.inputs):
            self.enter(layers, linear, f"{name}/up {number}")
        if len(part.inputs) > 1:
            layers.activation(f"{name}/gate", num * inner)
        layers.activation(f"{name}/hidden", num * inner)
        if part.middle is not None:
            self._group(layers, name, part.middle)
        self.leave(layers, part.out, result)

    def feed_backward(self, layers: Layers, part: FeedForward, gradient: str, result: str, *frees: str) -> None:
        """Compute the gradient ``result`` of the input from ``gradient``."""
        name, num = f"{self.name}.{part.name}", self.tokens.num
        inner = part.inner // self.num_parts
        ups = [f"{name}/up {number}" for number in range(len(part.inputs))]
        linears = [f"{self.name}.{linear.name}" for linear in (part.inputs[0], part.out)]
        applies = all(map(layers.is_native, linears)) or (
            all(map(layers.is_mixed, linears)) and part.inputs[0].num_parts == 1
        )
        if len(part.inputs) == 1 and part.middle is None and applies:  # products apply the activation's derivative
            layers.scratch("dup", (part.inputs[0].num_parts - 1) * num * inner)
            self.leave_backward(layers, part.out, gradient, "dhidden", f"{name}/hidden")
            layers.tape.free(*ups)
            self.enter_backward(layers, part.inputs[0], "dup", result, *frees)
            layers.tape.free("dup", "dhidden")
            return
        if part.middle is None:
            self.leave_backward(layers, part.out, gradient, "dhidden", f"{name}/hidden")
        else:
            self.leave_backward(layers, part.out, gradient, "dmiddle", f"{name}/middle")
            self._group_backward(layers, name, part.middle)
        if len(part.inputs) > 1:
            layers.scratch("dgate", num * inner)
        if part.inputs[0].num_parts > 1:
            layers.tape.use(5 * num * inner * layers.itemsize)  # the activation again, both gradients, and their copy
        layers.scratch("dup", part.inputs[0].num_parts * num * inner)
        layers.tape.free("dhidden", f"{name}/gate", *ups)
        if len(part.inputs) == 1:
            self.enter_backward(layers, part.inputs[0], "dup", result, *frees)
        else:
            self._separate_backward(layers, part.inputs, ["dup", "dgate"], result, *frees)
        layers.tape.free("dup")

    def _group(self, layers: Layers, name: str, middle: Linear) -> None:
        """Compute a grouped layer of the feed-forward."""
        num_out = middle.num_out // self.num_parts
        if layers.compute.weights != layers.compute.dtype:
            layers.activation(f"{self.name}.{middle.name}/cast", middle.num_weights // self.num_parts)
        for what in ("parts", "joined"):
            layers.scratch(what, self.tokens.num * num_out)
        layers.activation(f"{name}/middle", self.tokens.num * num_out)
        layers.tape.free("joined", "parts")

    def _group_backward(self, layers: Layers, name: str, middle: Linear) -> None:
        inner, numbers, tape = middle.num_in // self.num_parts, middle.num_weights // self.num_parts, layers.tape
        layer = f"{self.name}.{middle.name}"
        layers.scratch("dparts", self.tokens.num * inner)
        used = f"{name}/hidden", f"{layer}/cast"
        is_later = layers.postpones(layer, numbers + self.size, layers.itemsize, "dmiddle", *used)
        if not is_later:
            layers.scratch(f"{layer}/new", numbers + self.size)
        tape.free(*used, "dmiddle")
        layers.scratch("dhidden", self.tokens.num * inner)
        tape.free("dparts")
        if not is_later:
            layers.arrived(layer, numbers + self.size)

    def convolve(self, layers: Layers, part: Convolution, number: int, result: str) -> None:
        """Compute ``result`` by the gated convolution."""
        name, num, size, tape = f"{self.name}.{part.name}", self.tokens.num, self.size, layers.tape
        rows, filters = self._rows(part), self._num_filters(part)
        if self.num_slices > 1:  # a convolution needs neighbors, so all tokens are gathered
            normed = f"{self.name}.{self.block.norms[number].name}/y"
            layers.tape.rename(normed, "slice")
            self.gather(layers, normed)
            layers.tape.free("slice")
        layers.linear(f"{name}.up", num, size, 2 * size, f"{name}/up")
        layers.activation(f"{name}/gate", num * size)
        layers.scratch("gated", num * size)
        layers.activation(f"{name}/column", rows * size)
        if layers.compute.weights != layers.compute.dtype:
            layers.activation(f"{name}/cast", filters)
        for what in ("copy", "mixed", "order"):
            layers.scratch(what, rows * size)
        tape.free("copy", "order", "gated")
        layers.activation(f"{name}/mixed", num * size)
        tape.free("mixed")
        layers.norm(f"{name}.norm", num, size, f"{name}/normed")
        layers.activation(f"{name}/silu", num * size)
        layers.linear(f"{name}.down", num, size, size, result)

    def convolve_backward(self, layers: Layers, part: Convolution, gradient: str, result: str, *frees: str) -> None:
        """Compute the gradient ``result`` of the input from ``gradient``."""
        name, num, size, tape = f"{self.name}.{part.name}", self.tokens.num, self.size, layers.tape
        rows, filters = self._rows(part), self._num_filters(part)
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
        if layers.postpones(name, filters, layers.itemsize, "drows", *used):
            tape.free("copy", "order")
        else:
            layers.scratch(f"{name}/new", filters)
            tape.free("copy", "order", "drows", *used)
            layers.arrived(name, filters)
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

    @staticmethod
    def _num_filters(part: Convolution) -> int:
        return part.filters.num_weights + part.norm.size

    def _rows(self, part: Convolution) -> int:
        """Return the number of rows of the column of all sequences, with gaps."""
        return self.tokens.num_real + part.kernel // 2 * (self.tokens.num_sequences + 1)


class PreNorm(_Block):
    """``x + output_norm(part(norm(x)))`` for each part, with one of the norms or both."""

    def forward(self, layers: Layers, x: str, y: str) -> None:
        name, num, size, block = self.name, self.own, self.size, self.block
        other_parts.enter(layers, name, block.others, num * size)
        for number in range(len(block.parts)):
            for norm in block.norms[number : number + 1]:
                layers.norm(f"{name}.{norm.name}", num, size, f"{name}.{norm.name}/y", kind=norm.kind)
            self.compute(layers, number, "change")
            for norm in block.output_norms[number : number + 1]:
                layers.tape.rename("change", f"{name}.{norm.name}/x")
                layers.norm(f"{name}.{norm.name}", num, size, "change", kind=norm.kind)
            self.drop(layers, "change")
            layers.activation(y if number == len(block.parts) - 1 else f"{name}/x {number}", num * size)
            layers.tape.free("change")

    def backward(self, layers: Layers, x: str) -> None:
        name, num, size, block = self.name, self.own, self.size, self.block
        entered = other_parts.entered(name, block.others, x)
        for number in reversed(range(len(block.parts))):
            source, gradient = f"{name}/x {number - 1}" if number else entered, self.drop_backward(layers)
            for norm in block.output_norms[number : number + 1]:
                layer, before = f"{name}.{norm.name}", gradient
                layers.norm_backward(
                    layer, num, size, gradient, "dchange", f"{layer}/x", kind=norm.kind, gain=norm.gain
                )
                gradient = "dchange"
                layers.tape.free(*[before] * (before != "gradient"))
            if not block.norms:
                self.compute_backward(layers, number, gradient, "branch", source)
            for norm in block.norms[number : number + 1]:
                layer = f"{name}.{norm.name}"
                self.compute_backward(layers, number, gradient, "dnormed", f"{layer}/y")
                layers.norm_backward(layer, num, size, "dnormed", "branch", source, kind=norm.kind, gain=norm.gain)
                layers.tape.free("dnormed")
            add_residual(layers, num * size, block.norms[number].kind if block.norms else None)
        other_parts.enter_backward(layers, name, block.others, num * size, x)


class PostNorm(_Block):
    """``norm(x + part(x))`` for each part."""

    def forward(self, layers: Layers, x: str, y: str) -> None:
        name, num, size = self.name, self.own, self.size
        last = len(self.block.parts) - 1
        for number, norm in enumerate(self.block.norms):
            self.compute(layers, number, "change")
            self.drop(layers, "change")
            layers.activation(f"{name}.{norm.name}/x", num * size)
            layers.tape.free("change")
            result = y if number == last else f"{name}/x {number}"
            layers.norm(f"{name}.{norm.name}", num, size, result, kind=norm.kind)

    def backward(self, layers: Layers, x: str) -> None:
        name, num, size = self.name, self.own, self.size
        for number, norm in reversed([*enumerate(self.block.norms)]):
            layer, source = f"{name}.{norm.name}", f"{name}/x {number - 1}" if number else x
            layers.norm_backward(layer, num, size, "gradient", "dsum", f"{layer}/x", kind=norm.kind)
            layers.tape.free("gradient")
            layers.scratch("gradient", num * size)
            layers.tape.free("dsum")
            self.compute_backward(layers, number, self.drop_backward(layers), "branch", source)
            add_residual(layers, num * size)
