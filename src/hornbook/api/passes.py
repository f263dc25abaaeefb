"""Encode inputs, run the model on them in batches, and return results without padding.

encode(loaded, "The cat")  ->  [50256, 464, 3797]
ids_of(loaded, given)      ->  [int64[T], ...]                 checked
apply(loaded, given, logits, batch_size=8)  ->  [fp32 [T, V], ...]
held_out_of(loaded, ids, labels)            ->  input of `hornbook.engine.validation.validate`
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hornbook.arrays import Int64s
from hornbook.config import ClassificationConfig, SpanConfig
from hornbook.errors import UserError
from hornbook.evaluate import TaskInput
from hornbook.exchange.restore import LoadedModel
from hornbook.generate.answers import FoundAnswer, by_question, find_answers
from hornbook.generate.classes import Classified, class_logits, class_names, most_likely, refuse_without_labels
from hornbook.generate.embeddings import ids_of_texts
from hornbook.generate.sequence_outputs import by_sequence, outputs_of, refuse_ids
from hornbook.model import LanguageModel
from hornbook.model.head import EncoderHead
from hornbook.model.label_heads import ClassificationHead, SpanHead
from hornbook.samples.batches import Batch, HeldOut
from hornbook.samples.given import GivenMasked, GivenTokens, MaskedCopies
from hornbook.samples.labelled_texts import Example, encode_examples, truncation_warning
from hornbook.samples.sequences import TokenSequence, framed
from hornbook.samples.squad import Question, make_windows
from hornbook.samples.windows import NOT_SCORED

One: TypeAlias = str | list[int] | tuple[int, ...] | Tensor | NDArray[np.integer[Any]]
"""A text or ids; tensors and arrays of ids may be ``[B, T]``."""
Several: TypeAlias = list[str] | list[list[int]] | list[Tensor]
"""A list of texts, or of sequences of ids."""

_EXPECTED = "expected a text, a list of ids, a list of either, or a tensor of ids"


@dataclass(frozen=True, kw_only=True)
class Given:
    """Texts or sequences of ids, and the form in which they were given, which is that of the results.

    ::

        "The cat"   [464, 3797]   tensor([464, 3797])        one       -> one result
        ["The cat", "A dog"]      [[464, 3797], [32]]        a list    -> a list with a result for each entry
        tensor([[464, 3797], [32, 3290]])                    a batch   -> one tensor of stacked results

    The sequences of a list may differ in length, so their results are not stacked. The trade-off: an empty list is an
    error, since it could mean an empty sequence or no sequences.
    """

    items: list[str | Int64s]
    form: Literal["one", "list", "stack"]

    def texts(self) -> list[str]:
        """Return the texts; an empty list for ids.

        Raises:
            UserError: the input mixes texts and ids.
        """
        texts = [item for item in self.items if isinstance(item, str)]
        if texts and len(texts) < len(self.items):
            raise UserError(f"the input mixes texts and ids; {_EXPECTED}")
        return texts

    def shaped(self, results: list[Tensor]) -> Any:
        """Return the results of the items in the form of the input."""
        if self.form == "list":
            return results
        return results[0] if self.form == "one" else torch.stack(results)


def read_inputs(inputs: object) -> Given:
    """Return the texts or ids of an input, and its form.

    Raises:
        UserError: the input is neither text nor ids, or is empty.
    """
    if isinstance(inputs, Tensor | np.ndarray) and inputs.ndim == 2:
        return Given(items=[_item(row) for row in _rows(inputs)], form="stack")
    is_several = isinstance(inputs, Sequence) and not isinstance(inputs, str | bytes | bytearray | memoryview)
    if not is_several or _is_number(cast("Sequence[object]", inputs)[:1]):
        return Given(items=[_item(inputs)], form="one")
    return Given(items=[_item(entry) for entry in _rows(inputs)], form="list")


def _rows(inputs: Any) -> list[Any]:
    if not len(inputs):
        raise UserError(f"the input is empty; {_EXPECTED}")
    return list(inputs)


def _is_number(first: Any) -> bool:
    return len(first) == 1 and isinstance(first[0], int | np.integer)


def _item(entry: Any) -> str | Int64s:
    """Return a text unchanged, and ids as int64[T]."""
    if isinstance(entry, str):
        return entry
    if isinstance(entry, bytes | bytearray | memoryview):
        raise UserError(f"the input has bytes; {_EXPECTED}; decode the bytes, as in text.decode()")
    if not isinstance(entry, Tensor | np.ndarray | Sequence):
        raise UserError(f"the input is of type {type(entry).__name__}; {_EXPECTED}")
    ids = np.asarray(entry.detach().cpu() if isinstance(entry, Tensor) else entry)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise UserError(f"the input has ids of {ids.dtype} in {ids.ndim} dimensions; {_EXPECTED}")
    if not ids.size:
        raise UserError("a sequence of ids is empty; expected one id or more")
    return ids.astype(np.int64)


_logger = logging.getLogger("hornbook.api")

Use: TypeAlias = Callable[[Any, Tensor, Batch], Tensor]
"""Called with the head, the hidden states ``[B, T, D]`` and the batch; returns a row for each of its S sequences."""


class EmbedOptions(TypedDict, total=False):
    """The options of `hornbook.Model.embed`; see there."""

    normalize: bool
    batch_size: int
    window: int | None


class PredictOptions(TypedDict, total=False):
    """The options of `hornbook.Model.predict`; see there."""

    top_k: int | None
    batch_size: int
    window: int | None


def encode(loaded: LoadedModel, text: str) -> list[int]:
    """Return the ids of a text, encoded as in training; see `hornbook.Model.encode`.

    Args:
        loaded: the model.
        text: any text.

    Raises:
        UserError: the text is not a string, or not valid Unicode.
        CheckpointError: the model has no tokenizer.
    """
    tokenizer = loaded.require_tokenizer()
    if not loaded.model.is_causal:
        sequence = framed(tokenizer.encode_with_mask(text), tokenizer.require_masking())
        return cast("list[int]", sequence.tokens.tolist())
    start = tokenizer.end_of_text_id if loaded.has_start_token else None
    return [*([] if start is None else [start]), *tokenizer.encode(text)]


def ids_of(loaded: LoadedModel, given: Given, *, most: int | None = None) -> list[Int64s]:
    """Return the ids of the input; texts are encoded.

    Args:
        loaded: the model.
        given: texts or ids.
        most: truncate sequences to their last ``most`` ids; None: a sequence that exceeds the model's positions is an
            error.

    Raises:
        UserError: a sequence exceeds the model's positions, or has an id that is not in the vocabulary.
        CheckpointError: the input has texts, and the model no tokenizer.
    """
    encoded = (
        np.array(encode(loaded, item), dtype=np.int64) if isinstance(item, str) else item for item in given.items
    )
    return _checked(loaded.model, [ids[-(most or 0) :] for ids in encoded])


def ids_to_embed(loaded: LoadedModel, given: Given, window: int | None) -> list[Int64s]:
    """Return the ids of the input as ``hornbook embed`` computes them; a warning counts truncated texts.

    Args:
        loaded: the model.
        given: texts or ids.
        window: truncate texts to ``window`` ids at their end; None: the training sequence length. A sequence of ids
            that exceeds the model's positions is an error.

    Raises:
        UserError, CheckpointError: as for ``ids_of``; or ``window`` exceeds the model's positions.
    """
    texts = [item for item in given.items if isinstance(item, str)]
    encoded: Iterator[Int64s] = iter(())
    if texts:
        task = TaskInput(loaded=loaded, window=window)
        length = task.window_length
        ids, num_truncated = ids_of_texts(loaded.model, task.require_tokenizer(), texts, length)
        encoded = iter(ids)
        if num_truncated:
            _logger.warning(truncation_warning(num_truncated, len(texts), length, done="embedded"))
    return _checked(loaded.model, [next(encoded) if isinstance(item, str) else item for item in given.items])


def _checked(model: LanguageModel, sequences: list[Int64s]) -> list[Int64s]:
    for number, ids in enumerate(sequences, 1):
        refuse_ids(model, ids, f"sequence {number}" if len(sequences) > 1 else "the sequence")
    return sequences


def apply(model: LanguageModel, ids: list[Int64s], use: Use, *, batch_size: int) -> list[Tensor]:
    """Return the result of ``use`` for each sequence, without padding, on the model's device; see ``outputs_of``."""
    sequences = [_one_segment(one).unscored() for one in ids]
    rows = outputs_of(model, sequences, use, batch_size=batch_size)
    return [(row[: len(one)] if row.dim() > 1 else row).to(model.device) for row, one in zip(rows, ids, strict=True)]


