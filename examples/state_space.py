"""A state-space model, Mamba-2: each token changes a state of fixed size, from which the next token is predicted.

python state_space.py train state_space.toml --data.train corpora/mine

After Dao & Gu 2024, "Transformers are SSMs", section 6. With one group, weights have the shapes of those of
transformers' Mamba2ForCausalLM. Shapes: B windows, T and U tokens, D hidden size, E inner size, H heads of P columns,
E = H · P, N state size, C = E + 2 N columns of the convolution.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from hornbook import extend


@dataclass(frozen=True, kw_only=True)
class StateSpaceConfig(extend.Described):
    """The options of ``[model]``, and the description from which plans and MFU follow."""

    family: str = extend.option("state_space", help="model family")
    num_layers: int = extend.option(4, help="number of blocks", minimum=1)
    hidden_size: int = extend.option(256, help="columns of the residual stream", minimum=1)
    num_heads: int = extend.option(8, help="heads, each with its own decay", minimum=1)
    head_size: int = extend.option(64, help="columns of a head", minimum=1)
    state_size: int = extend.option(32, help="numbers in the state of each column", minimum=1)
    kernel_size: int = extend.option(4, help="tokens of the convolution before the recurrence", minimum=1)
    chunk_size: int = extend.option(64, help="tokens that are computed at once", minimum=1)
    norm_epsilon: float = extend.option(1e-5, help="added to the mean square in norms", above=0)
    initializer_std: float = extend.option(0.02, help="standard deviation of initial weights", above=0)
    vocab_size: int | None = extend.option(None, help="size of the vocabulary; none: that of the tokenizer", minimum=1)
    max_positions: int = extend.option(256, help="longest sequence", minimum=1)

    @property
    def inner_size(self) -> int:
        """E."""
        return self.num_heads * self.head_size

    @property
    def mixed_size(self) -> int:
        """C."""
        return self.inner_size + 2 * self.state_size

    def description(self, vocab_size: int | None = None) -> extend.Description:
        """Return the layers, by the names of their modules."""
        size, inner, mixed, heads = self.hidden_size, self.inner_size, self.mixed_size, self.num_heads
        table = (vocab_size or self.vocab_size or 0, size)
        in_chunk = min(self.chunk_size, self.max_positions)
        per_token = heads * in_chunk + inner * self.state_size // in_chunk  # scores of a token, and its share of states
        mixer = extend.OtherPart(
            name="mixer",
            layers=(
                extend.TableLayer("mixer.filters", (mixed, 1, self.kernel_size), num_weights=mixed * self.kernel_size),
                extend.TableLayer("mixer.filter_bias", (mixed,)),
                *(extend.TableLayer(f"mixer.{name}", (heads,)) for name in ("log_decay", "step_bias", "skip")),
                extend.LinearLayer("mixer.up", size, inner + mixed + heads, bias=False),
                extend.NormLayer("mixer.norm", inner, "rms"),
                extend.LinearLayer("mixer.down", inner, size, bias=False),
            ),
            kept=3 * (inner + mixed) + heads,
            kept_fp32=4 * inner + mixed + 3 * per_token,
            temporary_fp32=3 * (inner + mixed),
        )
        return extend.Description(
            embedding=(extend.TableLayer("embedding.tokens", table),),
            block=extend.BlockDescription(
                norms=(extend.NormLayer("norm", size, "rms"),), parts=(mixer,), norm_first=True
            ),
            num_layers=self.num_layers,
            head=(extend.NormLayer("head.norm", size, "rms"),),
            splits=False,
        )


class StateSpace(nn.Module):
    """``state = decay · state + step · x bᵀ``, ``y = state c + skip · x`` for each head, in fp32."""

    def __init__(self, config: StateSpaceConfig) -> None:
        super().__init__()
        self.config = config
        mixed, heads, std = config.mixed_size, config.num_heads, config.initializer_std
        self.filters, self.filter_bias = (
            nn.Parameter(torch.empty(mixed, *rest)) for rest in ((1, config.kernel_size), ())
        )
        self.log_decay, self.step_bias, self.skip = (nn.Parameter(torch.empty(heads)) for _ in range(3))
        self.up = extend.Linear(config.hidden_size, config.inner_size + mixed + heads, std=std, bias=False)
        self.norm = extend.RMSNorm(config.inner_size, epsilon=config.norm_epsilon)
        out_std = std / math.sqrt(config.num_layers)
        self.down = extend.Linear(config.inner_size, config.hidden_size, std=out_std, bias=False)

    def draw(self, draw: extend.Draw) -> None:
        """Initialize decays of 1 to H and steps of 0.001 to 0.1, both at step 1 of the recurrence, and the filters."""
        heads = self.config.num_heads
        draw.normal(self.filters, "filters", 1 / math.sqrt(3 * self.config.kernel_size), is_uniform=True)
        draw.constant(self.filter_bias, 0.0)
        draw.constant(self.skip, 1.0)
        with torch.no_grad():
            self.log_decay.copy_(torch.arange(1, heads + 1).log())
            self.step_bias.copy_(torch.logspace(-3, -1, heads).expm1().log())

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Map ``[B, T, D]`` to ``[B, T, D]``."""
        config = self.config
        sizes = [config.inner_size, config.mixed_size, config.num_heads]
        gate_BTE, mixed_BTC, step_BTH = torch.split(self.up(x_BTD), sizes, -1)
        padded_BCT = functional.pad(mixed_BTC.transpose(1, 2), (config.kernel_size - 1, 0))
        weights = (self.filters.to(x_BTD.dtype), self.filter_bias.to(x_BTD.dtype))
        mixed_BTC = functional.silu(functional.conv1d(padded_BCT, *weights, groups=config.mixed_size)).transpose(1, 2)
        x_BTE, b_BTN, c_BTN = torch.split(mixed_BTC.float(), [sizes[0], config.state_size, config.state_size], -1)
        x_BTHP = torch.unflatten(x_BTE, -1, (config.num_heads, config.head_size))
        step_BTH = functional.softplus(step_BTH.float() + self.step_bias)
        y_BTHP = self.recur(x_BTHP * step_BTH.unsqueeze(-1), b_BTN, c_BTN, -step_BTH * self.log_decay.exp())
        y_BTE = (y_BTHP + x_BTHP * self.skip.unsqueeze(-1)).flatten(2) * functional.silu(gate_BTE)
        y_BTD: Tensor = self.down(self.norm(y_BTE).to(x_BTD.dtype))
        return y_BTD

    def recur(self, x_BTHP: Tensor, b_BTN: Tensor, c_BTN: Tensor, log_decay_BTH: Tensor) -> Tensor:
        """Return ``y_t = Σ over u ≤ t of (c_t · b_u) exp(Σ of log_decay over u < s ≤ t) x_u``, chunk by chunk."""
        inputs = (x_BTHP.transpose(1, 2), b_BTN.unsqueeze(1), c_BTN.unsqueeze(1), log_decay_BTH.transpose(1, 2))
        chunks = zip(*(torch.split(tensor, self.config.chunk_size, 2) for tensor in inputs), strict=True)
        state_BHPN, results = None, []
        for x_BHTP, b_B1TN, c_B1TN, log_decay_BHT in chunks:
            sum_BHT1 = log_decay_BHT.cumsum(2).unsqueeze(-1)
            is_later = sum_BHT1.new_ones(2 * log_decay_BHT.shape[-1:], dtype=torch.bool).triu(1)
            decay_BHTU = (sum_BHT1 - sum_BHT1.mT).masked_fill(is_later, -math.inf).exp()
            y_BHTP = c_B1TN @ b_B1TN.mT * decay_BHTU @ x_BHTP
            change_BHPN = (x_BHTP * decay_BHTU[:, :, -1, :, None]).mT @ b_B1TN
            if state_BHPN is not None:
                y_BHTP = y_BHTP + c_B1TN @ state_BHPN.mT * sum_BHT1.exp()
                change_BHPN = change_BHPN + state_BHPN * sum_BHT1[:, :, -1:].exp()
            state_BHPN = change_BHPN
            results.append(y_BHTP.transpose(1, 2))
        return torch.cat(results, 1)


