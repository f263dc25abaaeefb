"""A decoder with options for what differs between Llama, Qwen 3, OLMo 2, Gemma 3 and others: ``family = "decoder"``.

The defaults are those of Llama (Touvron et al. 2023): RMS norms, rotary positions, gated feed-forwards, no biases.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from hornbook.config.description import Block, Description
from hornbook.config.models import Activation, TransformerConfig
from hornbook.config.options import Problem, choice_of, option
from hornbook.config.parts import Attention, FeedForward, Layer, Linear, Norm, Table

_VALUES = ("attention.value_embedding.table", "attention.value_embedding.gate")
_SMEAR = ("smear.gate", "smear.scale")

_NUMBERS_OF_SCALING = {
    "none": (),
    "linear": ("rope_factor",),
    "llama3": ("rope_factor", "rope_original_positions", "rope_low_factor", "rope_high_factor"),
    "yarn": ("rope_factor", "rope_original_positions"),
}
"""The numbers without defaults that each scaling of rotary positions needs."""


@choice_of("model")
@dataclass(frozen=True, kw_only=True)
class DecoderConfig(TransformerConfig):
    """A decoder-only transformer with options for norms, positions, attention and feed-forward."""

    family: str = "decoder"
    feed_forward_size: int | None = option(
        None,
        help="inner width of the feed-forward; none: 4 * hidden_size, or 8/3 of it if gated, a multiple of 64",
        minimum=1,
    )
    max_positions: int = option(1024, help="longest possible sequence", minimum=1)
    norm: Literal["rms", "layer"] = option("rms", help="norm: RMS norm, or layer norm with gain and bias")
    norm_gain: bool = option(True, help="multiply the results of RMS norms by gains")
    norm_epsilon: float = option(1e-5, help="added to the mean square or the variance in norms", above=0)
    norm_placement: Literal["before", "after", "both"] = option(
        "before", help="norms before attention and feed-forward, after them (but before the addition), or both"
    )
    embedding_norm: bool = option(False, help="norm of the embeddings")
    embedding_scale: float | None = option(1.0, help="factor of the embeddings; none: √hidden_size", above=0)
    positions: Literal["rotary", "learned", "none"] = option(
        "rotary", help="rotation of queries and keys, a learned table, or no positions"
    )
    rope_theta: float = option(10_000.0, help="base of the wavelengths of rotary positions", above=1)
    rope_share: float = option(1.0, help="share of the columns of a head that are rotated", above=0, maximum=1)
    rope_scaling: Literal["none", "linear", "llama3", "yarn"] = option(
        "none", help="change of wavelengths for sequences longer than those of earlier training"
    )
    rope_factor: float | None = option(None, help="factor of the wavelengths, by rope_scaling", minimum=1)
    rope_original_positions: int | None = option(
        None, help="longest sequence of earlier training; for llama3 and yarn", minimum=1
    )
    rope_low_factor: float | None = option(
        None, help="llama3: wavelengths above rope_original_positions / this are scaled", above=0
    )
    rope_high_factor: float | None = option(
        None, help="llama3: wavelengths below rope_original_positions / this are not scaled", above=0
    )
    rope_beta_fast: float = option(32.0, help="yarn: rotations from which a column is not scaled", above=0)
    rope_beta_slow: float = option(1.0, help="yarn: rotations up to which a column is scaled", above=0)
    rope_attention_factor: float | None = option(
        None, help="yarn: factor of queries and keys; none: 0.1 ln(rope_factor) + 1", above=0
    )
    local_rope_theta: float | None = option(
        None, help="base in layers with windows, without scaling; none: rope_theta", above=1
    )
    num_kv_heads: int | None = option(
        None, help="number of heads of keys and values; none: num_heads; 1: one for all queries", minimum=1
    )
    query_key_norm: Literal["none", "head", "width"] = option(
        "none", help="RMS norm of queries and keys, in each head or over all heads, before their rotation"
    )
    shifted_keys: bool = option(
        False,
        help="half of the columns of a head's keys, those that rotate slowest, are the previous token's, so that one "
        "layer finds what followed the same text before",
    )
    qkv_bias: bool = option(False, help="add biases to query, key and value")
    linear_bias: bool = option(False, help="add biases to the other linear layers")
    attention_scale: float | None = option(
        None, help="factor of attention's scores; none: 1 / √(size of a head)", above=0
    )
    attention_cap: float | None = option(None, help="soft limit of attention's scores: cap * tanh(x / cap)", above=0)
    window: int | None = option(
        None, help="tokens that a token attends to, with itself; none: all earlier ones", minimum=1
    )
    window_pattern: str = option("L", help="layers with the window (L) and without it (G), repeated, such as LLLLLG")
    feed_forward: Literal["gated", "plain"] = option(
        "gated", help="gated: the activation of one layer multiplies another one; plain: one layer"
    )
    activation: Activation = option("silu", help="activation of the feed-forward")
    value_embeddings: bool = option(
        False, help="add gated embeddings of the tokens to the values, in every other layer, counted from the last"
    )
    residual_scales: bool = option(
        False, help="layers get learned multiples of the hidden states and of the embedding's result"
    )
    smear: bool = option(False, help="add a gated share of the previous token's embedding to each token's")
    tied: bool = option(True, help="whether the output table is that of the embedding")
    logit_cap: float | None = option(None, help="soft limit of the logits: cap * tanh(x / cap)", above=0)
    zero_init_outputs: bool = option(False, help="initialize the output layers of attention and feed-forward to zero")

    @property
    def effective_embedding_scale(self) -> float:
        """Factor of the embeddings, given or derived."""
        return self.hidden_size**0.5 if self.embedding_scale is None else self.embedding_scale

    @property
    def effective_kv_heads(self) -> int:
        """Number of heads of keys and values, given or derived."""
        return self.num_kv_heads or self.num_heads

    @property
    def effective_feed_forward_size(self) -> int:
        """Inner size of the feed-forward, given or derived."""
        derived = -(-8 * self.hidden_size // 3 // 64) * 64 if self.feed_forward == "gated" else 4 * self.hidden_size
        return self.feed_forward_size or derived

    @property
    def rotated_size(self) -> int:
        """Columns of a head that are rotated."""
        return int(self.effective_head_size * self.rope_share)

    @property
    def gate_columns(self) -> int:
        """Columns of the hidden states on which the gates of value embeddings depend."""
        return min(self.hidden_size, 12)

    @property
    def smear_columns(self) -> int:
        """Columns of the embedding on which the gate of the previous token depends."""
        return min(self.hidden_size, 24)

    def has_value_embedding(self, index: int) -> bool:
        """Return whether the layer ``index`` adds embeddings to its values."""
        return self.value_embeddings and index % 2 == (self.num_layers - 1) % 2

    def window_of(self, index: int) -> int | None:
        """Return the window of the layer ``index``; None: it has none."""
        return self.window if self.window_pattern[index % len(self.window_pattern)] == "L" else None

    def description(self, vocab_size: int | None = None) -> Description:
        table = self._tokens(vocab_size, self.hidden_size)
        positions = (Table("embedding.positions", (self.max_positions, self.hidden_size)),)
        norms = (self._norm("embedding.norm"),)
        head: tuple[Layer, ...] = (self._norm("head.norm"),)
        return Description(
            embedding=(table, *positions * (self.positions == "learned"), *norms * self.embedding_norm),
            block=self._block(table.shape[0]),
            num_layers=self.num_layers,
            lacks=tuple(map(self._lacks, range(self.num_layers))) if self.value_embeddings or self.smear else (),
            reads_embedding=self.residual_scales,
            embedding_dropout=self.embedding_dropout,
            head=head if self.tied else (Table("head.table", table.shape, table.cut), *head),
            logit_cap=self.logit_cap,
            # the mean square would be that of a rank's heads, and the previous token that of its slice
            splits=self.query_key_norm != "width" and not self.value_embeddings and not self.smear,
        )

    def _lacks(self, index: int) -> frozenset[str]:
        values = self.value_embeddings and not self.has_value_embedding(index)
        return frozenset((*_VALUES * values, *_SMEAR * (self.smear and index > 0)))

    def _norm(self, name: str) -> Norm:
        return Norm(name, self.hidden_size, self.norm, self.norm_gain)

    def _block(self, vocab_size: int) -> Block:
        hidden, inner, bias = self.hidden_size, self.effective_feed_forward_size, self.linear_bias
        if self.feed_forward == "gated":
            up = Linear("feed_forward.gate_up", hidden, 2 * inner, bias=bias, num_parts=2, cut="outputs")
        else:
            up = Linear("feed_forward.up", hidden, inner, bias=bias, cut="outputs")
        down = Linear("feed_forward.down", inner, hidden, bias=bias, cut="inputs")
        before, after = (
            tuple(self._norm(f"{part}_{suffix}") for part in ("attention", "feed_forward"))
            for suffix in ("norm", "output_norm")
        )
        gate, scale = Table(_SMEAR[0], (self.smear_columns,)), Table(_SMEAR[1], (1,))
        scales = (Table("state_scale", (1,)), Table("embedding_scale", (1,)))
        return Block(
            norms=before if self.norm_placement != "after" else (),
            others=(*(gate, scale) * self.smear, *scales * self.residual_scales),
            parts=(self._heads(vocab_size), FeedForward(inputs=(up,), out=down, activation=self.activation)),
            norm_first=True,
            output_norms=after if self.norm_placement != "before" else (),
            dropout=self.residual_dropout,
        )

    def _heads(self, vocab_size: int) -> Attention:
        hidden, size, bias = self.hidden_size, self.effective_head_size, self.qkv_bias
        width, kv_width = self.num_heads * size, self.effective_kv_heads * size
        inputs: tuple[Linear, ...] = (
            Linear("attention.query", hidden, width, bias=bias, cut="outputs"),
            Linear("attention.key_value", hidden, 2 * kv_width, bias=bias, num_parts=2, cut="outputs"),
        )
        if width == kv_width:
            inputs = (Linear("attention.qkv", hidden, 3 * width, bias=bias, num_parts=3, cut="outputs"),)
        sizes = (size, size) if self.query_key_norm == "head" else (width, kv_width)
        norms = tuple(
            Norm(f"attention.{name}_norm", own, "rms", self.norm_gain)
            for name, own in zip(("query", "key"), sizes, strict=True)
            if self.query_key_norm != "none"
        )
        gate = (self.effective_kv_heads, self.gate_columns)
        values = (Table(_VALUES[0], (vocab_size, kv_width)), Table(_VALUES[1], gate, num_weights=gate[0] * gate[1]))
        return Attention(
            inputs=inputs,
            out=Linear("attention.out", width, hidden, bias=self.linear_bias, cut="inputs"),
            num_heads=self.num_heads,
            num_kv_heads=self.effective_kv_heads,
            head_size=size,
            is_causal=True,
            dropout=self.attention_dropout,
            others=(*norms, *values * self.value_embeddings),
            is_rotary=self.positions == "rotary",
            shifts_keys=self.shifted_keys,
            windows=tuple(self.window if layer == "L" else None for layer in self.window_pattern),
            cap=self.attention_cap,
            scale=self.attention_scale,
        )

    def problems(self) -> list[Problem]:
        return [*super().problems(), *self._undivided(), *self._rotary(), *self._without_effect()]

    def _undivided(self) -> Iterator[Problem]:
        """Yield sizes that do not fit each other."""
        if self.num_heads % self.effective_kv_heads:
            message = f"num_kv_heads must divide num_heads, which is {self.num_heads:,}; change one of them"
            yield Problem(("num_kv_heads", "num_heads"), message)
        if not self.window_pattern or set(self.window_pattern) - set("LG"):
            yield Problem(("window_pattern",), 'must consist of L (with window) and G (without), such as "LLLLLG"')

        if self.shifted_keys and self.effective_head_size % 4:
            message = f"shifted_keys need heads of a multiple of 4 columns, not {self.effective_head_size}; change one"
            yield Problem(("shifted_keys", "head_size", "num_heads"), message)

    def _rotary(self) -> Iterator[Problem]:
        """Yield problems of rotary positions."""
        if self.positions == "rotary" and (self.rotated_size % 2 or not self.rotated_size):
            size = self.effective_head_size
            message = f"rotary positions need an even number of columns, not {self.rotated_size} of a head's {size}"
            yield Problem(("rope_share", "head_size", "hidden_size"), f"{message}; change one of them")
        needed = _NUMBERS_OF_SCALING[self.rope_scaling]
        if absent := [key for key in needed if getattr(self, key) is None]:
            message = f'rope_scaling = "{self.rope_scaling}" needs {" and ".join(absent)}; set them or remove it'
            yield Problem(("rope_scaling", *absent), message)
        given = [key for key in _NUMBERS_OF_SCALING["llama3"] if getattr(self, key) is not None and key not in needed]
        for key in given:
            yield Problem((key, "rope_scaling"), f'has no effect with rope_scaling = "{self.rope_scaling}"; remove it')
        if self.rope_low_factor and self.rope_high_factor and self.rope_low_factor >= self.rope_high_factor:
            message = "rope_low_factor must be less than rope_high_factor; change one of them"
            yield Problem(("rope_low_factor", "rope_high_factor"), message)

    def _without_effect(self) -> Iterator[Problem]:
        """Yield options that change nothing with the other ones."""
        rules = (
            (self.norm == "layer" and not self.norm_gain, "norm_gain", "norm", 'norm = "rms"'),
            (self.window is None and self.window_pattern != "L", "window_pattern", "window", "a window"),
            (
                self.local_rope_theta is not None and (self.window is None or self.positions != "rotary"),
                "local_rope_theta",
                "window",
                "rotary positions and a window",
            ),
            (self.rope_scaling != "none" and self.positions != "rotary", "rope_scaling", "positions", "rotary"),
        )
        for broken, key, other, needed in rules:
            if broken:
                yield Problem((key, other), f"{key} applies only with {needed}; remove it")
