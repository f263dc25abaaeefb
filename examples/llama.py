"""A model family like Llama: RMS norm, rotary positions, SwiGLU, grouped-query attention, no biases, an untied head.

python llama.py train llama.toml --data.train corpora/mine

See Touvron et al. 2023 and, for grouped-query attention, Ainslie et al. 2023. Weights have the shapes of those of
transformers' LlamaForCausalLM. Shapes: B sequences, T tokens, D hidden size, H query heads, G key-value heads, K head
size.
"""

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from hornbook import extend


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(extend.Described):
    """The options of ``[model]``, and the description from which plans, tensor parallelism and MFU follow."""

    family: str = extend.option("llama", help="model family")
    num_layers: int = extend.option(4, help="number of blocks", minimum=1)
    hidden_size: int = extend.option(256, help="columns of the residual stream", minimum=1)
    num_heads: int = extend.option(4, help="query heads", minimum=1)
    num_kv_heads: int = extend.option(2, help="key-value heads, each shared by a group of query heads", minimum=1)
    feed_forward_size: int = extend.option(704, help="inner columns of the feed-forward", minimum=1)
    rotary_base: float = extend.option(10_000.0, help="base of the rotary frequencies", above=1)
    norm_epsilon: float = extend.option(1e-5, help="added to the mean square in norms", above=0)
    residual_dropout: float = extend.option(0.0, help="dropout before each residual addition", minimum=0, below=1)
    initializer_std: float = extend.option(0.02, help="standard deviation of initial weights", above=0)
    vocab_size: int | None = extend.option(None, help="size of the vocabulary; none: that of the tokenizer", minimum=1)
    max_positions: int = extend.option(256, help="longest sequence", minimum=1)

    def description(self, vocab_size: int | None = None) -> extend.Description:
        """Return the layers, by the names of their modules; tensor parallelism splits heads and inner columns."""
        size, inner, head_size = self.hidden_size, self.feed_forward_size, self.hidden_size // self.num_heads
        table = (vocab_size or self.vocab_size or 0, size)
        linear = partial(extend.LinearLayer, bias=False)
        sizes = {"query": size, "key": self.num_kv_heads * head_size, "value": self.num_kv_heads * head_size}
        attention = extend.AttentionPart(
            inputs=tuple(linear(name, size, num_out, cut="outputs") for name, num_out in sizes.items()),
            out=linear("out", size, size, cut="inputs"),
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_size=head_size,
            is_causal=True,
        )
        feed_forward = extend.FeedForwardPart(
            inputs=tuple(linear(name, size, inner, cut="outputs") for name in ("gate", "up")),
            out=linear("down", inner, size, cut="inputs"),
            activation="silu",
        )
        norms = [extend.NormLayer(name, size, "rms") for name in ("attention_norm", "feed_forward_norm", "head.norm")]
        return extend.Description(
            embedding=(extend.TableLayer("embedding.tokens", table, cut=0),),
            block=extend.BlockDescription(
                norms=tuple(norms[:2]), parts=(attention, feed_forward), norm_first=True, dropout=self.residual_dropout
            ),
            num_layers=self.num_layers,
            head=(extend.TableLayer("head.table", table, cut=0), norms[2]),
            embedding_dropout=self.residual_dropout,
        )

    def problems(self) -> list[extend.Problem]:
        """Return a problem for each size that another one does not divide."""
        problems = []
        if self.hidden_size % (2 * self.num_heads):
            problems.append(extend.Problem(("hidden_size", "num_heads"), "the size of a head must be even"))
        if self.num_heads % self.num_kv_heads:
            message = "num_heads must be divisible by num_kv_heads"
            problems.append(extend.Problem(("num_heads", "num_kv_heads"), message))
        return problems


class RMSNorm(nn.Module):
    """``x / √(mean(x²) + ε) · weight`` in fp32 (Zhang & Sennrich 2019, equation 4)."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.empty(size)), epsilon

    def draw(self, draw: extend.Draw) -> None:
        """Initialize the gain."""
        draw.constant(self.weight, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize ``[..., size]``."""
        return functional.rms_norm(x.float(), self.weight.shape, self.weight, self.epsilon).to(x.dtype)


