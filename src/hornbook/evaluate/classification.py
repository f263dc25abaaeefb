"""Classes of texts: how many are right, and how well each class is told from the others.

{"text": "...", "label": "moby_dick"}  ->  logits of 7 classes  ->  the largest  ->  accuracy, macro-F1, nats
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from hornbook.config import ClassificationConfig
from hornbook.evaluate.labelled_scores import data_of, laid_out, objective_of
from hornbook.evaluate.tasks import Row, TaskInput
from hornbook.model.label_heads import ClassificationHead
from hornbook.samples.batches import spread_evenly
from hornbook.samples.labelled_texts import encode_examples, label_numbers, read_examples
from hornbook.samples.sequences import TokenSequence
from hornbook.wording import counted


@dataclass(frozen=True, kw_only=True)
class Answered:
    """A file's sequences and the numbers of their classes, int64[N]."""

    sequences: list[TokenSequence]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    path: str


def read(given: TaskInput) -> Answered:
    """Return the examples of the task's file, or of the run's validation file.

    Raises:
        UserError, DataError: the model is no classifier, no file is named or known, or it is malformed.
    """
    objective = objective_of(given, ClassificationConfig, "tells no classes")
    path = data_of(given)
    everything = read_examples(path, objective)
    examples = [everything[number] for number in spread_evenly(len(everything), given.max_sequences).tolist()]
    labels = label_numbers(examples, objective.labels)
    sequences = encode_examples(examples, given.require_tokenizer(), given.window_length)
    return Answered(sequences=sequences, labels=labels, classes=objective.labels, path=path)


def classification(given: TaskInput) -> list[Row]:
    """Score a labelled file.

    Raises:
        UserError, DataError: as `read`.
    """
    answered = read(given)
    logits_NC = class_logits(given, answered.sequences)
    labels = torch.from_numpy(answered.labels)
    predicted = logits_NC.argmax(1).numpy()
    accuracy = float((predicted == answered.labels).mean())
    f1 = macro_f1(answered.labels, predicted)
    nats = float(functional.cross_entropy(logits_NC, labels))
    shared = f"{counted(len(labels), 'text')} of {len(answered.classes)} classes, cut to {given.window_length} tokens"
    return [
        Row(
            metric="accuracy", value=accuracy, convention=f"share of texts whose most likely class is correct; {shared}"
        ),
        Row(
            metric="macro_f1",
            value=f1,
            convention="unweighted mean of the F1 of the classes that occur or are predicted, as scikit-learn's",
        ),
        Row(metric="cross_entropy", value=nats, convention="mean nats of the right class"),
    ]


def class_logits(given: TaskInput, sequences: list[TokenSequence]) -> torch.Tensor:
    """Return fp32 ``[N, C]`` on the CPU, a row a sequence."""
    model, batches = given.loaded.model, laid_out(given, sequences)
    return torch.cat([given.forward(model, batch, ClassificationHead.label_logits).cpu() for batch in batches])


def macro_f1(labels: NDArray[np.int64], predicted: NDArray[np.int64]) -> float:
    """Return the mean over all classes in either of 2 · right ÷ (labelled so + predicted so)."""
    classes = np.union1d(labels, predicted)
    right = [np.count_nonzero((labels == number) & (predicted == number)) for number in classes]
    said = [np.count_nonzero(labels == number) + np.count_nonzero(predicted == number) for number in classes]
    return float(np.mean(2 * np.array(right) / np.array(said)))
