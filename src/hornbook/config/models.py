"""The models that a recipe's ``[model]`` section can describe, one dataclass a ``family``.

::

    TransformerConfig                 the sizes that all of them have
      GPTConfig                       decoder: tokens see what came before
      EncoderConfig                   tokens see each other; segments
        BertConfig, RobertaConfig, GroupBertConfig

Defaults are those of the published model of that name, but for GPT's dropout: one pass over much text needs none.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from hornbook.config.options import Problem, option
from hornbook.config.registry import register

Activation = Literal["gelu", "gelu_tanh", "relu", "relu_squared", "silu"]


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(ABC):
    """What every transformer has: its sizes, its dropouts, its initial weights."""

    family: str = option("transformer", help="kind of model")
    num_layers: int = option(12, help="transformer blocks", minimum=1)
    hidden_size: int = option(768, help="width of the residual stream", minimum=1)
    num_heads: int = option(12, help="attention heads", minimum=1)
    head_size: int | None = option(None, help="width of one head; none: hidden_size / num_heads", minimum=1)
    feed_forward_size: int | None = option(
        None, help="inner width of the feed-forward; none: 4 * hidden_size", minimum=1
    )
    activation: Activation = option("gelu_tanh", help="activation of the feed-forward")
    vocab_size: int | None = option(None, help="tokens in the vocabulary; none: that of the training store", minimum=1)
    max_positions: int = option(1024, help="rows of the position table", minimum=1)
    embedding_dropout: float = option(0.0, help="dropout after the embeddings", minimum=0, below=1)
    residual_dropout: float = option(0.0, help="dropout before each residual addition", minimum=0, below=1)
    attention_dropout: float = option(0.0, help="dropout of attention weights; takes a slower path", minimum=0, below=1)
    layer_norm_epsilon: float = option(1e-5, help="added to the variance in layer norms", above=0)
    initializer_std: float = option(0.02, help="standard deviation of initial weights", above=0)

    @property
    def effective_head_size(self) -> int:
        """Width of one head, given or derived."""
        return self.head_size or self.hidden_size // self.num_heads

    @property
    def effective_feed_forward_size(self) -> int:
        """Inner width of the feed-forward, given or derived."""
        return self.feed_forward_size or 4 * self.hidden_size

    @abstractmethod
    def num_parameters(self, vocab_size: int | None = None) -> int:
        """Count the parameters; the tied token table once, and without it when no vocabulary size is known."""

    def problems(self) -> list[Problem]:
        """List what does not fit together."""
        if self.head_size is None and self.hidden_size % self.num_heads:
            message = "hidden_size must be divisible by num_heads, or give head_size"
            return [Problem(("hidden_size", "num_heads"), message)]
        return []

    def _num_attention(self, *, qkv_bias: bool = True, out_bias: bool = True) -> int:
        heads = self.num_heads * self.effective_head_size
        biases = (3 * heads if qkv_bias else 0) + (self.hidden_size if out_bias else 0)
        return 4 * heads * self.hidden_size + biases

    def _num_feed_forward(self) -> int:
        hidden, inner = self.hidden_size, self.effective_feed_forward_size
        return _num_linear(hidden, inner) + _num_linear(inner, hidden)


@dataclass(frozen=True, kw_only=True)
class GPTConfig(TransformerConfig):
    """A decoder-only transformer: pre-norm, learned positions, tied head (GPT-2, GPT-3)."""

    family: str = option("gpt", help="kind of model")

    def num_parameters(self, vocab_size: int | None = None) -> int:
        """Count the parameters; the tied token table once, and without it when no vocabulary size is known."""
        rows = (vocab_size or self.vocab_size or 0) + self.max_positions
        norms = 2 * self.hidden_size
        block = self._num_attention() + self._num_feed_forward() + 2 * norms
        return rows * self.hidden_size + self.num_layers * block + norms


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(TransformerConfig):
    """What the encoders share: a token sees its whole sequence; tokens, positions and segments are added and normed."""

    family: str = option("encoder", help="kind of model")
    activation: Activation = option("gelu", help="activation of the feed-forward and of BERT's head; RoBERTa's is gelu")
    max_positions: int = option(512, help="longest sequence", minimum=1)
    embedding_dropout: float = option(0.1, help="dropout after the embeddings", minimum=0, below=1)
    residual_dropout: float = option(0.1, help="dropout before each residual addition", minimum=0, below=1)
    attention_dropout: float = option(0.1, help="dropout of attention weights; takes a slower path", minimum=0, below=1)
    layer_norm_epsilon: float = option(1e-12, help="added to the variance in layer norms", above=0)
    num_segments: int = option(2, help="rows of the segment table; 1: all tokens share one", minimum=1)
    qkv_bias: bool = option(True, help="biases of query, key and value")
    projection_bias: bool = option(True, help="bias of the attention's output")
    head_transform: bool = option(True, help="dense layer, activation and norm before the prediction of tokens")
    prediction_bias: bool = option(True, help="a bias for each token that may be predicted")
    head: Literal["pretraining", "classification", "span"] = option(
        "pretraining", help="what the model is for; the run takes it from the objective"
    )
    num_labels: int | None = option(None, help="classes of a classification; none: those of its labels", minimum=2)

    @property
    def first_position(self) -> int:
        """Row of the position table in which sequences begin."""
        return 0

    @property
    def head_activation(self) -> Activation:
        """Activation of the head."""
        return self.activation

    @property
    def has_pair_head(self) -> bool:
        """Whether the model can learn which pairs of texts follow each other."""
        return True

    def num_parameters(self, vocab_size: int | None = None) -> int:
        """Count the parameters; the tied token table once, and without it when no vocabulary size is known."""
        hidden, num_tokens = self.hidden_size, vocab_size or self.vocab_size or 0
        rows = num_tokens + self.first_position + self.max_positions + self.num_segments
        return rows * hidden + 2 * hidden + self.num_layers * self._num_block() + self._num_head(num_tokens)

    def _num_head(self, num_tokens: int) -> int:
        hidden = self.hidden_size
        pooler = _num_linear(hidden, hidden)
        if self.head == "classification":
            return pooler + _num_linear(hidden, self.num_labels or 0)
        if self.head == "span":
            return _num_linear(hidden, 2)
        transform = pooler + 2 * hidden if self.head_transform else 0
        pair_head = pooler + _num_linear(hidden, 2) if self.has_pair_head else 0
        return transform + pair_head + (num_tokens if self.prediction_bias else 0)

    def _num_block(self) -> int:
        attention = self._num_attention(qkv_bias=self.qkv_bias, out_bias=self.projection_bias)
        return attention + self._num_feed_forward() + 4 * self.hidden_size


@dataclass(frozen=True, kw_only=True)
class BertConfig(EncoderConfig):
    """BERT (Devlin et al. 2019): post-norm, with heads for masked tokens and for pairs of texts.

    Without biases and transform, and with an epsilon of 1e-3, it is the TensorFlow-BERT of Graphcore's examples.
    """

    family: str = option("bert", help="kind of model")


@dataclass(frozen=True, kw_only=True)
class RobertaConfig(EncoderConfig):
    """RoBERTa (Liu et al. 2019): BERT's blocks, masked tokens alone, and positions that begin in the table's row 2."""

    family: str = option("roberta", help="kind of model")
    num_segments: int = option(1, help="rows of the segment table; 1: all tokens share one", minimum=1)
    layer_norm_epsilon: float = option(1e-5, help="added to the variance in layer norms", above=0)

    @property
    def first_position(self) -> int:
        """Row of the position table in which sequences begin."""
        return 2

    @property
    def head_activation(self) -> Activation:
        """Activation of the head, which is always the same."""
        return "gelu"

    @property
    def has_pair_head(self) -> bool:
        """Whether the model can learn which pairs of texts follow each other."""
        return False


@dataclass(frozen=True, kw_only=True)
class GroupBertConfig(EncoderConfig):
    """GroupBERT (Chelombiev et al. 2021): pre-norm; convolution, grouped feed-forward, attention, grouped feed-forward.

    Dropouts are 0, as in all its published recipes.
    """

    family: str = option("groupbert", help="kind of model")
    embedding_dropout: float = option(0.0, help="dropout after the embeddings", minimum=0, below=1)
    residual_dropout: float = option(0.0, help="dropout before each residual addition", minimum=0, below=1)
    attention_dropout: float = option(0.0, help="dropout of attention weights; takes a slower path", minimum=0, below=1)
    convolution_kernel: int = option(7, help="tokens that a convolution sees, an odd number", minimum=1)
    convolution_group_size: int = option(16, help="channels of a group of the convolution", minimum=1)
    feed_forward_groups: int = option(4, help="groups of the feed-forward's second product", minimum=1)

    def num_parameters(self, vocab_size: int | None = None) -> int:
        """Count the parameters, as for the other encoders, and the final norm."""
        return super().num_parameters(vocab_size) + 2 * self.hidden_size

    def _num_block(self) -> int:
        hidden, inner, norm = self.hidden_size, self.effective_feed_forward_size, 2 * self.hidden_size
        kernel = self.convolution_kernel * self.convolution_group_size
        last = _num_linear(hidden, hidden)
        convolution = norm + _num_linear(hidden, 2 * hidden) + _num_linear(kernel, hidden) + norm + last
        grouped = norm + _num_linear(hidden, inner) + _num_linear(inner // self.feed_forward_groups, hidden) + last
        attention = norm + self._num_attention(qkv_bias=self.qkv_bias, out_bias=self.projection_bias)
        return convolution + 2 * grouped + attention

    def problems(self) -> list[Problem]:
        """List what does not fit together."""
        problems = super().problems()
        if self.convolution_kernel % 2 == 0:
            problems.append(Problem(("convolution_kernel",), "must be odd, so that it has a middle"))
        if self.hidden_size % self.convolution_group_size:
            message = "hidden_size must be divisible by convolution_group_size"
            problems.append(Problem(("hidden_size", "convolution_group_size"), message))
        if self.hidden_size % self.feed_forward_groups or self.effective_feed_forward_size % self.feed_forward_groups:
            message = "hidden_size and the inner width of the feed-forward must be divisible by feed_forward_groups"
            problems.append(Problem(("hidden_size", "feed_forward_groups"), message))
        return problems


def _num_linear(num_in: int, num_out: int) -> int:
    return (num_in + 1) * num_out


register("model", "gpt", GPTConfig)
register("model", "bert", BertConfig)
register("model", "roberta", RobertaConfig)
register("model", "groupbert", GroupBertConfig)
