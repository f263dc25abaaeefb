"""Classes of texts, by a fine-tuned encoder: logits, probabilities, the most likely class.

[CLS] call me ishmael . [SEP]  ->  logits of C classes  ->  softmax  ->  moby_dick 0.93, emma 0.04, ...
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hornbook.errors import HornbookError
from hornbook.generate.sequence_outputs import outputs_of
from hornbook.model import LanguageModel
from hornbook.model.forward import Forward, forward_resident
from hornbook.model.label_heads import ClassificationHead
from hornbook.samples.sequences import TokenSequence


@dataclass(frozen=True, kw_only=True)
class Classified:
    """The classes of one text.

    Attributes:
        probabilities: of the most likely classes, best first.
    """

    probabilities: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        """Return the most likely class, its probability, and those of all, rounded to six places."""
        rounded = {label: round(probability, 6) for label, probability in self.probabilities.items()}
        label, probability = next(iter(rounded.items()))
        return {"label": label, "probability": probability, "probabilities": rounded}


def class_logits(
    model: LanguageModel,
    sequences: Sequence[TokenSequence],
    *,
    batch_size: int,
    forward: Forward = forward_resident,
) -> Tensor:
    """Return the logits of each sequence's classes, fp32 ``[N, C]`` on the CPU; arguments as ``outputs_of``."""
    use = ClassificationHead.label_logits
    return torch.stack(outputs_of(model, sequences, use, batch_size=batch_size, forward=forward))


def most_likely(logits_NC: Tensor, labels: Sequence[str], top_k: int | None = None) -> list[Classified]:
    """Return the ``top_k`` most likely classes of each text, None for all; of equals the first.

    Raises:
        HornbookError: a logit is not finite.
    """
    if not bool(logits_NC.isfinite().all()):
        raise HornbookError("the model's logits are not finite; choose an earlier checkpoint, or compute in fp32")
    values_NC, numbers_NC = logits_NC.double().softmax(1).sort(dim=1, descending=True, stable=True)
    rows = zip(values_NC[:, :top_k].tolist(), numbers_NC[:, :top_k].tolist(), strict=True)
    return [
        Classified(probabilities={labels[number]: value for number, value in zip(numbers, values, strict=True)})
        for values, numbers in rows
    ]