def logits(head: Any, x_BTD: Tensor, batch: Batch) -> Tensor:
    """Return the logits in fp32: ``[S, T, V]``, or ``[S, C]`` or ``[S, T, 2]`` of fine-tuned heads."""
    if isinstance(head, ClassificationHead):
        return head.label_logits(x_BTD, batch)
    if isinstance(head, SpanHead):
        return head.span_logits(x_BTD, batch)
    return cast(Tensor, head.logits(by_sequence(x_BTD, batch)[0]))


def predict(
    loaded: LoadedModel,
    texts: list[str],
    second_texts: list[str],
    *,
    top_k: int | None,
    batch_size: int,
    window: int | None,
) -> list[Classified] | list[FoundAnswer]:
    """Return the classes of texts or pairs, or the answers to questions; see `hornbook.Model.predict`."""
    given, objective = TaskInput(loaded=loaded, window=window), loaded.recipe.objective
    if not isinstance(objective, ClassificationConfig | SpanConfig):
        refuse_without_labels(loaded)
    needs_pairs = isinstance(objective, SpanConfig) or objective.second_text is not None
    if len(second_texts) != (len(texts) if needs_pairs else 0):
        expected = "one for each text" if needs_pairs else "none, since the model classifies single texts"
        raise UserError(f"{len(texts)} texts have {len(second_texts)} second texts; expected {expected}")
    for text in (*texts, *second_texts):
        if not isinstance(text, str) or not text.strip():
            raise UserError(f"the input {text!r:.40} is blank or not a string; expected texts")
    if not texts:
        return []
    tokenizer, length = given.require_tokenizer(), given.window_length
    seconds: list[str] | list[None] = second_texts or [None] * len(texts)
    if isinstance(objective, ClassificationConfig):
        names = class_names(loaded, objective)
        examples = [Example(text=a, second_text=b, label="", place="") for a, b in zip(texts, seconds, strict=True)]
        sequences, num_truncated = encode_examples(examples, tokenizer, length, is_causal=loaded.model.is_causal)
        if num_truncated:
            noun = "pair" if second_texts else "text"
            _logger.warning(truncation_warning(num_truncated, len(texts), length, done="classified", noun=noun))
        return most_likely(class_logits(loaded.model, sequences, batch_size=batch_size), names, top_k)
    if top_k is not None:
        raise UserError(f"top_k applies only to classifiers, and {loaded.path} answers questions; remove it")
    questions = [
        Question(id=str(number), question=asked, context=context, answers=(), place=f"question {number}")
        for number, (asked, context) in enumerate(zip(texts, second_texts, strict=True), 1)
    ]
    windows = by_question(make_windows(questions, tokenizer, objective, length))
    return [best for best, *_ in find_answers(loaded.model, questions, windows, objective, batch_size=batch_size)]


