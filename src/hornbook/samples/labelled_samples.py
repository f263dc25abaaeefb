"""Read the files of a fine-tuning into sequences with labels.

[objective] name = "classification"    data.train = "train.jsonl"    --init-from runs/bert-tiny
  open_labelled -> the recipe with its classes and its head, and LabelledSources -> build_samples
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from hornbook.arrays import Int64s
from hornbook.config import ClassificationConfig, EncoderConfig, Recipe, SpanConfig, TunableConfig
from hornbook.errors import UserError
from hornbook.samples.batches import Batch, Samples, token_keys
from hornbook.samples.hashing import permute
from hornbook.samples.labelled_texts import encode_examples, label_numbers, labels_of, listed, read_examples
from hornbook.samples.layout import Layout, choose_layout, lay_out
from hornbook.samples.sequences import TokenSequence
from hornbook.samples.sources import Sources
from hornbook.samples.squad import labelled_windows, read_questions
from hornbook.samples.windows import NOT_SCORED
from hornbook.storage.files import sha256_file
from hornbook.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class LabelledBatches:
    """Labeled sequences, in batches: a `hornbook.samples.batches.BatchMaker` and a ``HeldOut``.

    Each epoch has all sequences, in an order that is a function of (seed, epoch): the number of ranks, accumulation and
    layout change nothing, and the state of a loader is one number.

    Attributes:
        sequences: N sequences, at least one.
        labels: int64[N], class numbers, or [N, 2], first and last token of spans, as positions in the sequence.
        width: tokens per padded or packed row.
        layout: layout of every batch.
        pad_id: the padding token.
        seed: seed of order and keys.
    """

    sequences: list[TokenSequence]
    labels: Int64s
    width: int
    layout: Layout
    pad_id: int
    seed: int

    @property
    def num_items(self) -> int:
        """Sequences per epoch."""
        return len(self.sequences)

    @property
    def mean_length(self) -> float:
        """Mean number of tokens per sequence."""
        return float(np.mean([len(sequence.tokens) for sequence in self.sequences]))

    def batches(self, samples: Int64s, /) -> list[Batch]:
        epochs, indices = np.divmod(samples, self.num_items)
        numbers = permute(indices, size=self.num_items, seed=self.seed, epoch=epochs)
        keys = (token_keys(self.seed, row, self.width) for row in samples)
        return [self._batch(row, self.labels[row], of_row) for row, of_row in zip(numbers, keys, strict=True)]

    def batch(self, numbers: Int64s, /) -> Batch:
        """Return a batch with keys of zero; see ``HeldOut``."""
        exists = numbers < self.num_items
        numbers = np.where(exists, numbers, 0)
        labels = self.labels[numbers]
        labels[~exists] = NOT_SCORED
        return self._batch(numbers, labels, None)

    def _batch(self, numbers: Int64s, labels: Int64s, keys: Int64s | None) -> Batch:
        sequences = [self.sequences[number] for number in numbers.tolist()]
        batch = lay_out(sequences, width=self.width, layout=self.layout, pad_id=self.pad_id, keys=keys)
        return {**batch, "labels": torch.from_numpy(labels)}


@dataclass(frozen=True, kw_only=True)
class LabelledTexts:
    """The sequences and labels of a split.

    Attributes:
        sequences: N sequences, in file order.
        labels: int64[N] or [N, 2], see ``LabelledBatches``.
        fingerprint: a hash of the files and the tokenizer.
    """

    sequences: list[TokenSequence]
    labels: Int64s
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class LabelledSources(Sources):
    """The sources of a run on labeled files instead of token stores."""

    texts: LabelledTexts
    held_out_texts: LabelledTexts | None

    @property
    def fingerprints(self) -> dict[str, str | None]:
        """Hashes of the contents, by which a resumed run recognizes its data."""
        held_out = self.held_out_texts
        return {"train": self.texts.fingerprint, "validation": held_out.fingerprint if held_out else None}

    @property
    def vocab_size(self) -> int | None:
        """The tokenizer's vocabulary size."""
        return self.tokenizer.vocab_size if self.tokenizer else None


