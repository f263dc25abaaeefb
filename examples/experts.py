"""A decoder whose feed-forwards are mixtures of experts, such as Mixtral, and the objective that balances their load.

python experts.py train experts.toml --data.train corpora/mine

Each token is computed by the experts with its largest router probabilities, weighted by these (Jiang et al. 2024,
Mixtral, section 2.1); weights have the shapes of those of transformers' MixtralForCausalLM. Shapes: N tokens, D hidden
size, E experts, K experts of a token, F inner size of an expert.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hornbook import extend


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig(extend.DecoderConfig):
    """The options of hornbook's decoder, and those of the experts."""

    family: str = "experts"
    num_experts: int = extend.option(8, help="feed-forwards of a block", minimum=2)
    experts_per_token: int = extend.option(2, help="experts that compute a token", minimum=1)

    def description(self, vocab_size: int | None = None) -> extend.Description:
        """Return the decoder's description with experts instead of its feed-forward."""
        plain = super().description(vocab_size)
        size, inner, share = self.hidden_size, self.effective_feed_forward_size, self.experts_per_token
        shapes = {"gate_up": (2 * inner, size), "down": (size, inner)}
        experts = extend.OtherPart(
            name="feed_forward",
            layers=(
                *(
                    extend.TableLayer(
                        f"feed_forward.{name}", (self.num_experts, *shape), num_weights=share * math.prod(shape)
                    )
                    for name, shape in shapes.items()
                ),
                extend.LinearLayer("feed_forward.router", size, self.num_experts, bias=False),
            ),
            kept=share * (3 * size + 4 * inner),
            kept_fp32=4 * self.num_experts,
        )
        return replace(plain, block=replace(plain.block, parts=(plain.block.parts[0], experts)), splits=False)

    def problems(self) -> list[extend.Problem]:
        """List conflicting options."""
        problems = super().problems()
        if self.experts_per_token > self.num_experts:
            message = f"must be at most num_experts, which is {self.num_experts}; lower it"
            problems.append(extend.Problem(("experts_per_token", "num_experts"), message))
        if self.feed_forward != "gated" or self.linear_bias:
            message = 'experts are gated and have no biases: set feed_forward = "gated" and linear_bias = false'
            problems.append(extend.Problem(("feed_forward", "linear_bias"), message))
        return problems


class Experts(nn.Module):
    """``Σ over the chosen experts of share · down(silu(gate x) · up x)``, the shares being normalized.

    Attributes:
        balance: of the last forward pass: Σ over windows of ``E / K · Σ over experts of f · p``, f being the share
            of the window's tokens that an expert computes, and p its mean probability (DeepSeek-V3, equations 17 to
            20); 1 for each window if the load is balanced.
    """

    is_incremental = True

    def __init__(self, config: ExpertsConfig) -> None:
        super().__init__()
        size, inner, std = config.hidden_size, config.effective_feed_forward_size, config.initializer_std
        self.num_chosen, self.std, self.depth = config.experts_per_token, std, config.num_layers
        self.gate_up = nn.Parameter(torch.empty(config.num_experts, 2 * inner, size))
        self.down = nn.Parameter(torch.empty(config.num_experts, size, inner))
        self.router = extend.Linear(size, config.num_experts, std=std, bias=False)
        self.balance = torch.zeros(())

    def draw(self, draw: extend.Draw) -> None:
        """Initialize the experts; outputs are smaller in deeper models."""
        draw.normal(self.gate_up, "gate_up", self.std)
        draw.normal(self.down, "down", self.std / math.sqrt(2 * self.depth))

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Map ``[B, T, D]`` to ``[B, T, D]``."""
        x_ND = x_BTD.flatten(0, 1)
        p_BTE = self.router(x_BTD).float().softmax(-1)
        shares_NK, chosen_NK = p_BTE.flatten(0, 1).topk(self.num_chosen, -1)
        shares_NK = shares_NK / shares_NK.sum(-1, keepdim=True)
        y_ND = torch.zeros_like(x_ND)
        for expert, (gate_up, down) in enumerate(zip(self.gate_up, self.down, strict=True)):
            token, rank = (chosen_NK == expert).nonzero(as_tuple=True)
            gate, up = functional.linear(x_ND[token], gate_up.to(x_ND.dtype)).chunk(2, -1)
            change = functional.linear(functional.silu(gate) * up, down.to(x_ND.dtype))
            y_ND = y_ND.index_add(0, token, change * shares_NK[token, rank, None].to(x_ND.dtype))
        num_chosen_BE = functional.one_hot(chosen_NK, p_BTE.shape[-1]).sum(1).view_as(p_BTE).float().mean(1)
        self.balance = (num_chosen_BE * p_BTE.mean(1)).sum() * p_BTE.shape[-1] / self.num_chosen
        return y_ND.view_as(x_BTD)


@extend.build_model.register
def build_experts(config: ExpertsConfig, compute_dtype: torch.dtype) -> extend.LanguageModel:
    """Return the decoder with experts, its parameters not yet initialized."""
    model = extend.build_model.dispatch(extend.DecoderConfig)(config, compute_dtype)
    for block in model.blocks:
        block.feed_forward = Experts(config)
    experts = [block.feed_forward for block in model.blocks]
    model.head.experts = experts  # type: ignore[assignment]  # a list, so that these are not its modules
    return model


@dataclass(frozen=True, kw_only=True)
class BalancedConfig:
    """The options of ``[objective]``."""

    name: str = extend.option("balanced", help="training objective")
    balance_weight: float = extend.option(0.01, help="weight of the balance of the experts' load", minimum=0)


class Balanced:
    """Next-token prediction, and the balance of each window, by their own counts."""

    def __init__(self, config: BalancedConfig) -> None:
        self.weights: Mapping[str, float] = {"causal_lm": 1.0, "balance": config.balance_weight}

    def counts(self, batch: extend.Batch) -> dict[str, int]:
        """Count the scored tokens and the windows."""
        return {"causal_lm": int((batch["targets"] != extend.NOT_SCORED).sum()), "balance": len(batch["targets"])}

    def sums(self, head: Any, x_BTD: Tensor, batch: extend.Batch) -> dict[str, Tensor]:
        """Return the summed cross-entropy and the balances."""
        balances = [experts.balance for experts in getattr(head, "experts", ())]
        if not balances or any(balance.requires_grad != x_BTD.requires_grad for balance in balances):
            raise extend.UserError(
                "`objective.name=balanced` needs a model with experts, whole in memory; use causal_lm"
            )
        return {"causal_lm": head.cross_entropy(x_BTD, batch["targets"]), "balance": torch.stack(balances).mean()}


@extend.build_objective.register
def build_balanced(config: BalancedConfig) -> extend.Objective:
    """Return the objective."""
    return Balanced(config)


extend.register("model", "experts", ExpertsConfig)
extend.register("objective", "balanced", BalancedConfig)
if __name__ == "__main__":
    raise SystemExit(extend.main())
