"""Classification: how many texts are classified correctly, overall and by class.

{"text": "...", "label": "moby_dick"}  ->  logits of 7 classes  ->  accuracy, macro-F1, nats
                                           argmax                ->  confusion matrix, precision and recall by class
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional

from hornbook.arrays import Int64s
from hornbook.config import ClassificationConfig
from hornbook.evaluate.tasks import Row, Table, TaskInput
from hornbook.generate.classes import class_logits, class_names
from hornbook.samples.batches import spread_evenly
from hornbook.samples.labelled_texts import encode_examples, label_numbers, read_examples
from hornbook.samples.sequences import TokenSequence
from hornbook.wording import counted


@dataclass(frozen=True, kw_only=True)
class Answered:
    """A file's sequences with their class numbers, int64[N]."""

    sequences: list[TokenSequence]
    labels: Int64s
    classes: tuple[str, ...]
    path: str


def read(given: TaskInput) -> Answered:
    """Return the examples of the task's file, or of the run's validation file.

    Raises:
        UserError, DataError: the model is not a classifier, no file is named or known, or it is malformed.
        CheckpointError: the names of the classes are not those of the head.
    """
    objective = given.require_objective(ClassificationConfig, "cannot classify texts")
    path = given.labelled_data()
    classes = class_names(given.loaded, objective)
    everything = read_examples(path, objective)
    examples = [everything[number] for number in spread_evenly(len(everything), given.max_sequences).tolist()]
    labels = label_numbers(examples, classes)
    is_causal = given.loaded.model.is_causal
    sequences, _ = encode_examples(examples, given.require_tokenizer(), given.window_length, is_causal=is_causal)
    return Answered(sequences=sequences, labels=labels, classes=classes, path=path)


def classification(given: TaskInput) -> list[Row]:
    """Score a labeled file.

    Raises:
        UserError, DataError: see `read`.
    """
    answered = read(given)
    logits_NC = class_logits(
        given.loaded.model, answered.sequences, batch_size=given.micro_batch_size, forward=given.forward
    )
    labels, classes = torch.from_numpy(answered.labels), answered.classes
    confusion_CC = confusion(answered.labels, logits_NC.argmax(1).numpy(), len(classes))
    figures = class_figures(confusion_CC)
    shared = f"{counted(len(labels), 'text')} of {len(classes)} classes, cut to {given.window_length} tokens"
    return [
        Row(
            metric="accuracy",
            value=float(np.trace(confusion_CC) / len(labels)),
            convention=f"share of texts whose most likely class is correct; {shared}",
            table=Table(
                title="confusion matrix: label by row, predicted class by column",
                columns=("", *classes),
                rows=[(label, *counts) for label, counts in zip(classes, confusion_CC.tolist(), strict=True)],
            ),
        ),
        Row(
            metric="macro_f1",
            value=macro_f1(figures),
            convention="unweighted mean of the F1 of the classes that occur or are predicted, as scikit-learn's",
            table=Table(
                title="by class",
                columns=("class", *ClassFigures._fields),
                rows=[(label, *each) for label, each in zip(classes, figures, strict=True)],
            ),
        ),
        Row(
            metric="cross_entropy",
            value=float(functional.cross_entropy(logits_NC, labels)),
            convention="mean nats of the correct class",
        ),
    ]


class ClassFigures(NamedTuple):
    """The metrics of one class; a share of nothing is 0, as in scikit-learn.

    Attributes:
        precision: share of correct ones among the texts predicted as this class.
        recall: share of correct ones among the texts with this label.
        f1: harmonic mean of precision and recall.
        support: number of texts with this label.
        predicted: number of texts predicted as this class.
    """

    precision: float
    recall: float
    f1: float
    support: int
    predicted: int


def confusion(labels: Int64s, predicted: Int64s, num_classes: int) -> Int64s:
    """Return the confusion matrix, int64 ``[C, C]``: labels by row, predicted classes by column."""
    counts = np.bincount(labels * num_classes + predicted, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


def class_figures(confusion_CC: Int64s) -> list[ClassFigures]:
    """Return the metrics of each class."""
    counts = zip(
        confusion_CC.diagonal().tolist(), confusion_CC.sum(1).tolist(), confusion_CC.sum(0).tolist(), strict=True
    )
    return [
        ClassFigures(
            precision=correct / max(predicted, 1),
            recall=correct / max(support, 1),
            f1=2 * correct / max(support + predicted, 1),
            support=support,
            predicted=predicted,
        )
        for correct, support, predicted in counts
    ]


def macro_f1(figures: Sequence[ClassFigures]) -> float:
    """Return the mean F1 of the classes that occur or are predicted."""
    return float(np.mean([each.f1 for each in figures if each.support or each.predicted]))
