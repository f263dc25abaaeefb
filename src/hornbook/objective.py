"""Training objectives: each has named terms with a sum, a count and a weight.

    loss = Σ over terms of  weight · (sum over all scored items of the global batch) / (their count)

Counts depend only on the data, so they are known for the whole global batch, and reduced over ranks, before the first
backward pass. So the loss does not depend on micro-batches, gradient accumulation, ranks or padding, and terms can have
different denominators (masked tokens, sentence pairs). A term of weight 0 is a metric: an accuracy is the number of
correct predictions divided by the count.
"""

from collections.abc import Callable, Mapping
from functools import singledispatch
from typing import Any, Protocol

import torch
from torch import Tensor

from hornbook.config import CausalLMConfig, ClassificationConfig, MaskedLMConfig, PretrainingConfig, SpanConfig
from hornbook.errors import UserError
from hornbook.samples.batches import Batch
from hornbook.samples.windows import NOT_SCORED


class Objective(Protocol):
    """The loss of a model on a batch: the number of scored items and their summed loss, by term."""

    weights: Mapping[str, float]
    """The weight of each term in the loss; the first term determines token counts and bits per byte."""

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of scored items of each term, from the data alone."""

    def sums(self, head: Any, x_BTD: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the sum of each term over its scored items: fp32 scalars, with a gradient if the weight is not 0.

        Args:
            head: the model's head.
            x_BTD: hidden states of the last block.
            batch: the micro-batch.
        """


