"""The models of ``[model]``: a dataclass for each ``family``.

::

    TransformerConfig                 sizes, dropouts, initial weights
      DecoderConfig                   decoder with options for what differs (`hornbook.config.decoder`)
      LayerNormConfig                 layer norms
        FactorizedGPTConfig           decoder with a narrow token table (`hornbook.config.factorized`)
        TunableConfig                 heads for labels
          GPTConfig                   decoder: causal attention
          EncoderConfig               bidirectional attention; segments
            BertConfig, RobertaConfig, GroupBertConfig

The defaults are those of the published models, except that GPT has no dropout, for training in a single epoch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from hornbook.config.description import Block, Described, Description
from hornbook.config.options import Problem, choice_of, option
from hornbook.config.parts import Attention, Convolution, FeedForward, Layer, Linear, Norm, Table

Activation = Literal["gelu", "gelu_tanh", "relu", "relu_squared", "silu"]


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(Described):
    """The options of every transformer: sizes, dropouts, initial weights."""

    family: str = option("", help="model family")
    num_layers: int = option(12, help="number of transformer blocks", minimum=1, maximum=10_000)
    hidden_size: int = option(768, help="width of the residual stream", minimum=1)
    num_heads: int = option(12, help="number of attention heads", minimum=1)
    head_size: int | None = option(None, help="width of an attention head; none: hidden_size / num_heads", minimum=1)
    feed_forward_size: int | None = option(
        None, help="inner width of the feed-forward; none: 4 * hidden_size", minimum=1
    )
    activation: Activation = option("gelu_tanh", help="activation of the feed-forward")
    vocab_size: int | None = option(None, help="vocabulary size; none: that of the training store", minimum=1)
    max_positions: int = option(1024, help="number of position embeddings; the longest possible sequence", minimum=1)
    embedding_dropout: float = option(0.0, help="dropout after the embeddings", minimum=0, below=1)
    residual_dropout: float = option(0.0, help="dropout before each residual addition", minimum=0, below=1)
    attention_dropout: float = option(
        0.0, help="dropout of attention weights; any value above 0 slows down attention", minimum=0, below=1
    )
    initializer_std: float = option(0.02, help="standard deviation of initial weights", above=0)

    @property
    def effective_head_size(self) -> int:
        """Size of a head, given or derived."""
        return self.head_size or self.hidden_size // self.num_heads

    @property
    def effective_feed_forward_size(self) -> int:
        """Inner size of the feed-forward, given or derived."""
        return self.feed_forward_size or 4 * self.hidden_size

    def problems(self) -> list[Problem]:
        if self.head_size is None and self.hidden_size % self.num_heads:
            message = "hidden_size must be divisible by num_heads; change one of them or set head_size"
            return [Problem(("hidden_size", "num_heads"), message)]
        return []

    def _attention(self, *, is_causal: bool, qkv_bias: bool = True, out_bias: bool = True) -> Attention:
        """Return an attention with as many keys and values as queries, in one stacked layer."""
        width = self.num_heads * self.effective_head_size
        qkv = Linear("attention.qkv", self.hidden_size, 3 * width, bias=qkv_bias, num_parts=3, cut="outputs")
        return Attention(
            inputs=(qkv,),
            out=Linear("attention.out", width, self.hidden_size, bias=out_bias, cut="inputs"),
            num_heads=self.num_heads,
            num_kv_heads=self.num_heads,
            head_size=self.effective_head_size,
            is_causal=is_causal,
            dropout=self.attention_dropout,
        )

    def _two_norm_block(self, attention: Attention, *, norm_first: bool) -> Block:
        """Return a block of attention and feed-forward, each with a norm."""
        hidden, inner = self.hidden_size, self.effective_feed_forward_size
        up = Linear("feed_forward.up", hidden, inner, cut="outputs")
        down = Linear("feed_forward.down", inner, hidden, cut="inputs")
        return Block(
            norms=(Norm("attention_norm", hidden), Norm("feed_forward_norm", hidden)),
            parts=(attention, FeedForward(inputs=(up,), out=down, activation=self.activation)),
            norm_first=norm_first,
            dropout=self.residual_dropout,
        )

    def _tokens(self, vocab_size: int | None, width: int, *, cut: int | None = 0) -> Table:
        return Table("embedding.tokens", (vocab_size or self.vocab_size or 0, width), cut)


@dataclass(frozen=True, kw_only=True)
class LayerNormConfig(TransformerConfig):
    """The options of every transformer with layer norms."""

    layer_norm_epsilon: float = option(1e-5, help="added to the variance in layer norms", above=0)


@dataclass(frozen=True, kw_only=True)
class TunableConfig(LayerNormConfig):
    """The options of every transformer that can be fine-tuned on labels, with another head."""

    head: Literal["pretraining", "classification", "span"] = option("pretraining", help="head; set by the objective")
    num_labels: int | None = option(None, help="number of classes; none: the number of labels", minimum=2)


@choice_of("model")
@dataclass(frozen=True, kw_only=True)
class GPTConfig(TunableConfig):
    """A decoder-only transformer: pre-norm, learned positions, tied head (GPT-2, GPT-3)."""

    family: str = "gpt"

    def description(self, vocab_size: int | None = None) -> Description:
        hidden = self.hidden_size
        head: tuple[Layer, ...] = (Norm("head.norm", hidden),)
        if self.head == "classification":
            head += (Linear("head.labels", hidden, self.num_labels or 0, bias=False, is_scored=False),)
        return Description(
            embedding=(
                self._tokens(vocab_size, hidden),
                Table("embedding.positions", (self.max_positions, hidden)),
            ),
            block=self._two_norm_block(self._attention(is_causal=True), norm_first=True),
            num_layers=self.num_layers,
            embedding_dropout=self.embedding_dropout,
            head=head,
        )


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(TunableConfig):
    """The options of every encoder: bidirectional attention, and a norm after the sum of the three embeddings."""

    activation: Activation = option(
        "gelu", help="activation of the feed-forward and of the head; RoBERTa's head uses gelu"
    )
    max_positions: int = 512
    embedding_dropout: float = 0.1
    residual_dropout: float = 0.1
    attention_dropout: float = 0.1
    layer_norm_epsilon: float = 1e-12
    num_segments: int = option(2, help="number of segment embeddings; 1: one row, added to every token", minimum=1)
    qkv_bias: bool = option(True, help="add biases to query, key and value")
    projection_bias: bool = option(True, help="add a bias to the output projection of attention")
    head_transform: bool = option(True, help="dense layer, activation and layer norm before the token logits")
    prediction_bias: bool = option(True, help="add a bias for each vocabulary entry to the token logits")
    first_position: ClassVar[int] = 0
    """Row of the position table for position 0."""
    has_pair_head: ClassVar[bool] = True
    """Whether the model has a head for next-sentence prediction."""

    @property
    def head_activation(self) -> Activation:
        """Activation of the head."""
        return self.activation

    def description(self, vocab_size: int | None = None) -> Description:
        hidden = self.hidden_size
        return Description(
            embedding=(
                self._tokens(vocab_size, hidden),
                Table("embedding.positions", (self.first_position + self.max_positions, hidden)),
                Table("embedding.segments", (self.num_segments, hidden)),
                Norm("embedding.norm", hidden),
            ),
            block=self._block(),
            num_layers=self.num_layers,
            embedding_dropout=self.embedding_dropout,
            head=tuple(self._head_layers(vocab_size or self.vocab_size or 0)),
        )

    def _block(self) -> Block:
        return self._two_norm_block(self._encoder_attention(), norm_first=False)

    def _encoder_attention(self) -> Attention:
        return self._attention(is_causal=False, qkv_bias=self.qkv_bias, out_bias=self.projection_bias)

    def _head_layers(self, num_tokens: int) -> Iterator[Layer]:
        hidden, is_pretraining = self.hidden_size, self.head == "pretraining"
        if is_pretraining and self.prediction_bias:
            yield Table("head.bias", (num_tokens,))
        if is_pretraining and self.head_transform:
            yield Linear("head.transform.dense", hidden, hidden)
            yield Norm("head.transform.norm", hidden)
        if self.head == "classification" or (is_pretraining and self.has_pair_head):
            yield Linear("head.pooler", hidden, hidden, is_scored=False)
        if is_pretraining and self.has_pair_head:
            yield Linear("head.classifier", hidden, 2, is_scored=False)
        elif self.head == "classification":
            yield Linear("head.labels", hidden, self.num_labels or 0, is_scored=False)
        elif self.head == "span":
            yield Linear("head.spans", hidden, 2, is_scored=False)


@choice_of("model")
@dataclass(frozen=True, kw_only=True)
class BertConfig(EncoderConfig):
    """BERT (Devlin et al. 2019): post-norm, with heads for masked tokens and next-sentence prediction.

    Without biases and transform, and with an epsilon of 1e-3, it is the TensorFlow BERT of Graphcore's examples.
    """

    family: str = "bert"


@choice_of("model")
@dataclass(frozen=True, kw_only=True)
class RobertaConfig(EncoderConfig):
    """RoBERTa (Liu et al. 2019): BERT's blocks, only masked tokens, and positions that begin in the table's row 2."""

    family: str = "roberta"
    num_segments: int = 1
    layer_norm_epsilon: float = 1e-5
    first_position: ClassVar[int] = 2
    has_pair_head: ClassVar[bool] = False

    @property
    def head_activation(self) -> Activation:
        """Activation of the head, independent of the blocks' activation."""
        return "gelu"


