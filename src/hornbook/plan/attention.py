"""Memory of attention, in the four forms from which `hornbook.ops.attention` chooses.

::

    form       used for                                           keeps besides query, key and value
    native     hornbook's operator, Triton's kernel               the result, one number per token and head; of
                                                                  Triton's, with dropout, a bit per weight
    fused      PyTorch's, without dropout of the weights          the same
    blocked    a CPU in 16 bits or with dropout, few weights      the weights
    explicit   dropout elsewhere                                  the weights twice: in fp32, and dropped
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from hornbook.config.shapes import attention_blocks, is_blocked, words_of_keys
from hornbook.plan.layers import FP32, Layers

_KEPT = ("y", "sums", "weights", "softmax", "capped", "mask", "heads")
_KEY = 8
"""Bytes of a dropout key per token and head."""

Form = Literal["native", "fused", "blocked", "explicit"]


class Group(NamedTuple):
    """A group of sequences that attention processes as a batch."""

    num: int
    """Number of sequences."""
    length: int
    """Tokens per sequence, with padding."""


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Token counts of a micro-batch."""

    num: int
    """Number of tokens with padding."""
    groups: tuple[Group, ...]
    """Groups of sequences for attention."""
    num_scored: int
    """Number of tokens for which the head computes logits."""
    num_real: int
    """Number of tokens without padding."""
    is_gathered: bool = False
    """Whether attention copies tokens to groups and back, for sequences of different lengths."""
    is_masked: bool = False
    """Whether a decoder restricts attention to the token's document."""
    is_new: bool = False
    """Whether a micro-batch that adds to existing gradients may be the first of its shape, whose first layer is
    measured for a recomputation budget; sequences of different lengths have many shapes."""

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return sum(group.num for group in self.groups)

    @property
    def num_rows(self) -> int:
        """Number of rows of all groups, with padding."""
        return sum(group.num * group.length for group in self.groups)