class StateSpaceBlock(nn.Module):
    """A norm and the recurrence, with a residual connection; generation recomputes the window for each token."""

    def __init__(self, config: StateSpaceConfig) -> None:
        super().__init__()
        self.norm = extend.RMSNorm(config.hidden_size, epsilon=config.norm_epsilon)
        self.mixer = StateSpace(config)

    def forward(self, x_BTD: Tensor, context: extend.Context) -> Tensor:
        """Map ``[B, T, D]`` to ``[B, T, D]``."""
        if "mask" in context:
            raise extend.UserError(
                "the state of a state-space model passes from document to document; remove `data.document_mask`"
            )
        y_BTD: Tensor = x_BTD + self.mixer(self.norm(x_BTD))
        return y_BTD


@extend.build_model.register
def build_state_space(config: StateSpaceConfig, compute_dtype: torch.dtype) -> extend.LanguageModel:
    """Return the model, its parameters not yet initialized."""
    assert config.vocab_size is not None, "the run sets the vocabulary before it builds the model"
    size, rows = config.hidden_size, config.max_positions
    embedding = extend.Embedding(
        config.vocab_size,
        rows,
        size,
        positions="none",
        dropout=0.0,
        std=config.initializer_std,
        compute_dtype=compute_dtype,
    )
    blocks = [StateSpaceBlock(config) for _ in range(config.num_layers)]
    head = extend.CausalHead(size, config.vocab_size, norm=extend.RMSNorm(size, epsilon=config.norm_epsilon))
    return extend.LanguageModel(embedding, blocks, head, max_positions=rows)


extend.register("model", "state_space", StateSpaceConfig)
if __name__ == "__main__":
    raise SystemExit(extend.main())
