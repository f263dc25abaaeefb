"""What a model makes of token sequences of any length: one tensor a sequence, in the order in which they came.

    sequences     [a b]  [c d e f g]  [h i j]
    by length     [c d e f g]  [h i j] | [a b]      batches of like length hold hardly any padding
    outputs       [a b]  [c d e f g]  [h i j]

The longest sequences are computed first, so what does not fit into memory fails at once. A sequence's output does not
depend on the batch that it is computed in, up to the last bits of sums.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from hornbook.arrays import Int64s
from hornbook.errors import UserError
from hornbook.model import LanguageModel
from hornbook.model.forward import Forward, evaluation_mode, forward_resident
from hornbook.model.head import sequence_indices
from hornbook.samples.batches import Batch
from hornbook.samples.layout import lay_out
from hornbook.samples.sequences import TokenSequence

_PADDING = 0
"""No token attends to padding, so that any id will do."""


def outputs_of(
    model: LanguageModel,
    sequences: Sequence[TokenSequence],
    use: Callable[[Any, Tensor, Batch], Tensor],
    *,
    batch_size: int,
    forward: Forward = forward_resident,
) -> list[Tensor]:
    """Return the row of each sequence in what ``use`` returns, on the CPU.

    Args:
        model: left in the mode in which it came.
        sequences: of ``max_positions`` tokens at most; nothing in them is masked.
        use: called with (head, x ``[B, T, D]``, batch), see ``LanguageModel``; returns ``[S, ...]``, a row for each
            sequence of the batch.
        batch_size: sequences at a time.
        forward: takes a batch through the model.
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
    """Raise UserError for a sequence that the model cannot read.

    Args:
        model: what is to read it.
        ids: int64[T].
        name: of the sequence, for the message.
    """
    if not 1 <= len(ids) <= model.max_positions:
        raise UserError(f"{name} has {len(ids)} tokens; expected 1 to {model.max_positions}, the model's positions")
    if unknown := ids[(ids < 0) | (ids >= model.num_ids)].tolist():
        raise UserError(f"{name} has id {unknown[0]}, but the model's vocabulary is 0 to {model.vocab_size - 1}")


def by_sequence(x_BTD: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the states of each sequence, ``[S, T, D]``, and which of them are beyond its end, bool ``[S, T]``."""
    flat_ST, outside_ST = sequence_indices(batch, x_BTD.device)
    return x_BTD.flatten(0, 1)[flat_ST], outside_ST