@dataclass(frozen=True, kw_only=True)
class Attention:
    """The attention of a layer, between its two projections.

    Args:
        name: of the module.
        num_heads: of this rank.
        width: total size of these heads.
        is_causal: whether the attention is causal.
        dropout: of the attention weights.
        recomputes: whether the activations between the projections are recomputed in the backward pass.
        is_stacked: whether query, key and value are one tensor, the result of one projection.
        stacks: whether PyTorch's attention has its gradients stacked for that projection, which else takes all three.
        key_width: total size of this rank's heads of keys.
        window: how many tokens each one attends to, if limited; on both sides, unless causal.
        cap: soft limit of the scores, if any.
    """

    name: str
    num_heads: int
    width: int
    is_causal: bool
    dropout: float
    recomputes: bool = False
    is_stacked: bool = True
    stacks: bool = True
    key_width: int = 0
    window: int | None = None
    cap: float | None = None

    def is_native(self, layers: Layers, tokens: Tokens) -> bool:
        """Return whether hornbook's operator, or Triton's kernel, computes it from the result of the projection."""
        return layers.compute.is_native("attention") or (self.is_stacked and self._takes_spans(layers, tokens))

    def _takes_spans(self, layers: Layers, tokens: Tokens) -> bool:
        """Return whether Triton's kernel computes it, which needs no weights and masks."""
        size, is_limited = self.width // self.num_heads, self.cap is not None or self.window is not None
        is_chosen = not self.is_causal or is_limited or self.dropout > 0.0 or tokens.is_masked
        return layers.compute.has_triton and is_chosen and size <= (64 if layers.itemsize == FP32 else 256)

    def _num_words(self, tokens: Tokens) -> int:
        """Return the number of 32-bit words of a query and head in which Triton's kernel keeps what is dropped."""
        reach = max((group.length for group in tokens.groups), default=0)
        return words_of_keys(reach if self.window is None else min(reach, self.window))

    def form(self, layers: Layers, tokens: Tokens, group: Group) -> Form:
        """Return the form that computes a group."""
        compute, is_16_bit = layers.compute, layers.itemsize < FP32
        if self.is_native(layers, tokens):
            return "native"
        if self._takes_spans(layers, tokens):
            return "fused"
        fits = is_blocked(compute.device, group.num * self.num_heads, group.length, is_causal=self.is_causal)
        fits = fits and not self._num_masks(tokens, group)
        if self.is_causal:
            is_explicit = self.dropout > 0.0 or self.cap is not None
            return "explicit" if is_explicit else "blocked" if fits else "fused"
        if fits and (self.dropout or is_16_bit):
            return "blocked"
        return "explicit" if self.dropout else "fused"

    def _num_masks(self, tokens: Tokens, group: Group) -> int:
        """Return how many masks ``[T, T]`` restrict attention to documents or windows; 1 if sequences share it."""
        reach = group.length if self.window is None else self.window if self.is_causal else self.window // 2 + 1
        # a mask of an encoder's window excludes padding, too
        differ = tokens.is_masked or (tokens.is_gathered and not self.is_causal)
        return (group.num if differ else 1) * (tokens.is_masked or reach < group.length)

    def forward(self, layers: Layers, tokens: Tokens) -> None:
        """Compute ``name/y`` from ``name/qkv``, which is kept if the backward pass needs it."""
        before = {f"{self.name}/y", *layers.tape.names()}
        self._mix(layers, tokens)
        if self.recomputes:
            layers.tape.free(*(name for name in layers.tape.names() if name not in before))

    def _mix(self, layers: Layers, tokens: Tokens) -> None:
        tape, name, width = layers.tape, self.name, self.width
        forms = [self.form(layers, tokens, group) for group in tokens.groups]
        if self._takes_spans(layers, tokens) and self.dropout:
            layers.activation(f"{name}/dropped", self._num_words(tokens) * tokens.num * self.num_heads, FP32)
        if "native" in forms:
            layers.activation(f"{name}/y", tokens.num * width)
            layers.activation(f"{name}/sums", tokens.num * self.num_heads, FP32)
            return
        source = f"{name}/qkv"
        if tokens.is_gathered:
            layers.activation(f"{name}/gathered", tokens.num_rows * 3 * width)
            source = f"{name}/gathered"
        for number, (group, form) in enumerate(zip(tokens.groups, forms, strict=True)):
            rows = group.num * group.length
            if form == "fused":
                layers.activation(f"{name}/y {number}", rows * width)
                layers.activation(f"{name}/sums {number}", rows * self.num_heads, FP32)
                masks = 0 if self._takes_spans(layers, tokens) else self._num_masks(tokens, group)
                layers.activation(f"{name}/mask {number}", masks * group.length**2)
            else:
                copies = 3 if group.num > 1 or tokens.num_rows == 1 else 0
                if copies:
                    layers.activation(f"{name}/heads {number}", rows * copies * width)
                getattr(self, f"_{form}")(layers, tokens, group, number)
        self._merge(layers, tokens, forms)
        is_copied = all(group.num > 1 and form != "fused" for group, form in zip(tokens.groups, forms, strict=True))
        unused = {source, f"{name}/values"} if is_copied else set()  # views keep the whole tensor
        unused |= {f"{name}/qkv"} if tokens.is_gathered else set()
        tape.free(*(unused - ({f"{name}/qkv"} if self.recomputes else set())))

    def _merge(self, layers: Layers, tokens: Tokens, forms: Sequence[Form]) -> None:
        """Concatenate the heads, and copy the tokens back to their positions."""
        tape, name, width = layers.tape, self.name, self.width
        is_view = forms == ["fused"] and not tokens.is_gathered
        if is_view:
            return
        if tokens.is_gathered:
            for number, (group, form) in enumerate(zip(tokens.groups, forms, strict=True)):
                if form != "fused":
                    layers.activation(f"{name}/y {number}", group.num * group.length * width)
            layers.scratch(f"{name}/all", tokens.num_rows * width)
            layers.activation(f"{name}/y", tokens.num * width)
            tape.free(f"{name}/all")
        else:
            layers.activation(f"{name}/y", tokens.num * width)
        tape.free(*(f"{name}/y {number}" for number, form in enumerate(forms) if form != "fused"))

    def _blocked(self, layers: Layers, tokens: Tokens, group: Group, number: int) -> None:
        tape, name, item = layers.tape, self.name, layers.itemsize
        layers.activation(f"{name}/y {number}", group.num * group.length * self.width)
        sizes = self._blocks(group)
        largest, is_16_bit, before = max(sizes), item < FP32, len(sizes) > 1
        scores = (4 * FP32 if before else 2 * FP32) if not is_16_bit else 2 + FP32 + before * FP32
        layers.activation(f"{name}/weights {number}", sum(sizes))
        extra = max(0, scores + is_16_bit * FP32 - FP32 - item)
        if self.dropout:
            extra = max(extra, 2 * FP32 + FP32 + before * item)
        tape.use(largest * extra)

    def _explicit(self, layers: Layers, tokens: Tokens, group: Group, number: int) -> None:
        tape, name, item = layers.tape, self.name, layers.itemsize
        weights = group.num * self.num_heads * group.length**2
        layers.scratch(f"{name}/scores", weights, item)
        if item < FP32:
            layers.scratch(f"{name}/scores", weights, FP32)
        layers.scratch(f"{name}/scores", weights, FP32)
        layers.scratch(f"{name}/scores", weights, FP32)
        layers.activation(f"{name}/softmax {number}", weights, FP32)
        keys = group.num * group.length * self.num_heads * _KEY * (self.dropout > 0.0)
        masks = max(1, self._num_masks(tokens, group)) * group.length**2
        layers.activation(f"{name}/mask {number}", masks + keys, 1)
        if self.cap is not None:
            layers.activation(f"{name}/capped {number}", weights, FP32)
        tape.free(f"{name}/scores")
        if item < FP32:
            layers.scratch(f"{name}/scores", weights)
        tape.use(weights * 2 * FP32)
        tape.use(weights * (1 + 2 * item))
        if self.dropout or item < FP32:
            layers.activation(f"{name}/weights {number}", weights)
        layers.activation(f"{name}/y {number}", group.num * group.length * self.width)
        tape.free(f"{name}/scores")

    def _blocks(self, group: Group) -> list[int]:
        """Return the number of attention weights of each block."""
        heads = group.num * self.num_heads
        return [
            (head.stop - head.start) * (query.stop - query.start) * (key.stop - key.start)
            for head, query, key in attention_blocks(heads, group.length, is_causal=self.is_causal)
        ]

    def backward(self, layers: Layers, tokens: Tokens, gradient: str, result: str) -> None:
        """Compute the gradient ``result`` of query, key and value from ``gradient`` ``[tokens, width]``."""
        tape, name, width = layers.tape, self.name, self.width
        forms = [self.form(layers, tokens, group) for group in tokens.groups]
        if self.recomputes:
            self._mix(layers, tokens)
        if "native" in forms:
            layers.scratch(result, tokens.num * (width + 2 * self.key_width))
            tape.free(gradient, f"{name}/y", f"{name}/sums", f"{name}/qkv", f"{name}/dropped")
            return
        if tokens.is_gathered:
            layers.scratch(f"{name}/rows", tokens.num_rows * width)
            tape.free(gradient)
        for number, (group, form) in enumerate(zip(tokens.groups, forms, strict=True)):
            numbers = group.num * group.length * width
            if form == "fused":
                layers.scratch(f"{name}/dqkv", 3 * numbers)
            elif form == "blocked":
                self._blocked_backward(layers, group, numbers)
            else:
                self._explicit_backward(layers, group, numbers, number)
            tape.free(*(f"{name}/{what} {number}" for what in _KEPT))
            if form == "fused" and not self.stacks and not tokens.is_gathered:
                tape.rename(f"{name}/dqkv", result)
                continue
            layers.scratch(f"{name}/stacked", 3 * numbers)
            tape.free(f"{name}/dqkv")
            layers.scratch(f"{name}/part {number}" if tokens.is_gathered else result, 3 * numbers)
            tape.free(f"{name}/stacked")
        tape.free(gradient, f"{name}/rows", f"{name}/qkv", f"{name}/gathered", f"{name}/dropped")
        if tokens.is_gathered:
            layers.scratch(f"{name}/dqkv", tokens.num_rows * 3 * width)
            tape.free(*(f"{name}/part {number}" for number in range(len(forms))))
            layers.scratch(result, tokens.num * 3 * width)
            tape.free(f"{name}/dqkv")

    def _blocked_backward(self, layers: Layers, group: Group, numbers: int) -> None:
        tape, name, item, sizes = layers.tape, self.name, layers.itemsize, self._blocks(group)
        tape.use(numbers * item)  # the gradient with heads first
        layers.scratch(f"{name}/flat", numbers)
        layers.scratch(f"{name}/dq", numbers)
        layers.scratch(f"{name}/dkv", 2 * numbers, FP32)
        before, drops = len(sizes) > 1, self.dropout > 0.0
        extra = (2 + before) * FP32 if item == FP32 else (3 + before) * FP32 + before * item
        tape.use(max(sizes) * (extra + drops * 2 * item))
        layers.scratch(f"{name}/dqkv", 3 * numbers if item < FP32 else 0)
        tape.free(f"{name}/flat")
        if item == FP32:
            layers.scratch(f"{name}/dqkv", 3 * numbers)
        tape.free(f"{name}/dq", f"{name}/dkv")

    def _explicit_backward(self, layers: Layers, group: Group, numbers: int, number: int) -> None:
        tape, name, item = layers.tape, self.name, layers.itemsize
        weights = group.num * self.num_heads * group.length**2
        layers.scratch(f"{name}/dqkv", 3 * numbers)
        layers.scratch(f"{name}/dw", weights)
        tape.free(f"{name}/weights {number}")
        tape.use(weights * 2 * FP32)
        tape.use(weights * (1 + 2 * item))
        layers.scratch(f"{name}/dw", weights)
        if item < FP32:
            layers.scratch(f"{name}/dw", weights, FP32)
        layers.scratch(f"{name}/dw", weights, FP32)
        tape.free(f"{name}/softmax {number}")
        layers.scratch(f"{name}/dw", weights, FP32)
        tape.use(weights * FP32)
        tape.free(f"{name}/dw")
