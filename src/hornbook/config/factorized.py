"""A decoder with a factorized token embedding: ``family = "factorized_gpt"``.

::

    norm(tokens [V, E]) + norm(positions [T, E]) -> dropout, norm -> projection [H, E] -> blocks of width H
    blocks -> norm -> projection [E, H] -> activation -> norm -> logits by the token table [V, E]

Two projections replace the additional (H - E) · V weights of a table of width H (Lan et al. 2020, ALBERT, section 3.1).
This is the language model of Graphcore's ``dynamic_sparsity`` (docs/old-systems/sparse-gpt-tensorflow.md).
"""

from dataclasses import dataclass
from typing import Literal

from hornbook.config.description import Description
from hornbook.config.models import Activation, LayerNormConfig
from hornbook.config.options import Problem, choice_of, option
from hornbook.config.parts import Linear, Norm, Table


@choice_of("model")
@dataclass(frozen=True, kw_only=True)
class FactorizedGPTConfig(LayerNormConfig):
    """A pre-norm decoder with a factorized token table, fixed positions and norms over groups of columns."""

    family: str = "factorized_gpt"
    activation: Activation = option("gelu_tanh", help="activation of the feed-forward and of the head")
    max_positions: int = option(1024, help="longest sequence", minimum=1)
    embedding_size: int = option(128, help="width of the token table", minimum=1)
    positions: Literal["sinusoidal", "learned"] = option(
        "sinusoidal", help="position embeddings: fixed sines and cosines, or a learned table"
    )
    norm_groups: int = option(
        1, help="groups of channels that each norm normalizes separately; 1: layer norm", minimum=1
    )
    norm_gain: float = option(0.1, help="initial gain of the norms")
    qkv_bias: bool = option(False, help="add biases to query, key and value")
    projection_bias: bool = option(False, help="add a bias to the output projection of attention")
    attention_block_size: int | None = option(
        None,
        help="queries per block of attention, each block with only the keys up to its end; none: the fastest form",
        minimum=1,
    )
    activation_dropout: float = option(0.0, help="dropout after the activation of the feed-forward", minimum=0, below=1)
    initializer: Literal["normal", "glorot_uniform"] = option(
        "normal",
        help=(
            "initial weights; normal: standard deviation initializer_std; glorot_uniform: linear "
            "layers uniform within √(6 / (inputs + outputs)), tables with standard deviation 1 / "
            "√embedding_size"
        ),
    )
    clamp_tokens: bool = option(
        False, help="replace token ids beyond vocab_size by the last id, instead of raising an error"
    )

    def description(self, vocab_size: int | None = None) -> Description:
        hidden, narrow = self.hidden_size, self.embedding_size
        attention = self._attention(is_causal=True, qkv_bias=self.qkv_bias, out_bias=self.projection_bias)
        positions = (Table("embedding.positions", (self.max_positions, narrow)),) * (self.positions == "learned")
        return Description(
            embedding=(
                self._tokens(vocab_size, narrow),
                *positions,
                *(Norm(f"embedding.{name}_norm", narrow) for name in ("token", "position", "sum")),
                Linear("embedding.projection", narrow, hidden),
            ),
            block=self._two_norm_block(attention, norm_first=True),
            num_layers=self.num_layers,
            embedding_dropout=self.embedding_dropout,
            head=(
                Norm("head.norm", hidden),
                Linear("head.projection", hidden, narrow),
                Norm("head.projection_norm", narrow),
            ),
            splits=False,
        )

    def problems(self) -> list[Problem]:
        problems = super().problems()
        for key, size in (("hidden_size", self.hidden_size), ("embedding_size", self.embedding_size)):
            if size % self.norm_groups:
                message = f"norm_groups must divide {key}, which is {size:,}; change one of them"
                problems.append(Problem(("norm_groups", key), message))
        if self.positions == "sinusoidal" and self.embedding_size % 2:
            message = 'positions = "sinusoidal" needs an even embedding_size; change one of them'
            problems.append(Problem(("embedding_size", "positions"), message))
        if self.clamp_tokens and self.vocab_size is None:
            message = "clamp_tokens requires vocab_size, the number of ids to keep; set it"
            problems.append(Problem(("clamp_tokens", "vocab_size"), message))
        return problems