def open_labelled(recipe: Recipe, tokenizer: Tokenizer) -> tuple[Recipe, LabelledSources]:
    """Read the files of ``recipe``; return it with their classes and the matching head.

    Raises:
        UserError: no training file is named, or the recipe's classes do not match its model.
        DataError: a file is missing or malformed, or a label is unknown.
    """
    if not recipe.data.train:
        raise UserError(f"recipe {recipe.name!r} names no training data: add `data.train=FILE` with labeled texts")
    assert isinstance(recipe.model, TunableConfig), "the validator rejects labels for other models"
    recipe = _with_labels(recipe, recipe.model)
    validation = recipe.data.validation
    sources = LabelledSources(
        tokenizer=tokenizer,
        texts=_read(recipe, recipe.data.train, tokenizer),
        held_out_texts=_read(recipe, [validation], tokenizer) if validation else None,
    )
    return recipe, sources


def labelled_samples(recipe: Recipe, sources: LabelledSources, *, on_cpu: bool) -> Samples:
    """Return the samples of a fine-tuning; see ``build_samples`` for the arguments."""
    assert sources.tokenizer is not None, "labeled texts are always read with a tokenizer"
    train, held_out, length = _limited(sources.texts, recipe), sources.held_out_texts, recipe.sequence_length
    is_encoder = isinstance(recipe.model, EncoderConfig)
    maker = LabelledBatches(
        sequences=train.sequences,
        labels=train.labels,
        width=length,
        layout="padded",
        pad_id=sources.tokenizer.require_masking().pad
        if is_encoder
        else 0,  # a decoder's tokens never attend to padding
        seed=recipe.training.seed,
    )
    mean = maker.mean_length
    if is_encoder:
        maker = replace(maker, layout=choose_layout(mean, length, on_cpu=on_cpu, asked=recipe.data.layout))
    labels = {"labels": listed(recipe.objective.labels)} if isinstance(recipe.objective, ClassificationConfig) else {}
    return Samples(
        maker=maker,
        num_samples=maker.num_items,
        tokens_per_sample=mean,
        held_out=replace(maker, sequences=held_out.sequences, labels=held_out.labels) if held_out else None,
        shows_padding=True,
        noun="sequence",
        facts={**labels, "layout": f"{maker.layout}; {mean:.0f} tokens a sequence"},
    )


def _limited(texts: LabelledTexts, recipe: Recipe) -> LabelledTexts:
    """Return the first ``data.max_samples`` sequences of a run over all."""
    most, size = recipe.data.max_samples, len(texts.sequences)
    if most is None or most >= size:
        return texts
    chosen = permute(np.arange(most), size=size, seed=recipe.training.seed, epoch=0)
    return replace(texts, sequences=[texts.sequences[number] for number in chosen], labels=texts.labels[chosen])


def _with_labels(recipe: Recipe, model: TunableConfig) -> Recipe:
    """Return the recipe with the model's head and, unless given, the classes of the training files."""
    objective = recipe.objective
    if isinstance(objective, ClassificationConfig):
        labels = objective.labels or labels_of(
            [example for path in recipe.data.train for example in read_examples(path, objective)],
            ", ".join(recipe.data.train),
        )
        if len(set(labels)) < max(len(labels), 2) or model.num_labels not in (None, len(labels)):
            raise UserError(
                f"objective.labels are {listed(labels)}: expected at least two, all different, and as many as "
                "model.num_labels if that is given"
            )
        model, objective = replace(model, num_labels=len(labels)), replace(objective, labels=labels)
    head: Literal["classification", "span"] = "span" if isinstance(objective, SpanConfig) else "classification"
    return replace(recipe, model=replace(model, head=head), objective=objective)


def _read(recipe: Recipe, paths: Sequence[str], tokenizer: Tokenizer) -> LabelledTexts:
    objective, length = recipe.objective, recipe.sequence_length
    if isinstance(objective, ClassificationConfig):
        examples = [example for path in paths for example in read_examples(path, objective)]
        is_causal = not isinstance(recipe.model, EncoderConfig)
        sequences, _ = encode_examples(examples, tokenizer, length, is_causal=is_causal)
        labels = label_numbers(examples, objective.labels)
    else:
        assert isinstance(objective, SpanConfig), "custom objectives with labels bring their own samples"
        questions = [
            question for path in paths for question in read_questions(path, unanswerable=objective.unanswerable)
        ]
        sequences, labels = labelled_windows(questions, tokenizer, objective, length)
    hashes = [*(sha256_file(Path(path)) for path in paths), tokenizer.digest]
    fingerprint = hashlib.sha256(" ".join(hashes).encode()).hexdigest()
    return LabelledTexts(sequences=sequences, labels=labels, fingerprint=fingerprint)
