"""BERT's training instances, independent of the file format: two masked segments of text with their labels.

    tokens     [CLS] the [MASK] sat [SEP] on the [MASK] [SEP]        segments    0 0 0 0 0 1 1 1 1
    positions  2 7      labels  cat mat                              next_sentence_label  0

    plain TFRecord       tokens and segments padded to sequence_length; positions and labels to max_predictions
    remasked TFRecord    masked tokens first, in slots 0 to max_predictions - 1, followed by the others
    Arrow                labels at their positions in the sequence, -100 elsewhere

The formats represent the same instance, so each converts to the others; what one of them lacks is an option.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hornbook.arrays import Int64s, Integers
from hornbook.errors import DataError, UserError

MOST_SEGMENTS = 128


class Instance(NamedTuple):
    """An instance without padding.

    Attributes:
        tokens: [num_tokens], the input ids, with masks and replacements.
        segments: [num_tokens], 0 in the first sentence, 1 in the second.
        positions: [num_predictions], the positions of the tokens to predict, in increasing order.
        labels: [num_predictions], the ids to predict there.
        next_sentence_label: 0 if the second sentence follows the first; 1 if it is from another document.
    """

    tokens: Integers
    segments: Integers
    positions: Integers
    labels: Integers
    next_sentence_label: int

    def equals(self, other: "Instance") -> bool:
        """Return whether all fields are equal."""
        return self.next_sentence_label == other.next_sentence_label and all(
            np.array_equal(a, b) for a, b in zip(self[:4], other[:4], strict=True)
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Instances:
    """The instances of some files, in order; each iteration reads them again.

    Attributes:
        files: the names of the files.
        read: starts an iteration; its instances have passed ``check_instance``.
        sequence_length: the length that all instances are padded to.
        max_predictions: the number of predictions that all are padded to; None if the format does not pad them.
    """

    files: tuple[str, ...]
    read: Callable[[], Iterator[Instance]] = field(repr=False)
    sequence_length: int
    max_predictions: int | None = None

    def __iter__(self) -> Iterator[Instance]:
        return self.read()


def check_instance(instance: Instance, where: str) -> Instance:
    """Return the instance unchanged. Raises DataError, with ``where`` as prefix, if its fields are inconsistent."""
    tokens, segments, positions, labels, label = instance
    if len(tokens) != len(segments):
        problem = f"{len(tokens)} tokens and {len(segments)} segments"
    elif len(positions) != len(labels):
        problem = f"{len(positions)} positions and {len(labels)} labels"
    elif not (_within(tokens, 2**31) and _within(labels, 2**31)):
        problem = "a token or label that is not a token id (0 to 2147483647)"
    elif not _within(segments, MOST_SEGMENTS):
        problem = f"a segment outside 0 to {MOST_SEGMENTS - 1}"
    elif not _within(positions, len(tokens)) or not (np.diff(positions.astype(np.int64)) > 0).all():
        problem = f"positions that are not increasing within its {len(tokens)} tokens"
    elif label not in (0, 1):
        problem = f"the next-sentence label {label}; expected 0 or 1"
    else:
        return instance
    raise DataError(f"{where} has {problem}; the file is damaged")


def unpadded(values: Integers, length: int, what: str, where: str) -> Integers:
    """Return the first ``length`` values. Raises DataError unless all others are 0."""
    if values[length:].any():
        raise DataError(f"{where}: {what} has values in the padding, which begins at {length}; the file is damaged")
    return values[:length]


def length_of_mask(mask: NDArray[Any], what: str, where: str) -> int:
    """Return the number of ones at the start of a mask. Raises DataError unless all other values are zeros."""
    length = int(np.count_nonzero(mask))
    if (mask[:length] != 1).any():
        raise DataError(f"{where}: {what} is not ones followed by zeros; the file is damaged")
    return length


def padded(values: Integers, length: int) -> Int64s:
    """Return the values, padded with zeros to ``length``."""
    result = np.zeros(length, dtype=np.int64)
    result[: len(values)] = values
    return result


def resized(instances: Instances, sequence_length: int | None, max_predictions: int | None) -> Instances:
    """Return the instances with other padding; None keeps it. Iteration raises UserError if an instance is too long."""
    target = replace(
        instances,
        sequence_length=sequence_length or instances.sequence_length,
        max_predictions=max_predictions or instances.max_predictions,
    )

    def read() -> Iterator[Instance]:
        for number, instance in enumerate(instances):
            for what, found, most, option in (
                ("tokens", len(instance.tokens), target.sequence_length, "`sequence_length`"),
                ("predictions", len(instance.positions), target.max_predictions, "`max_predictions`"),
            ):
                if most is not None and found > most:
                    raise UserError(f"instance {number} has {found} {what}; expected at most {most}: increase {option}")
            yield instance

    return replace(target, read=read)


def _within(values: Integers, end: int) -> bool:
    return not values.size or (int(values.min()) >= 0 and int(values.max()) < end)
