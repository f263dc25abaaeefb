"""Embed texts: one vector per text, pooled from a model's last hidden states.

    "Call me Ishmael."  ->  [CLS] call me ishmael . [SEP]  ->  x_TD  ->  mean over T  ->  vector of D numbers

The hidden states are transformers' ``last_hidden_state``, after the final norm of models that have one. ``mean`` and
``max`` include the special tokens around a text, as in sentence-transformers. A decoder's text has none.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from hornbook.arrays import Int64s, Integers
from hornbook.errors import HornbookError, UserError
from hornbook.generate.sequence_outputs import by_sequence, outputs_of, refuse_ids
from hornbook.model import LanguageModel
from hornbook.model.head import OutputHead
from hornbook.model.language_model import Forward, forward_resident
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
    """Return one vector for each sequence of token ids, float32 ``[N, D]``, in order.

    Args:
        model: an encoder or a decoder; left in its current mode.
        sequences: ids including special tokens; see ``ids_of_texts``.
        pooling: mean or max over all tokens; for an encoder also ``cls``, its first token; for a decoder also ``last``,
            its last token, the only one that attends to all others.
        normalize: scale each vector to length 1.
        batch_size: sequences per batch.
        forward: runs the model on a batch.

    Raises:
        UserError: the model has no such pooling, or a sequence is empty, too long or has an id outside the vocabulary.
        HornbookError: a hidden state is not finite.
    """
    refuse_pooling(model, pooling)
    arrays = [np.asarray(ids, dtype=np.int64) for ids in sequences]
    for number, ids in enumerate(arrays, 1):
        refuse_ids(model, ids, f"sequence {number}")
    if not arrays:
        return np.zeros((0, model.hidden_size), dtype=np.float32)
    whole = [TokenSequence(ids, np.zeros_like(ids)).unscored() for ids in arrays]
    vectors_ND = torch.stack(outputs_of(model, whole, _POOLED[pooling], batch_size=batch_size, forward=forward))
    if not bool(vectors_ND.isfinite().all()):
        raise HornbookError(
            "the model's hidden states are not finite; choose an earlier checkpoint, or compute in fp32"
        )
    vectors: NDArray[np.float32] = (functional.normalize(vectors_ND, dim=1) if normalize else vectors_ND).numpy()
    return vectors


class TextIds(NamedTuple):
    """The ids of texts, and how many of the texts were truncated."""

    ids: list[Int64s]
    num_truncated: int


def ids_of_texts(model: LanguageModel, tokenizer: Tokenizer, texts: Sequence[str], length: int) -> TextIds:
    """Return the ids of texts for a model: ``[CLS] text [SEP]`` for an encoder, the text alone for a decoder.

    Args:
        model: the model that reads the ids.
        tokenizer: the model's tokenizer.
        texts: texts of at least one token each; the names of special tokens in them are text, as in training.
        length: the most tokens, including special tokens; a longer text is truncated at its end.

    Raises:
        UserError: the model is an encoder but the tokenizer has no [CLS] and [SEP], or ``length`` has no room for a
            token.
    """
    ids = tokenizer.encode_batch(texts)
    if model.is_causal:
        return TextIds([text[:length].astype(np.int64) for text in ids], sum(len(text) > length for text in ids))
    special, room = tokenizer.require_masking(), length - num_special(tokenizer, pair=False)
    if room < 1:
        raise UserError(f"{length} tokens are too few for [CLS], a text and [SEP]; allow at least 3")
    return TextIds([framed(text[:room], special).tokens for text in ids], sum(len(text) > room for text in ids))


def refuse_pooling(model: LanguageModel, pooling: Pooling) -> None:
    """Raise UserError unless this kind of model has the pooling."""
    kind, absent = ("a decoder", "cls") if model.is_causal else ("an encoder", "last")
    known = [name for name in get_args(Pooling) if name != absent]
    if pooling not in known:
        raise UserError(f"`pooling={pooling!r}` is not for {kind}; expected one of {', '.join(known)}")


def hidden_states(head: OutputHead, x_BTD: Tensor, batch: Batch) -> Tensor:
    """Return the normed hidden states of each sequence, fp32 ``[S, T, D]``, undefined beyond its end."""
    states_STD: Tensor = by_sequence(head.norm(x_BTD), batch)[0].float()
    return states_STD


def _mean(head: OutputHead, x_BTD: Tensor, batch: Batch) -> Tensor:
    x_STD, outside_ST = by_sequence(head.norm(x_BTD).float(), batch)
    sums_SD = x_STD.masked_fill(outside_ST[..., None], 0.0).sum(1)
    return sums_SD / (~outside_ST).sum(1, keepdim=True)


def _max(head: OutputHead, x_BTD: Tensor, batch: Batch) -> Tensor:
    x_STD, outside_ST = by_sequence(head.norm(x_BTD).float(), batch)
    return x_STD.masked_fill(outside_ST[..., None], -torch.inf).amax(1)


_POOLED: dict[Pooling, Callable[[OutputHead, Tensor, Batch], Tensor]] = {
    "mean": _mean,
    "cls": lambda head, x_BTD, batch: head.first_tokens(x_BTD, batch["firsts"]).float(),
    "max": _max,
    "last": lambda head, x_BTD, batch: head.last_tokens(x_BTD, batch).float(),
}