class CausalLM:
    """Next-token prediction: the term ``causal_lm``, in nats."""

    weights: Mapping[str, float] = {"causal_lm": 1.0}

    def counts(self, batch: Batch) -> dict[str, int]:
        return dict.fromkeys(self.weights, int((batch["targets"] != NOT_SCORED).sum()))

    def sums(self, head: Any, x_BTD: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {"causal_lm": head.cross_entropy(x_BTD, batch["targets"])}


class RegularizedLM(CausalLM):
    """Next-token prediction with a z-loss, the term ``z_loss``: the mean of ``(log Σ exp logits)²``.

    Args:
        weight: of the z-loss, whose gradient is part of that of ``causal_lm``.
    """

    def __init__(self, weight: float) -> None:
        self.weights = {"causal_lm": 1.0, "z_loss": weight}

    def sums(self, head: Any, x_BTD: Tensor, batch: Batch) -> dict[str, Tensor]:
        sums = head.regularized_cross_entropy(x_BTD, batch["targets"], z_weight=self.weights["z_loss"])
        return dict(zip(self.weights, sums, strict=True))


class RecurrenceWeightedLM(CausalLM):
    """Next-token prediction with each target's loss divided by its number of occurrences in the window.

    ::

        targets  the cat and the dog
        weights  1/2 1   1   1/2 1        loss = Σ weight · nats / number of targets

    The terms are ``recurrence_weighted`` and, for token counts and bits per byte, the unweighted ``causal_lm``.
    """

    weights: Mapping[str, float] = {"causal_lm": 0.0, "recurrence_weighted": 1.0}

    def sums(self, head: Any, x_BTD: Tensor, batch: Batch) -> dict[str, Tensor]:
        weights_BT = recurrence_weights(batch["targets"])
        weighted, unweighted = head.regularized_cross_entropy(x_BTD, batch["targets"], weights_BT=weights_BT)
        return {"causal_lm": unweighted, "recurrence_weighted": weighted}


def recurrence_weights(targets_BT: Tensor) -> Tensor:
    """Return 1 / the number of occurrences of each target in its row, ``[B, T]`` fp32."""
    sorted_BT = targets_BT.sort(-1).values
    ends_BT = torch.searchsorted(sorted_BT, targets_BT, right=True)
    return (ends_BT - torch.searchsorted(sorted_BT, targets_BT)).float().reciprocal()


class MaskedLM:
    """Masked language modeling (Devlin et al. 2019): the terms ``mlm``, in nats, and ``mlm_accuracy``."""

    weights: Mapping[str, float] = {"mlm": 1.0, "mlm_accuracy": 0.0}

    def counts(self, batch: Batch) -> dict[str, int]:
        return dict.fromkeys(("mlm", "mlm_accuracy"), int((batch["targets"] != NOT_SCORED).sum()))

    def sums(self, head: Any, x_BTD: Tensor, batch: Batch) -> dict[str, Tensor]:
        loss, num_correct = head.predict(x_BTD, batch["predictions"], batch["targets"])
        return {"mlm": loss, "mlm_accuracy": num_correct}


class Pretraining(MaskedLM):
    """BERT's pre-training: masked language modeling and next-sentence prediction (``nsp``), each with its own mean."""

    weights: Mapping[str, float] = {"mlm": 1.0, "nsp": 1.0, "mlm_accuracy": 0.0, "nsp_accuracy": 0.0}

    def counts(self, batch: Batch) -> dict[str, int]:
        pairs = dict.fromkeys(("nsp", "nsp_accuracy"), int((batch["pair_labels"] != NOT_SCORED).sum()))
        return super().counts(batch) | pairs

    def sums(self, head: Any, x_BTD: Tensor, batch: Batch) -> dict[str, Tensor]:
        loss, num_correct = head.relate(x_BTD, batch["firsts"], batch["pair_labels"])
        return super().sums(head, x_BTD, batch) | {"nsp": loss, "nsp_accuracy": num_correct}


class Classification:
    """Sequence classification: the terms ``classification``, in nats, and ``accuracy``."""

    weights: Mapping[str, float] = {"classification": 1.0, "accuracy": 0.0}

    def counts(self, batch: Batch) -> dict[str, int]:
        return dict.fromkeys(self.weights, int((batch["labels"] != NOT_SCORED).sum()))

    def sums(self, head: Any, x_BTD: Tensor, batch: Batch) -> dict[str, Tensor]:
        loss, num_correct = head.classify(x_BTD, batch)
        return {"classification": loss, "accuracy": num_correct}


class SpanPrediction:
    """Span prediction: ``span``, the mean cross-entropy of start and end in nats, and ``accuracy``, both being correct.

    The items are windows; the task ``span`` of `hornbook.evaluate` scores whole questions.
    """

    weights: Mapping[str, float] = {"span": 1.0, "accuracy": 0.0}

    def counts(self, batch: Batch) -> dict[str, int]:
        return dict.fromkeys(self.weights, int((batch["labels"][:, 0] != NOT_SCORED).sum()))

    def sums(self, head: Any, x_BTD: Tensor, batch: Batch) -> dict[str, Tensor]:
        loss, num_correct = head.locate(x_BTD, batch)
        return {"span": loss, "accuracy": num_correct}


OBJECTIVES: dict[type, Callable[[Any], Objective]] = {
    CausalLMConfig: lambda config: (
        RecurrenceWeightedLM()
        if config.recurrence_weights
        else RegularizedLM(config.z_loss)
        if config.z_loss
        else CausalLM()
    ),
    MaskedLMConfig: lambda _: MaskedLM(),
    PretrainingConfig: lambda _: Pretraining(),
    ClassificationConfig: lambda _: Classification(),
    SpanConfig: lambda _: SpanPrediction(),
}
"""The builder of each config dataclass."""


@singledispatch
def build_objective(config: object) -> Objective:
    """Return the objective for a recipe's ``[objective]`` section; ``build_objective.register`` adds one.

    Raises:
        UserError: nothing is registered for this dataclass.
    """
    name = type(config).__name__
    raise UserError(f"there is no objective for {name}: register a function for it with build_objective.register")


for _config, _builder in OBJECTIVES.items():
    build_objective.register(_config, _builder)


def weighted_loss(sums: Mapping[str, Tensor], counts: Mapping[str, int], weights: Mapping[str, float]) -> Tensor:
    """Return ``Σ weight · sum / count``; a term whose count is 0 contributes zero."""
    first, *others = (sums[name] * (weights[name] / max(counts[name], 1)) for name in weights)
    return sum(others, start=first)
