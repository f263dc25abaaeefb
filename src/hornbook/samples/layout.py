"""Lay out sequences of different lengths in the rows of an encoder's batch.

    sequences     aaaaa bb cccc        sequence_length T = 8

    padded        aaaaa...             one sequence per row
                  bb......
                  cccc....
    packed        aaaaabb.             as many per row as fit: longest first, each into the first row with room
                  cccc....
    unpadded      aaaaabbcccc          one row, no padding at all

The model keeps sequences apart in every layout, so the loss is the same; the layouts differ in cost. Padding is
computed like tokens. Packed rows keep fixed widths, which GPUs and compilers prefer. Unpadded rows waste nothing, but
their width changes from batch to batch. ``choose_layout`` decides by the measured lengths.

A batch holds, as int64, for B rows of T positions with S sequences and P predicted tokens:

    tokens, positions, segments, keys [B, T]    padding is the padding token and zeros; positions restart per sequence
    firsts, lengths, pair_labels [S]            index of each sequence's first token in the flattened rows; its length
    predictions, targets [P]                    flat indices of the masked tokens, and their original tokens

In padded and packed batches P is fixed at S times the most predictions per sequence and filled up with targets of -100:
shapes that depend on the data would cause recompilation.
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


class Placement(NamedTuple):
    """The positions of sequences in the rows of a batch.

    Attributes:
        firsts: int64[S], index of each sequence's first token in the flattened rows.
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
    """Return a batch of masked sequences.

    Args:
        sequences: S of them, of ``width`` tokens at most.
        width: T of padded and packed rows.
        layout: see the module.
        pad_id: the padding token.
        keys: int64[S, width] in [0, 2**32), by position in the sequence; None for zeros.
        has_pairs: whether to add ``pair_labels``.
        num_predictions: P, filled up; None for the number of masked tokens.
    """
    lengths = np.array([len(sequence.tokens) for sequence in sequences], dtype=np.int64)
    placement = place_sequences(lengths, width, layout)
    numbers = np.repeat(np.arange(len(lengths)), lengths)
    positions = np.arange(len(numbers)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    flat = placement.firsts[numbers] + positions
    filled = {
        "tokens": (pad_id, np.concatenate([sequence.tokens for sequence in sequences])),
        "positions": (0, positions),
        "segments": (0, np.concatenate([sequence.segments for sequence in sequences])),
        "keys": (0, np.zeros_like(positions) if keys is None else keys[numbers, positions]),
    }
    arrays = {}
    for name, (fill, values) in filled.items():
        row = np.full(placement.num_rows * placement.width, fill, dtype=np.int64)
        row[flat] = values
        arrays[name] = row.reshape(placement.num_rows, placement.width)
    arrays |= {"firsts": placement.firsts, "lengths": lengths} | _predictions(
        sequences, placement.firsts, num_predictions
    )
    if has_pairs:
        arrays["pair_labels"] = np.array([sequence.pair_label for sequence in sequences], dtype=np.int64)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def place_sequences(lengths: Int64s, width: int, layout: Layout) -> Placement:
    """Return the placement of sequences with these lengths (each 1 to ``width``), a pure function of them."""
    if layout == "unpadded":
        return Placement(np.cumsum(lengths) - lengths, 1, int(lengths.sum()))
    if layout == "padded":
        return Placement(np.arange(len(lengths), dtype=np.int64) * width, len(lengths), width)
    firsts, used = np.zeros(len(lengths), dtype=np.int64), list[int]()
    for number in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[number])
        row = next((row for row, taken in enumerate(used) if taken + length <= width), len(used))
        used += [0] * (row == len(used))
        firsts[number] = row * width + used[row]
        used[row] += length
    return Placement(firsts, len(used), width)


def choose_layout(
    mean: float, sequence_length: int, *, on_cpu: bool, asked: Layout | Literal["auto"] = "auto"
) -> Layout:
    """Return the layout for sequences of a ``mean`` length: a CPU takes any width, other devices prefer a fixed width.

    ``asked`` is the recipe's ``data.layout``; anything but "auto" decides.
    """
    if asked != "auto":
        return asked
    if 1.0 - mean / sequence_length < _LITTLE_PADDING:
        return "padded"
    return "unpadded" if on_cpu else "packed"


def _predictions(sequences: Sequence[TokenSequence], firsts: Int64s, fixed: int | None) -> dict[str, Int64s]:
    found = [(s.positions, s.labels) for s in sequences if s.positions is not None and s.labels is not None]
    predictions = np.concatenate([first + positions for first, (positions, _) in zip(firsts, found, strict=True)])
    targets = np.concatenate([labels for _, labels in found])
    missing = 0 if fixed is None else fixed - len(targets)
    return {
        "predictions": np.pad(predictions, (0, missing)),
        "targets": np.pad(targets, (0, missing), constant_values=NOT_SCORED),
    }
