"""What a model is trained on: named terms, each a sum, a count and a weight.

    loss = Σ over terms of  weight · (sum over all scored items of the global batch) / (their count)

A count comes from the data alone, so it is known for the whole global batch, and reduced over ranks, before the first
backward pass. Then the loss does not depend on micro-batches, accumulation, ranks or padding, and terms with different
denominators (masked tokens, sentence pairs) sit side by side. A term of weight 0 is only looked at: an accuracy is the
sum of what was right, divided by the count.
"""

from collections.abc import Callable, Mapping
from functools import singledispatch
from typing import Any, Protocol

import torch
from torch import Tensor

from hornbook.config import CausalLMConfig, ClassificationConfig, MaskedLMConfig, PretrainingConfig, SpanConfig
from hornbook.errors import UserError
from hornbook.samples.batches import Batch, size_of
from hornbook.samples.windows import NOT_SCORED


class Objective(Protocol):
    """One way to train: how many items a batch scores, and what they cost."""

    weights: Mapping[str, float]
    """The weight of each term in the loss; the first term is what tokens and bits per byte are counted by."""

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of scored items of each term, from the data alone."""

    def sums(self, head: Any, x_BTD: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the sum of each term over its scored items: fp32 scalars, with a gradient where there is a weight.

        Args:
            head: the model's head.
            x_BTD: hidden states that come out of the last block.
            batch: the micro-batch that they were made from.
        """


class CausalLM:
    """Predict each token from those before it: the term ``causal_lm``, in nats."""

    weights: Mapping[str, float] = {"causal_lm": 1.0}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Count the targets that are scored, which are a decoder's tokens that count."""
        return {"causal_lm": size_of(batch).tokens}

    def sums(self, head: Any, x_BTD: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the summed cross-entropy of the next tokens."""
        return {"causal_lm": head.cross_entropy(x_BTD, batch["targets"])}


class RecurrenceWeightedLM(CausalLM):
    """The same, a token's loss divided by how often the token is a target in its window: ``recurrence_weighted``.

    ::

        targets  the cat and the dog
        weights  1/2 1   1   1/2 1        loss = Σ weight · nats / number of targets

    The loss without weights, ``causal_lm``, is reported beside it, and tokens and bits per byte are counted by that.
    """

    weights: Mapping[str, float] = {"causal_lm": 0.0, "recurrence_weighted": 1.0}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Count the targets that are scored, for both terms."""
        return dict.fromkeys(self.weights, super().counts(batch)["causal_lm"])

    def sums(self, head: Any, x_BTD: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the summed cross-entropy of the next tokens, without and with weights."""
        weights_BT = recurrence_weights(batch["targets"])
        weighted, unweighted = head.weighted_cross_entropy(x_BTD, batch["targets"], weights_BT)
        return {"causal_lm": unweighted, "recurrence_weighted": weighted}


def recurrence_weights(targets_BT: Tensor) -> Tensor:
    """Return 1 / the number of times that each target occurs in its row, ``[B, T]`` fp32."""
    sorted_BT = targets_BT.sort(-1).values
    ends_BT = torch.searchsorted(sorted_BT, targets_BT, right=True)
    return (ends_BT - torch.searchsorted(sorted_BT, targets_BT)).float().reciprocal()


class MaskedLM:
    """Predict the tokens under the masks (Devlin et al. 2019): ``mlm`` in nats, and the share that is right."""

    weights: Mapping[str, float] = {"mlm": 1.0, "mlm_accuracy": 0.0}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Count the masked tokens."""
        return dict.fromkeys(("mlm", "mlm_accuracy"), _num_scored(batch["targets"]))

    def sums(self, head: Any, x_BTD: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the summed cross-entropy of the masked tokens and how many are predicted right."""
        loss, num_correct = head.predict(x_BTD, batch["predictions"], batch["targets"])
        return {"mlm": loss, "mlm_accuracy": num_correct}


class Pretraining(MaskedLM):
    """BERT's two tasks: masked tokens, and whether the second text follows the first (``nsp``), each with its mean."""

    weights: Mapping[str, float] = {"mlm": 1.0, "nsp": 1.0, "mlm_accuracy": 0.0, "nsp_accuracy": 0.0}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Count the masked tokens, and the pairs."""
        pairs = dict.fromkeys(("nsp", "nsp_accuracy"), _num_scored(batch["pair_labels"]))
        return super().counts(batch) | pairs

    def sums(self, head: Any, x_BTD: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the sums of both tasks, and how many predictions of each are right."""
        loss, num_correct = head.relate(x_BTD, batch["firsts"], batch["pair_labels"])
        return super().sums(head, x_BTD, batch) | {"nsp": loss, "nsp_accuracy": num_correct}


class Classification:
    """Tell the classes of sequences: ``classification`` in nats, and the share that is right."""

    weights: Mapping[str, float] = {"classification": 1.0, "accuracy": 0.0}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Count the sequences that have a label."""
        return dict.fromkeys(self.weights, _num_scored(batch["labels"]))

    def sums(self, head: Any, x_BTD: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the summed cross-entropy and how many classes are right."""
        loss, num_correct = head.classify(x_BTD, batch)
        return {"classification": loss, "accuracy": num_correct}


class SpanPrediction:
    """Find spans of tokens: ``span`` in nats, the mean over beginning and end, and the share of which both are right.

    It counts windows; whole questions are counted by the task ``span`` of `hornbook.evaluate`.
    """

    weights: Mapping[str, float] = {"span": 1.0, "accuracy": 0.0}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Count the windows that have a label."""
        return dict.fromkeys(self.weights, _num_scored(batch["labels"][:, 0]))

    def sums(self, head: Any, x_BTD: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the summed cross-entropy and how many spans are right."""
        loss, num_correct = head.locate(x_BTD, batch)
        return {"span": loss, "accuracy": num_correct}


OBJECTIVES: dict[type, Callable[[Any], Objective]] = {
    CausalLMConfig: lambda config: RecurrenceWeightedLM() if config.recurrence_weights else CausalLM(),
    MaskedLMConfig: lambda _: MaskedLM(),
    PretrainingConfig: lambda _: Pretraining(),
    ClassificationConfig: lambda _: Classification(),
    SpanConfig: lambda _: SpanPrediction(),
}
"""The builder of each config dataclass."""


@singledispatch
def build_objective(config: object) -> Objective:
    """Return the objective of a recipe's ``[objective]`` section (``build_objective.register`` adds one).

    Raises:
        UserError: nothing is registered for this dataclass.
    """
    name = type(config).__name__
    raise UserError(f"there is no objective for {name}: register a function for it with build_objective.register")


for _config, _builder in OBJECTIVES.items():
    build_objective.register(_config, _builder)


def weighted_loss(sums: Mapping[str, Tensor], counts: Mapping[str, int], weights: Mapping[str, float]) -> Tensor:
    """Return ``Σ weight · sum / count``; a term that scores nothing anywhere contributes zero."""
    first, *others = (sums[name] * (weights[name] / max(counts[name], 1)) for name in weights)
    return sum(others, start=first)


def _num_scored(targets: Tensor) -> int:
    return int((targets != NOT_SCORED).sum())