def rotate(x_BHTK: Tensor, positions_BT: Tensor, base: float) -> Tensor:
    """Rotate the columns k and k + K/2 of each head by ``position · base^(-2k/K)`` (Su et al. 2021, section 3.2)."""
    num_pairs = x_BHTK.shape[-1] // 2
    frequencies = base ** -(torch.arange(num_pairs, device=x_BHTK.device) / num_pairs)
    angles = (positions_BT[..., None] * frequencies).unsqueeze(1)
    first, second = x_BHTK.float().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x_BHTK.dtype)


class LlamaBlock(nn.Module):
    """Attention and a gated feed-forward, each after a norm and with a residual connection."""

    is_incremental = True

    def __init__(self, config: LlamaConfig, index: int) -> None:
        super().__init__()
        size, inner, std = config.hidden_size, config.feed_forward_size, config.initializer_std
        self.head_size, self.rotary_base = size // config.num_heads, config.rotary_base
        linear = partial(extend.Linear, bias=False)
        out_std, kv_size = std / math.sqrt(2 * config.num_layers), config.num_kv_heads * self.head_size
        self.attention_norm = RMSNorm(size, config.norm_epsilon)
        self.query, self.key, self.value = (linear(size, num_out, std=std) for num_out in (size, kv_size, kv_size))
        self.out = linear(size, size, std=out_std)
        self.attention_dropout = extend.Dropout(config.residual_dropout, site=2 * index + 1)
        self.feed_forward_norm = RMSNorm(size, config.norm_epsilon)
        self.gate, self.up = linear(size, inner, std=std), linear(size, inner, std=std)
        self.down = linear(inner, size, std=out_std)
        self.feed_forward_dropout = extend.Dropout(config.residual_dropout, site=2 * index + 2)

    def forward(self, x_BTD: Tensor, context: extend.Context) -> Tensor:
        """Map ``[B, T, D]`` to ``[B, T, D]``."""
        x_BTD = self.attention_dropout(self.attend(self.attention_norm(x_BTD), context), context["keys"], x_BTD)
        changed_BTD = self.feed_forward(self.feed_forward_norm(x_BTD))
        y_BTD: Tensor = self.feed_forward_dropout(changed_BTD, context["keys"], x_BTD)
        return y_BTD

    def attend(self, x_BTD: Tensor, context: extend.Context) -> Tensor:
        """Return the output of the attention with its projections, ``[B, T, D]``."""
        q_BHTK, k_BGTK, v_BGTK = (
            linear(x_BTD).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        turn = partial(rotate, positions_BT=context["positions"], base=self.rotary_base)
        mixed_BHTK = extend.attend(self, turn(q_BHTK), turn(k_BGTK), v_BGTK, context)
        y_BTD: Tensor = self.out(mixed_BHTK.transpose(1, 2).flatten(2))
        return y_BTD

    def feed_forward(self, x_BTD: Tensor) -> Tensor:
        """Return SwiGLU of the hidden states (Shazeer 2020, equation 6)."""
        y_BTD: Tensor = self.down(functional.silu(self.gate(x_BTD)) * self.up(x_BTD))
        return y_BTD


@extend.build_model.register
def build_llama(config: LlamaConfig, compute_dtype: torch.dtype) -> extend.LanguageModel:
    """Return the model, its parameters not yet initialized."""
    assert config.vocab_size is not None, "the run sets the vocabulary before it builds the model"
    size, std = config.hidden_size, config.initializer_std
    embedding = extend.Embedding(
        config.vocab_size,
        config.max_positions,
        size,
        positions="none",
        dropout=config.residual_dropout,
        std=std,
        compute_dtype=compute_dtype,
    )
    blocks = [LlamaBlock(config, index) for index in range(config.num_layers)]
    norm = RMSNorm(size, config.norm_epsilon)
    head = extend.CausalHead(size, config.vocab_size, norm=norm, is_tied=False, std=std)
    return extend.LanguageModel(embedding, blocks, head, max_positions=config.max_positions)


extend.register("model", "llama", LlamaConfig)
if __name__ == "__main__":
    raise SystemExit(extend.main())
