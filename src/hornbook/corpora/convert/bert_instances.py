"""BERT's training instances, whatever file they are in: two segments of text, masked, with what was under the masks.

    tokens     [CLS] the [MASK] sat [SEP] on the [MASK] [SEP]        segments    0 0 0 0 0 1 1 1 1
    positions  2 7      labels  cat mat                              next_sentence_label  0

    plain TFRecord       tokens and segments padded to sequence_length; positions and labels to max_predictions
    remasked TFRecord    the masked tokens first, in slots 0 .. max_predictions - 1, the others behind them
    Arrow                labels at their places in the sequence, -100 elsewhere

The formats hold the same instance, so each converts to each other; what one of them lacks has to be given.
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
    """One instance, without its padding.

    Attributes:
        tokens: [num_tokens], ids as the model sees them, masks and replacements in place.
        segments: [num_tokens], 0 in the first sentence, 1 in the second.
        positions: [num_predictions], where a token is to be predicted, in rising order.
        labels: [num_predictions], the ids to be predicted there.
        next_sentence_label: 0, the second sentence follows the first; 1, it is another document's.
    """

    tokens: Integers
    segments: Integers
    positions: Integers
    labels: Integers
    next_sentence_label: int

    def equals(self, other: "Instance") -> bool:
        """Tell whether all five are the same."""
        return self.next_sentence_label == other.next_sentence_label and all(
            np.array_equal(a, b) for a, b in zip(self[:4], other[:4], strict=True)
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Instances:
    """The instances of some files, in their order; each iteration reads them again.

    Attributes:
        files: the files that they are from.
        read: begins an iteration; what it gives is sound by ``check_instance``.
        sequence_length: the length that each is padded to, the same for all.
        max_predictions: the number of predictions that each is padded to; None where the format has no such padding.
    """

    files: tuple[str, ...]
    read: Callable[[], Iterator[Instance]] = field(repr=False)
    sequence_length: int
    max_predictions: int | None = None

    def __iter__(self) -> Iterator[Instance]:
        return self.read()


def check_instance(instance: Instance, where: str) -> Instance:
    """Return the instance if its parts fit together. Raises DataError, which begins with ``where``."""
    tokens, segments, positions, labels, label = instance
    if len(tokens) != len(segments):
        problem = f"{len(tokens)} tokens and {len(segments)} segments"
    elif len(positions) != len(labels):
        problem = f"{len(positions)} positions and {len(labels)} labels"
    elif not (_within(tokens, 2**31) and _within(labels, 2**31)):
        problem = "a token or label that is no token id (0 to 2147483647)"
    elif not _within(segments, MOST_SEGMENTS):
        problem = f"a segment outside 0 to {MOST_SEGMENTS - 1}"
    elif not _within(positions, len(tokens)) or not (np.diff(positions.astype(np.int64)) > 0).all():
        problem = f"positions that do not rise within its {len(tokens)} tokens"
    elif label not in (0, 1):
        problem = f"the next-sentence label {label}; expected 0 or 1"
    else:
        return instance
    raise DataError(f"{where} has {problem}")


def unpadded(values: Integers, length: int, what: str, where: str) -> Integers:
    """The first ``length`` values, once all others are known to be 0. Raises DataError if one is not."""
    if values[length:].any():
        raise DataError(f"{where}: its {what} go on where its padding begins, at {length}")
    return values[:length]


def length_of_mask(mask: NDArray[Any], what: str, where: str) -> int:
    """Return how many ones a mask begins with. Raises DataError unless all others are zeros."""
    length = int(np.count_nonzero(mask))
    if (mask[:length] != 1).any():
        raise DataError(f"{where}: its {what} are not ones followed by zeros")
    return length


def padded(values: Integers, length: int) -> Int64s:
    """The values, followed by zeros up to ``length``."""
    result = np.zeros(length, dtype=np.int64)
    result[: len(values)] = values
    return result


def resized(instances: Instances, sequence_length: int | None, max_predictions: int | None) -> Instances:
    """Return the instances with other padding, None for the same. Iterating raises UserError if one is too large."""
    target = replace(
        instances,
        sequence_length=sequence_length or instances.sequence_length,
        max_predictions=max_predictions or instances.max_predictions,
    )

    def read() -> Iterator[Instance]:
        for number, instance in enumerate(instances):
            for what, found, most, option in (
                ("tokens", len(instance.tokens), target.sequence_length, "--sequence-length"),
                ("predictions", len(instance.positions), target.max_predictions, "--max-predictions"),
            ):
                if most is not None and found > most:
                    raise UserError(
                        f"instance {number} has {found} {what}; expected {most} at most: give a larger {option}"
                    )
            yield instance

    return replace(target, read=read)


def _within(values: Integers, end: int) -> bool:
    return not values.size or (int(values.min()) >= 0 and int(values.max()) < end)