@choice_of("model")
@dataclass(frozen=True, kw_only=True)
class GroupBertConfig(EncoderConfig):
    """GroupBERT (Chelombiev et al. 2021): pre-norm; convolution, grouped feed-forward, attention, grouped feed-forward.

    Dropouts are 0, as in all its published recipes.
    """

    family: str = "groupbert"
    embedding_dropout: float = 0.0
    residual_dropout: float = 0.0
    attention_dropout: float = 0.0
    convolution_kernel: int = option(7, help="convolution width in tokens, an odd number", minimum=1)
    convolution_group_size: int = option(16, help="channels per group of the convolution", minimum=1)
    feed_forward_groups: int = option(4, help="groups of the second feed-forward projection", minimum=1)

    def _block(self) -> Block:
        first, second = (self._feed_forward(name) for name in ("first_feed_forward", "second_feed_forward"))
        convolution, attention = self._convolution(), self._encoder_attention()
        parts = (convolution, first, attention, second)
        norms = tuple(Norm(f"norms.{number}", self.hidden_size) for number in range(4))
        order = (*(norm.name for norm in norms), *(part.name for part in (convolution, first, second, attention)))
        return Block(norms=norms, parts=parts, norm_first=True, dropout=self.residual_dropout, order=order)

    def _convolution(self) -> Convolution:
        hidden, kernel, size = self.hidden_size, self.convolution_kernel, self.convolution_group_size
        return Convolution(
            up=Linear("convolution.up", hidden, 2 * hidden),
            filters=Table("convolution.filter_weight", (hidden, size, kernel), num_weights=hidden * size * kernel),
            filter_bias=Table("convolution.filter_bias", (hidden,)),
            norm=Norm("convolution.norm", hidden),
            down=Linear("convolution.down", hidden, hidden),
            kernel=kernel,
        )

    def _feed_forward(self, name: str) -> FeedForward:
        hidden, inner, groups = self.hidden_size, self.effective_feed_forward_size, self.feed_forward_groups
        return FeedForward(
            name=name,
            inputs=(Linear(f"{name}.up", hidden, inner, cut="outputs"),),
            middle=Linear(f"{name}.grouped", inner, hidden, num_groups=groups, cut="outputs"),
            out=Linear(f"{name}.down", hidden, hidden, cut="inputs"),
            activation=self.activation,
        )

    def _head_layers(self, num_tokens: int) -> Iterator[Layer]:
        yield Norm("head.norm", self.hidden_size)
        yield from super()._head_layers(num_tokens)

    def problems(self) -> list[Problem]:
        problems = super().problems()
        if self.convolution_kernel % 2 == 0:
            problems.append(Problem(("convolution_kernel",), "must be odd"))
        if self.hidden_size % self.convolution_group_size:
            message = "hidden_size must be divisible by convolution_group_size"
            problems.append(Problem(("hidden_size", "convolution_group_size"), message))
        if self.hidden_size % self.feed_forward_groups or self.effective_feed_forward_size % self.feed_forward_groups:
            message = "hidden_size and the inner width of the feed-forward must be divisible by feed_forward_groups"
            problems.append(Problem(("hidden_size", "feed_forward_groups"), message))
        return problems
