"""ModernBERT (Warner et al. 2024): an encoder with rotary positions, gated feed-forwards and local attention."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from hornbook.config.description import Block, Description
from hornbook.config.models import EncoderConfig
from hornbook.config.options import Problem, choice_of, option
from hornbook.config.parts import FeedForward, Layer, Linear, Norm, Table


@choice_of("model")
@dataclass(frozen=True, kw_only=True)
class ModernBertConfig(EncoderConfig):
    """A pre-norm encoder without biases; the embedding has a norm, and the first block none before its attention."""

    family: str = "modernbert"
    feed_forward_size: int | None = option(
        None, help="inner width of the gated feed-forward; none: 3 / 2 * hidden_size", minimum=1
    )
    max_positions: int = 8192
    embedding_dropout: float = 0.0
    residual_dropout: float = 0.0
    attention_dropout: float = 0.0
    layer_norm_epsilon: float = 1e-5
    num_segments: int = option(0, help="0: there are no segment embeddings", minimum=0, maximum=0)
    qkv_bias: bool = False
    projection_bias: bool = False
    global_every: int = option(3, help="layers 0, N, 2 N, ... attend to all tokens, the others to near ones", minimum=1)
    local_window: int = option(128, help="tokens that local layers attend to, half on either side", minimum=2)
    global_rope_theta: float = option(160_000.0, help="base of the rotary wavelengths in global layers", above=1)
    local_rope_theta: float = option(10_000.0, help="base of the rotary wavelengths in local layers", above=1)
    classifier_pooling: Literal["cls", "mean"] = option(
        "cls", help="what classes of a sequence are computed from: its first token, or the mean of all its tokens"
    )
    has_pair_head: ClassVar[bool] = False

    @property
    def effective_feed_forward_size(self) -> int:
        """Inner size of the feed-forward, given or derived."""
        return self.feed_forward_size or 3 * self.hidden_size // 2

    def is_global(self, index: int) -> bool:
        """Return whether the layer ``index`` attends to all tokens."""
        return index % self.global_every == 0

    def description(self, vocab_size: int | None = None) -> Description:
        return replace(
            super().description(vocab_size),
            embedding=(self._tokens(vocab_size, self.hidden_size), self._norm("embedding.norm")),
            lacks=(frozenset(("attention_norm",)),),
        )

    def _norm(self, name: str) -> Norm:
        return Norm(name, self.hidden_size, bias=False)

    def _block(self) -> Block:
        hidden, inner = self.hidden_size, self.effective_feed_forward_size
        windows = (None, *[self.local_window + 1] * (self.global_every - 1))
        gate_up = Linear("feed_forward.gate_up", hidden, 2 * inner, bias=False, num_parts=2, cut="outputs")
        down = Linear("feed_forward.down", inner, hidden, bias=False, cut="inputs")
        return Block(
            norms=(self._norm("attention_norm"), self._norm("feed_forward_norm")),
            parts=(
                replace(self._encoder_attention(), is_rotary=True, windows=windows),
                FeedForward(inputs=(gate_up,), out=down, activation=self.activation),
            ),
            norm_first=True,
            dropout=self.residual_dropout,
        )

    def _head_layers(self, num_tokens: int) -> Iterator[Layer]:
        hidden, is_pretraining = self.hidden_size, self.head == "pretraining"
        yield self._norm("head.norm")
        if is_pretraining and self.prediction_bias:
            yield Table("head.bias", (num_tokens,))
        if self.head_transform or not is_pretraining:
            yield Linear("head.transform.dense", hidden, hidden, bias=False, is_scored=is_pretraining)
            yield self._norm("head.transform.norm")
        if self.head == "classification":
            yield Linear("head.labels", hidden, self.num_labels or 0, is_scored=False)
        elif self.head == "span":
            yield Linear("head.spans", hidden, 2, is_scored=False)

    def problems(self) -> list[Problem]:
        problems = super().problems()
        if self.effective_head_size % 2:
            message = f"rotary positions need an even size of a head, not {self.effective_head_size}"
            problems.append(Problem(("head_size", "hidden_size", "num_heads"), f"{message}; change one of them"))
        if self.local_window % 2:
            problems.append(Problem(("local_window",), "must be even: half of the tokens are on either side"))
        return problems