def held_out_of(loaded: LoadedModel, ids: list[Int64s], labels: object) -> HeldOut:
    """Return sequences and their scored tokens; see `hornbook.Model.loss`.

    Raises:
        UserError: the labels do not match the ids, or the model does not predict tokens.
        CheckpointError: there are no labels, and an encoder has no tokenizer.
    """
    head, is_causal = loaded.model.head, loaded.model.is_causal
    if isinstance(head, ClassificationHead) if is_causal else not isinstance(head, EncoderHead):
        raise UserError(
            f"{loaded.path} was fine-tuned and does not predict tokens; score it with `hornbook evaluate`, or load the "
            "pre-trained model"
        )
    if is_causal:
        if labels is not None:
            raise UserError("labels are for encoders; a decoder's targets are the ids themselves; remove them")
        return GivenTokens(ids)
    sequences = [_one_segment(one) for one in ids]
    if labels is None:
        return MaskedCopies(sequences, loaded.require_tokenizer().require_masking(), "padded")
    wanted = [np.asarray(item) for item in read_inputs(labels).items]
    if [item.shape for item in wanted] != [one.shape for one in ids]:
        raise UserError("labels and sequences differ in length; give a label for each id, -100 for none")
    return GivenMasked(
        [_labelled(one, labels_T, loaded.model.vocab_size) for one, labels_T in zip(sequences, wanted, strict=True)]
    )


def refuse_below_one(**values: int | None) -> None:
    """Raise UserError if a value is less than one; None is accepted."""
    for name, value in values.items():
        if value is not None and value < 1:
            raise UserError(f"{name} is {value}; expected 1 or more")


def _labelled(sequence: TokenSequence, labels_T: Int64s, vocab_size: int) -> TokenSequence:
    positions = np.flatnonzero(labels_T != NOT_SCORED)
    labels = labels_T[positions]
    if unknown := labels[(labels < 0) | (labels >= vocab_size)].tolist():
        raise UserError(
            f"label {unknown[0]} is not in the vocabulary; expected 0 to {vocab_size - 1}, or -100 for tokens that are "
            "not scored"
        )
    return sequence._replace(positions=positions, labels=labels)


def _one_segment(ids: Int64s) -> TokenSequence:
    return TokenSequence(ids, np.zeros_like(ids))
