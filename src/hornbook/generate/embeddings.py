"""Embeddings: one vector for each text, made of a model's last hidden states.

    "Call me Ishmael."  ->  [CLS] call me ishmael . [SEP]  ->  x_TD  ->  mean over T  ->  vector of D numbers

The hidden states are those of transformers' ``last_hidden_state``: after the final norm of models that have one. The
special tokens around a text count in ``mean`` and ``max``, as in sentence-transformers. A decoder's text has none.
"""

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from hornbook.arrays import Int64s, Integers
from hornbook.errors import HornbookError, UserError
from hornbook.generate.sequence_outputs import outputs_of
from hornbook.model import LanguageModel
from hornbook.model.forward import Forward, forward_resident
from hornbook.model.head import OutputHead, at_places, sequence_places
from hornbook.samples.batches import Batch
from hornbook.samples.labelled_texts import num_special
from hornbook.samples.sequences import TokenSequence, framed
from hornbook.text.tokenizer import Tokenizer

Pooling: TypeAlias = Literal["mean", "cls", "max", "last"]


def embed_ids(
    model: LanguageModel,
    sequences: Sequence[Sequence[int] | Integers],
    *,
    pooling: Pooling = "mean",
    normalize: bool = False,
    batch_size: int = 16,
    forward: Forward = forward_resident,
) -> NDArray[np.float32]:
    """Return one vector for each sequence of token ids, float32 ``[N, D]``, in their order.

    Args:
        model: an encoder or a decoder; left in the mode in which it came.
        sequences: ids as the model reads them, special tokens included; see ``ids_of_texts``.
        pooling: mean or max over all tokens; of an encoder also ``cls``, its first token; of a decoder also ``last``,
            its last token, the only one that has seen all others.
        normalize: scale each vector to length 1.
        batch_size: sequences at a time.
        forward: takes a batch through the model.

    Raises:
        UserError: the model has no such token, or a sequence is empty, too long, or has an id that the model does not
            know.
        HornbookError: a hidden state is not finite.
    """
    refuse_pooling(model, pooling)
    arrays = [np.asarray(ids, dtype=np.int64) for ids in sequences]
    for number, ids in enumerate(arrays, 1):
        _refuse_sequence(model, ids, f"sequence {number}")
    if not arrays:
        return np.zeros((0, model.embedding.tokens.shape[1]), dtype=np.float32)
    whole = [TokenSequence(ids, np.zeros_like(ids)).unscored() for ids in arrays]
    vectors_ND = torch.stack(outputs_of(model, whole, _POOLED[pooling], batch_size=batch_size, forward=forward))
    if not bool(vectors_ND.isfinite().all()):
        raise HornbookError(
            "the model's hidden states are not finite; choose an earlier checkpoint, or compute in fp32"
        )
    vectors: NDArray[np.float32] = (functional.normalize(vectors_ND, dim=1) if normalize else vectors_ND).numpy()
    return vectors


def ids_of_texts(model: LanguageModel, tokenizer: Tokenizer, texts: Sequence[str], length: int) -> list[Int64s]:
    """Return the ids by which a model reads texts: ``[CLS] text [SEP]`` for an encoder, the text alone for a decoder.

    Args:
        model: what reads them.
        tokenizer: the model's.
        texts: with at least one token each.
        length: tokens at most, special tokens included; a longer text is truncated at its end.

    Raises:
        UserError: the tokenizer has no [CLS] and [SEP] although the model is an encoder, or ``length`` has no room for
            a token.
    """
    ids = tokenizer.encode_batch(texts)
    if model.is_causal:
        return [text[:length].astype(np.int64) for text in ids]
    special, room = tokenizer.require_masking(), length - num_special(tokenizer, pair=False)
    if room < 1:
        raise UserError(f"{length} tokens have no room for [CLS], a text and [SEP]; allow 3 tokens or more")
    return [framed(text[:room], special).tokens for text in ids]


def refuse_pooling(model: LanguageModel, pooling: Pooling) -> None:
    """Raise UserError for a token that a model of this kind does not have."""
    if pooling == "cls" and model.is_causal:
        raise UserError("a decoder has no [CLS], whose place sees all tokens; pool by last, mean or max")
    if pooling == "last" and not model.is_causal:
        raise UserError("the last token of an encoder is [SEP]; pool by cls, mean or max")


def _refuse_sequence(model: LanguageModel, ids: Int64s, name: str) -> None:
    if not 1 <= len(ids) <= model.max_positions:
        raise UserError(f"{name} has {len(ids)} tokens; expected 1 to {model.max_positions}, the model's positions")
    if ids.min() < 0 or ids.max() >= model.vocab_size:
        raise UserError(f"{name} has an id outside the model's vocabulary, 0 to {model.vocab_size - 1}")


def _mean(head: OutputHead, x_BTD: Tensor, batch: Batch) -> Tensor:
    x_STD, outside_ST = _by_sequence(head, x_BTD, batch)
    sums_SD = x_STD.masked_fill(outside_ST[..., None], 0.0).sum(1)
    return sums_SD / (~outside_ST).sum(1, keepdim=True)


def _max(head: OutputHead, x_BTD: Tensor, batch: Batch) -> Tensor:
    x_STD, outside_ST = _by_sequence(head, x_BTD, batch)
    return x_STD.masked_fill(outside_ST[..., None], -torch.inf).amax(1)


def _first(head: OutputHead, x_BTD: Tensor, batch: Batch) -> Tensor:
    return head.first_tokens(x_BTD, batch["firsts"]).float()


def _last(head: OutputHead, x_BTD: Tensor, batch: Batch) -> Tensor:
    last_SD: Tensor = head.norm(at_places(x_BTD, batch["firsts"] + batch["lengths"] - 1)).float()
    return last_SD


def _by_sequence(head: OutputHead, x_BTD: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the hidden states of each sequence, fp32 ``[S, T, D]``, and which of them are beyond its end."""
    flat_ST, outside_ST = sequence_places(batch, x_BTD.device)
    return head.norm(x_BTD).flatten(0, 1)[flat_ST].float(), outside_ST


_POOLED: dict[Pooling, Callable[[OutputHead, Tensor, Batch], Tensor]] = {
    "mean": _mean,
    "cls": _first,
    "max": _max,
    "last": _last,
}
