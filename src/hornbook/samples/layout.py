"""Batches for an encoder: sequences of different lengths, laid out in rows.

    sequences     aaaaa bb cccc        sequence_length T = 8

    padded        aaaaa...             a sequence a row
                  bb......
                  cccc....
    packed        aaaaabb.             as many in a row as fit: the longest first, each in the first row with room
                  cccc....
    unpadded      aaaaabbcccc          one row, no padding at all

The model keeps sequences apart in every layout, so the loss is the same; what differs is the work. Padding costs its
share of everything. Packed rows keep fixed widths, which GPUs and compilers like. Unpadded ones waste nothing, at the
price of a width that changes from batch to batch. ``choose_layout`` decides by the measured lengths.

A batch holds, as int64, for B rows of T places with S sequences and P predicted tokens:

    tokens, positions, segments, keys [B, T]    padding holds the padding's id and zeros; positions count in a sequence
    firsts, lengths, pair_labels [S]            place of each sequence's first token, counted over rows; its tokens
    predictions, targets [P]                    places of the masked tokens, and what they were

In padded and packed batches P is fixed, S times the most predictions, and filled up with targets of -100: shapes that
depend on the data alone would be compiled again and again.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch

from hornbook.arrays import Int64s
from hornbook.samples.batches import Batch
from hornbook.samples.sequences import TokenSequence
from hornbook.samples.windows import NOT_SCORED

Layout: TypeAlias = Literal["padded", "packed", "unpadded"]

_LITTLE_PADDING = 0.05


class Places(NamedTuple):
    """Where sequences lie.

    Attributes:
        firsts: int64[S], place of each sequence's first token, counted over rows.
        num_rows: B.
        width: T.
    """

    firsts: Int64s
    num_rows: int
    width: int


def lay_out(
    sequences: Sequence[TokenSequence],
    *,
    width: int,
    layout: Layout,
    pad_id: int,
    keys: Int64s | None = None,
    has_pairs: bool = False,
    num_predictions: int | None = None,
) -> Batch:
    """Make a batch of masked sequences.

    Args:
        sequences: S of them, of ``width`` tokens at most.
        width: T of padded and packed rows.
        layout: see above.
        pad_id: the token of padding.
        keys: int64[S, width] in [0, 2**32), by position in the sequence; None: nothing random happens.
        has_pairs: whether there are ``pair_labels``.
        num_predictions: P, filled up; None: as many as are masked.
    """
    lengths = np.array([len(sequence.tokens) for sequence in sequences], dtype=np.int64)
    places = place(lengths, width, layout)
    numbers = np.repeat(np.arange(len(lengths)), lengths)
    positions = np.arange(len(numbers)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    flat = places.firsts[numbers] + positions
    filled = {
        "tokens": (pad_id, np.concatenate([sequence.tokens for sequence in sequences])),
        "positions": (0, positions),
        "segments": (0, np.concatenate([sequence.segments for sequence in sequences])),
        "keys": (0, np.zeros_like(positions) if keys is None else keys[numbers, positions]),
    }
    arrays = {name: _scattered(values, flat, fill, places) for name, (fill, values) in filled.items()}
    arrays |= {"firsts": places.firsts, "lengths": lengths} | _predictions(sequences, places.firsts, num_predictions)
    if has_pairs:
        arrays["pair_labels"] = np.array([sequence.pair_label for sequence in sequences], dtype=np.int64)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def place(lengths: Int64s, width: int, layout: Layout) -> Places:
    """Return where sequences of these lengths (each 1 to ``width``) lie: a pure function of the lengths' order."""
    if layout == "unpadded":
        return Places(np.cumsum(lengths) - lengths, 1, int(lengths.sum()))
    if layout == "padded":
        return Places(np.arange(len(lengths), dtype=np.int64) * width, len(lengths), width)
    firsts, used = np.zeros(len(lengths), dtype=np.int64), list[int]()
    for number in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[number])
        row = next((row for row, taken in enumerate(used) if taken + length <= width), len(used))
        used += [0] * (row == len(used))
        firsts[number] = row * width + used[row]
        used[row] += length
    return Places(firsts, len(used), width)


def choose_layout(
    mean: float, sequence_length: int, *, on_cpu: bool, asked: Layout | Literal["auto"] = "auto"
) -> Layout:
    """The layout for sequences of a ``mean`` length: a CPU takes any width, others want rows of one width.

    ``asked`` is what a recipe says, and decides unless it leaves it open.
    """
    if asked != "auto":
        return asked
    if 1.0 - mean / sequence_length < _LITTLE_PADDING:
        return "padded"
    return "unpadded" if on_cpu else "packed"


def _scattered(values: Int64s, flat: Int64s, fill: int, places: Places) -> Int64s:
    array = np.full(places.num_rows * places.width, fill, dtype=np.int64)
    array[flat] = values
    return array.reshape(places.num_rows, places.width)


def _predictions(sequences: Sequence[TokenSequence], firsts: Int64s, fixed: int | None) -> dict[str, Int64s]:
    found = [(s.positions, s.labels) for s in sequences if s.positions is not None and s.labels is not None]
    predictions = np.concatenate([first + positions for first, (positions, _) in zip(firsts, found, strict=True)])
    targets = np.concatenate([labels for _, labels in found])
    missing = 0 if fixed is None else fixed - len(targets)
    return {
        "predictions": np.pad(predictions, (0, missing)),
        "targets": np.pad(targets, (0, missing), constant_values=NOT_SCORED),
    }
