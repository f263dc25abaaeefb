"""The models that a recipe's ``[model]`` section can describe, one dataclass a ``family``."""

from dataclasses import dataclass
from typing import Literal

from hornbook.config.options import Problem, option
from hornbook.config.registry import register


@dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """A decoder-only transformer: pre-norm, learned positions, tied head (GPT-2, GPT-3)."""

    family: str = option("gpt", help="kind of model")
    num_layers: int = option(12, help="transformer blocks", minimum=1)
    hidden_size: int = option(768, help="width of the residual stream", minimum=1)
    num_heads: int = option(12, help="attention heads", minimum=1)
    head_size: int | None = option(None, help="width of one head; none: hidden_size / num_heads", minimum=1)
    feed_forward_size: int | None = option(
        None, help="inner width of the feed-forward; none: 4 * hidden_size", minimum=1
    )
    activation: Literal["gelu", "gelu_tanh", "relu", "relu_squared", "silu"] = option(
        "gelu_tanh", help="activation of the feed-forward"
    )
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

    def num_parameters(self, vocab_size: int | None = None) -> int:
        """Count the parameters; the tied token table once, and without it when no vocabulary size is known."""
        hidden, inner = self.hidden_size, self.effective_feed_forward_size
        heads = self.num_heads * self.effective_head_size
        attention = hidden * 3 * heads + 3 * heads + heads * hidden + hidden
        feed_forward = hidden * inner + inner + inner * hidden + hidden
        norms = 2 * hidden
        rows = (vocab_size or self.vocab_size or 0) + self.max_positions
        return rows * hidden + self.num_layers * (attention + feed_forward + 2 * norms) + norms

    def problems(self) -> list[Problem]:
        """List what does not fit together."""
        if self.head_size is None and self.hidden_size % self.num_heads:
            message = "hidden_size must be divisible by num_heads, or give head_size"
            return [Problem(("hidden_size", "num_heads"), message)]
        return []


register("model", "gpt", GPTConfig)
