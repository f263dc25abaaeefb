"""From what a caller gives through the model: ids, batches, one pass each, results without padding.

encode(loaded, "The cat")  ->  [50256, 464, 3797]
ids_of(loaded, given)      ->  [int64[T], ...]                 checked
apply(loaded, given, logits, batch_size=8)  ->  [fp32 [T, V], ...]
held_out_of(loaded, ids, labels)            ->  what `hornbook.evaluate.validation.validate` scores
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias, cast

import numpy as np
from torch import Tensor

from hornbook.api.inputs import Given, read_inputs
from hornbook.arrays import Int64s
from hornbook.errors import UserError
from hornbook.exchange.restore import LoadedModel
from hornbook.model.encoder_head import EncoderHead
from hornbook.model.forward import evaluation_mode, forward_resident
from hornbook.model.label_heads import ClassificationHead, SpanHead
from hornbook.samples.batches import Batch, HeldOut
from hornbook.samples.given import GivenMasked, GivenTokens, decoder_batch, encoder_batch
from hornbook.samples.masked_copies import MaskedCopies
from hornbook.samples.sequences import TokenSequence, framed
from hornbook.samples.windows import NOT_SCORED

Use: TypeAlias = Callable[[Any, Tensor, Batch], Tensor]
"""What is made of the head, the hidden states ``[B, T, D]`` and the batch: a row for each sequence."""


def encode(loaded: LoadedModel, text: str, *, has_start: bool = True) -> list[int]:
    """Return the ids of a text as the model saw texts in training; see `hornbook.Model.encode`.

    Args:
        loaded: the model.
        text: any text.
        has_start: whether a decoder's text may begin with the end-of-text token.

    Raises:
        UserError: the text is no Unicode.
        CheckpointError: the model has no tokenizer.
    """
    tokenizer = loaded.require_tokenizer()
    if not loaded.model.is_causal:
        sequence = framed(tokenizer.encode_with_mask(text), tokenizer.require_masking())
        return cast("list[int]", sequence.tokens.tolist())
    start = tokenizer.end_of_text_id if has_start and loaded.has_start_token else None
    return [*([] if start is None else [start]), *tokenizer.encode(text)]


def ids_of(loaded: LoadedModel, given: Given, *, most: int | None = None, has_start: bool = True) -> list[Int64s]:
    """Return the ids of what was given, encoded where it is text.

    Args:
        loaded: the model.
        given: texts or ids.
        most: only so many of a sequence count, the last ones; None: all of them.
        has_start: as for `encode`.

    Raises:
        UserError: a sequence is longer than the model's positions, or has an id that is not in the vocabulary.
        CheckpointError: the model has no tokenizer, and there is text.
    """
    positions, vocab_size = loaded.model.max_positions, loaded.model.vocab_size
    found = []
    for number, item in enumerate(given.items, 1):
        name = f"sequence {number}" if len(given.items) > 1 else "the sequence"
        ids = item if not isinstance(item, str) else np.array(encode(loaded, item, has_start=has_start), dtype=np.int64)
        if not len(ids):
            raise UserError(f"{name} has no tokens; expected one or more")
        if most is None and len(ids) > positions:
            raise UserError(f"{name} has {len(ids)} tokens, but the model has {positions} positions; shorten it")
        if unknown := ids[(ids < 0) | (ids >= vocab_size)].tolist():
            raise UserError(f"{name} has id {unknown[0]}, but the model's vocabulary is 0 to {vocab_size - 1}")
        found.append(ids)
    return found


def apply(loaded: LoadedModel, given: Given, use: Use, *, batch_size: int, has_start: bool = True) -> list[Tensor]:
    """Return what ``use`` makes of each sequence, in evaluation mode and without padding.

    Raises:
        UserError, CheckpointError: as `ids_of`, or the batch size is out of range.
    """
    refuse_below_one(batch_size=batch_size)
    ids, model, results = ids_of(loaded, given, has_start=has_start), loaded.model, list[Tensor]()
    for start in range(0, len(ids), batch_size):
        part = ids[start : start + batch_size]
        batch = decoder_batch(part) if model.is_causal else encoder_batch([_one_segment(one) for one in part])
        with evaluation_mode(model):
            rows = forward_resident(model, batch, use)
        results += [row[: len(one)] if row.dim() > 1 else row for row, one in zip(rows, part, strict=True)]
    return results


def logits(head: Any, x_BTD: Tensor, batch: Batch) -> Tensor:
    """Return fp32 ``[B, T, V]``; of fine-tuned heads ``[B, C]`` or ``[B, T, 2]``."""
    if isinstance(head, ClassificationHead):
        return head.label_logits(x_BTD, batch)
    if isinstance(head, SpanHead):
        return head.span_logits(x_BTD, batch)
    return cast(Tensor, head.logits(x_BTD))


def hidden_states(head: Any, x_BTD: Tensor, batch: Batch) -> Tensor:
    """Return the hidden states behind the final norm, fp32 ``[B, T, D]``."""
    return cast(Tensor, head.norm(x_BTD).float())


def pooling_of(loaded: LoadedModel, name: str) -> Callable[[Tensor], Tensor]:
    """Return what makes a vector ``[D]`` of a sequence's hidden states ``[T, D]``; see `hornbook.Model.embed`.

    Raises:
        UserError: there is no such pooling for this kind of model.
    """
    known = [other for other in _POOLINGS if other != ("cls" if loaded.model.is_causal else "last")]
    if name not in known:
        kind = "a decoder" if loaded.model.is_causal else "an encoder"
        raise UserError(f"pooling is {name!r}; expected one of {', '.join(known)} for {kind}")
    return _POOLINGS[name]


_POOLINGS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "mean": lambda states_TD: states_TD.mean(0),
    "cls": lambda states_TD: states_TD[0],
    "max": lambda states_TD: states_TD.amax(0),
    "last": lambda states_TD: states_TD[-1],
    "none": lambda states_TD: states_TD,
}


def held_out_of(loaded: LoadedModel, ids: list[Int64s], labels: object) -> HeldOut:
    """Return sequences with what is scored in them; see `hornbook.Model.loss`.

    Raises:
        UserError: the labels do not fit, or the model predicts no tokens.
        CheckpointError: an encoder has no tokenizer, and there are no labels.
    """
    if loaded.model.is_causal:
        if labels is not None:
            raise UserError("labels are for encoders; a decoder's targets are the ids themselves; remove them")
        return GivenTokens(ids)
    if not isinstance(loaded.model.head, EncoderHead):
        raise UserError(
            f"{loaded.path} was fine-tuned and predicts no tokens; score it with `hornbook evaluate`, or load the "
            "model that it was made from"
        )
    sequences = [_one_segment(one) for one in ids]
    if labels is None:
        return MaskedCopies(sequences, loaded.require_tokenizer().require_masking(), "padded")
    wanted = [np.asarray(item) for item in read_inputs(labels).items]
    if [item.shape for item in wanted] != [one.shape for one in ids]:
        raise UserError("the labels do not have the lengths of the sequences; give one for each id, -100 for none")
    return GivenMasked(
        [_labelled(one, labels_T, loaded.model.vocab_size) for one, labels_T in zip(sequences, wanted, strict=True)]
    )


def refuse_below_one(**values: int | None) -> None:
    """Raise UserError for a number below one; None passes."""
    for name, value in values.items():
        if value is not None and value < 1:
            raise UserError(f"{name} is {value}; expected 1 or more")


def _labelled(sequence: TokenSequence, labels_T: Int64s, vocab_size: int) -> TokenSequence:
    places = np.flatnonzero(labels_T != NOT_SCORED)
    labels = labels_T[places]
    if unknown := labels[(labels < 0) | (labels >= vocab_size)].tolist():
        raise UserError(f"label {unknown[0]} is not in the vocabulary, 0 to {vocab_size - 1}; -100 is for none")
    return sequence._replace(positions=places, labels=labels)


def _one_segment(ids: Int64s) -> TokenSequence:
    return TokenSequence(ids, np.zeros_like(ids))
