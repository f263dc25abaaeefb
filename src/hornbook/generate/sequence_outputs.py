"""Compute a model's outputs for token sequences of any length: one tensor per sequence, in the given order.

    sequences     [a b]  [c d e f g]  [h i j]
    by length     [c d e f g]  [h i j] | [a b]      batches of similar lengths have little padding
    outputs       [a b]  [c d e f g]  [h i j]

The longest sequences are computed first, so that running out of memory happens at once. A sequence's output does not
depend on its batch, up to the last bits of sums.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from hornbook.arrays import Int64s
from hornbook.errors import UserError
from hornbook.model import LanguageModel
from hornbook.model.head import sequence_indices
from hornbook.model.language_model import Forward, evaluation_mode, forward_resident
from hornbook.samples.batches import Batch
from hornbook.samples.layout import lay_out
from hornbook.samples.sequences import TokenSequence

_PADDING = 0
"""No token attends to padding, so any id works."""


def outputs_of(
    model: LanguageModel,
    sequences: Sequence[TokenSequence],
    use: Callable[[Any, Tensor, Batch], Tensor],
    *,
    batch_size: int,
    forward: Forward = forward_resident,
) -> list[Tensor]:
    """Return each sequence's row of the result of ``use``, on the CPU.

    Args:
        model: left in its current mode.
        sequences: at most ``max_positions`` tokens each, without masks.
        use: called with (head, x ``[B, T, D]``, batch), see ``LanguageModel``; returns ``[S, ...]``, one row for each
            sequence of the batch.
        batch_size: sequences per batch.
        forward: runs the model on a batch.
    """
    order = sorted(range(len(sequences)), key=lambda number: -len(sequences[number].tokens))
    takes_any_width = model.device.type == "cpu" and not model.is_causal
    rows = list[Tensor]()
    with evaluation_mode(model):
        for start in range(0, len(order), batch_size):
            chosen = [sequences[number] for number in order[start : start + batch_size]]
            batch = lay_out(
                chosen,
                width=len(chosen[0].tokens),
                layout="unpadded" if takes_any_width else "padded",
                pad_id=_PADDING,
            )
            rows += forward(model, batch, use).cpu()
    return [row for _, row in sorted(zip(order, rows, strict=True), key=lambda pair: pair[0])]


def refuse_ids(model: LanguageModel, ids: Int64s, name: str) -> None:
    """Raise UserError if the model cannot read a sequence.

    Args:
        model: the model.
        ids: int64[T].
        name: name of the sequence for the message.
    """
    if not 1 <= len(ids) <= model.max_positions:
        raise UserError(f"{name} has {len(ids)} tokens; expected 1 to {model.max_positions}, the model's positions")
    if unknown := ids[(ids < 0) | (ids >= model.num_ids)].tolist():
        raise UserError(f"{name} has id {unknown[0]}, but the model's vocabulary is 0 to {model.vocab_size - 1}")


def by_sequence(x_BTD: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the states of each sequence, ``[S, T, D]``, and a mask of those beyond its end, bool ``[S, T]``."""
    flat_ST, outside_ST = sequence_indices(batch, x_BTD.device)
    return x_BTD.flatten(0, 1)[flat_ST], outside_ST
