"""What a model is trained on: named terms, each a sum, a count and a weight.

    loss = Σ over terms of  weight · (sum over all scored items of the global batch) / (their count)

A count comes from the data alone, so it is known for the whole global batch, and reduced over ranks, before the first
backward pass. Then the loss does not depend on micro-batches, accumulation, ranks or padding, and terms with different
denominators (masked tokens, sentence pairs) sit side by side.
"""

from collections.abc import Mapping
from functools import singledispatch
from typing import Protocol

from torch import Tensor

from hornbook.config import CausalLMConfig
from hornbook.data.examples import NOT_SCORED
from hornbook.data.loader import Batch
from hornbook.model.head import TiedHead


class Objective(Protocol):
    """One way to train: how many items a batch scores, and what they cost."""

    weights: Mapping[str, float]
    """The weight of each term in the loss."""

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of scored items of each term, from the data alone."""

    def sums(self, head: TiedHead, x_BTD: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the sum of each term over its scored items: fp32 scalars with a gradient.

        Args:
            head: the model's head.
            x_BTD: hidden states that come out of the last block.
            batch: the micro-batch that they were made from.
        """


class CausalLM:
    """Predict each token from those before it: the term ``causal_lm``, in nats."""

    weights: Mapping[str, float] = {"causal_lm": 1.0}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Count the targets that are scored."""
        return {"causal_lm": int((batch["targets"] != NOT_SCORED).sum())}

    def sums(self, head: TiedHead, x_BTD: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the summed cross-entropy of the next tokens."""
        return {"causal_lm": head(x_BTD, batch["targets"])}


@singledispatch
def build_objective(config: object) -> Objective:
    """Return the objective of a recipe's ``[objective]`` section (``build_objective.register`` adds one)."""
    raise TypeError(f"no objective is registered for {type(config).__name__}")


@build_objective.register
def _(config: CausalLMConfig) -> CausalLM:
    return CausalLM()


def weighted_loss(sums: Mapping[str, Tensor], counts: Mapping[str, int], weights: Mapping[str, float]) -> Tensor:
    """Return ``Σ weight · sum / count``; a term that scores nothing anywhere contributes zero."""
    first, *others = (sums[name] * (weights[name] / max(counts[name], 1)) for name in weights)
    return sum(others, start=first)
