"""What a run reads: its stores, opened; and the recipe, completed with what only they know."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

from hornbook.config import Recipe
from hornbook.data.examples import TokenSource, Windows
from hornbook.data.store import TokenStore, open_store
from hornbook.data.synthetic import SyntheticTokens
from hornbook.errors import UserError
from hornbook.text.tokenizer import Tokenizer

_NUM_SYNTHETIC_DOCUMENTS = 4096


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The token sources of a run and the tokenizer that made them, where it is known."""

    train: TokenSource
    validation: TokenSource | None
    tokenizer: Tokenizer | None
    num_validation_bytes: int | None

    @property
    def fingerprints(self) -> dict[str, str | None]:
        """Hashes of the contents, by which a resumed run knows its data."""
        validation = self.validation
        return {"train": self.train.fingerprint, "validation": validation.fingerprint if validation else None}


def open_sources(recipe: Recipe) -> Sources:
    """Open the stores that ``recipe`` names; a corpus folder named for training brings its validation store along.

    Raises:
        UserError, DataError: a store is missing, malformed, or made with another tokenizer than its neighbor.
    """
    if recipe.data.synthetic:
        return Sources(train=_synthetic(recipe), validation=None, tokenizer=None, num_validation_bytes=None)
    if recipe.data.train is None:
        raise UserError(
            f"recipe {recipe.name!r} names no training data: build a store with `hornbook corpus build` and add "
            "`--data.train FOLDER` (or `--data.synthetic` to train on random tokens)"
        )
    train = open_store(recipe.data.train, split="train")
    validation = _open_validation(recipe)
    if validation is not None:
        _refuse_other_tokenizer(train, validation)
    return Sources(
        train=train,
        validation=validation,
        tokenizer=train.tokenizer(),
        num_validation_bytes=validation.num_bytes if validation else None,
    )


def complete(recipe: Recipe, sources: Sources) -> Recipe:
    """Return ``recipe`` with the vocabulary of its training store filled in.

    Raises:
        UserError: the model's vocabulary is unknown, or smaller than the store's.
    """
    store_size = getattr(sources.train, "vocab_size", None)
    model_size = recipe.model.vocab_size
    if model_size is None and store_size is None:
        raise UserError(
            f"the store {recipe.data.train} does not say how large its vocabulary is, and neither does the recipe: "
            "add `--model.vocab-size N`, one more than the largest token id"
        )
    if model_size is not None and store_size is not None and model_size < store_size:
        raise UserError(
            f"model.vocab_size is {model_size}, but the store {recipe.data.train} was made with {store_size} tokens: "
            f"leave model.vocab_size out, or set it to {store_size} or more"
        )
    return replace(recipe, model=replace(recipe.model, vocab_size=model_size or store_size))


def num_steps(recipe: Recipe, windows: Windows) -> int:
    """Return the length of the run in steps, whichever way the recipe gives it."""
    training = recipe.training
    if training.steps is not None:
        return training.steps
    if training.tokens is not None:
        return math.ceil(training.tokens / (training.global_batch_size * recipe.sequence_length))
    assert training.epochs is not None, "the validator asks for exactly one length"
    return math.ceil(training.epochs * windows.num_windows / training.global_batch_size)


def _synthetic(recipe: Recipe) -> SyntheticTokens:
    assert recipe.model.vocab_size is not None, "the validator asks for a vocabulary with synthetic data"
    return SyntheticTokens(
        vocab_size=recipe.model.vocab_size,
        num_documents=_NUM_SYNTHETIC_DOCUMENTS,
        document_length=recipe.sequence_length + 1,
        seed=recipe.training.seed,
    )


def _open_validation(recipe: Recipe) -> TokenStore | None:
    if recipe.data.validation is not None:
        return open_store(recipe.data.validation, split="validation")
    assert recipe.data.train is not None, "checked by the caller"
    if (Path(recipe.data.train) / "validation").is_dir():
        return open_store(recipe.data.train, split="validation")
    return None


def _refuse_other_tokenizer(train: TokenStore, validation: TokenStore) -> None:
    first, second = train.tokenizer(), validation.tokenizer()
    if first is not None and second is not None and first.digest != second.digest:
        raise UserError(
            "the training store and the validation store were made with different tokenizers "
            f"({first.digest[:12]} and {second.digest[:12]}): build both with one tokenizer"
        )
