"""Classify texts with a fine-tuned model: logits, probabilities, the most likely class.

[CLS] call me ishmael . [SEP]  ->  logits of C classes  ->  softmax  ->  moby_dick 0.93, emma 0.04, ...
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from hornbook.config import ClassificationConfig, TunableConfig
from hornbook.errors import CheckpointError, HornbookError, UserError
from hornbook.exchange.restore import LoadedModel
from hornbook.generate.sequence_outputs import outputs_of
from hornbook.model import LanguageModel
from hornbook.model.language_model import Forward, forward_resident
from hornbook.samples.labelled_texts import listed
from hornbook.samples.sequences import TokenSequence


@dataclass(frozen=True, kw_only=True)
class Classified:
    """The predicted classes of one text.

    Attributes:
        probabilities: probability of each of the most likely classes, best first.
    """

    probabilities: dict[str, float]

    @property
    def label(self) -> str:
        """The most likely class."""
        return next(iter(self.probabilities))

    @property
    def probability(self) -> float:
        """The probability of the most likely class."""
        return self.probabilities[self.label]

    def as_json(self) -> dict[str, Any]:
        """Return the most likely class, its probability, and all probabilities, rounded to six places."""
        rounded = {label: round(probability, 6) for label, probability in self.probabilities.items()}
        return {"label": self.label, "probability": rounded[self.label], "probabilities": rounded}


def class_logits(
    model: LanguageModel,
    sequences: Sequence[TokenSequence],
    *,
    batch_size: int,
    forward: Forward = forward_resident,
) -> Tensor:
    """Return each sequence's logits, fp32 ``[N, C]`` on the CPU; see ``outputs_of`` for the arguments."""
    outputs = outputs_of(
        model, sequences, lambda head, x, batch: head.label_logits(x, batch), batch_size=batch_size, forward=forward
    )
    return torch.stack(outputs)


def most_likely(logits_NC: Tensor, labels: Sequence[str], top_k: int | None = None) -> list[Classified]:
    """Return the ``top_k`` most likely classes of each text, None for all; ties go to the first.

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


def class_names(loaded: LoadedModel, objective: ClassificationConfig) -> tuple[str, ...]:
    """Return the names of the classes, in order of their numbers.

    Raises:
        CheckpointError: the names do not match the model's classes, or are not distinct.
    """
    config, labels = loaded.recipe.model, objective.labels
    count = config.num_labels if isinstance(config, TunableConfig) else None
    if count != len(set(labels)) or count != len(labels):
        raise CheckpointError(
            f"{loaded.path} has {count} classes but the names {listed(labels) or 'of none'}; expected a name "
            "for each, all different: correct objective.labels of its recipe (id2label of a config.json)"
        )
    return labels


def refuse_without_labels(loaded: LoadedModel) -> NoReturn:
    """Raise UserError unless the model was fine-tuned on classes or spans."""
    writes = "continue texts" if loaded.model.is_causal else "fill masks"
    raise UserError(
        f"{loaded.path} was trained with {loaded.recipe.objective.name!r} and has no labels: fine-tune it "
        f"(docs/fine-tuning.md), or use `hornbook generate` to {writes}, `hornbook embed` for vectors of texts"
    )
