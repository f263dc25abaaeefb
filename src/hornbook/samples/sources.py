"""Open the data of a run, complete the recipe with what only the data know, and build a decoder's samples."""

import hashlib
from dataclasses import dataclass, replace
from typing import Final

from hornbook.config import MaskingConfig, Recipe
from hornbook.corpora.folders import CHUNK_BYTES
from hornbook.corpora.joined import by_name, join
from hornbook.corpora.store import TokenStore, open_held_out, open_store, refuse_other_tokenizers
from hornbook.errors import UserError
from hornbook.samples.batches import HeldOutWindows, Samples, WindowBatches
from hornbook.samples.instances import InstanceSource, holds_instances, open_instances
from hornbook.samples.mixture import Mixture, joint_fingerprint
from hornbook.samples.synthetic import SyntheticTokens
from hornbook.samples.windows import DocumentWindows, EvaluationDocumentWindows, EvaluationWindows, TokenSource, Windows
from hornbook.storage.system import format_bytes
from hornbook.text.tokenizer import Tokenizer

_NUM_SYNTHETIC_DOCUMENTS = 4096
_KINDS: Final[dict[str, type[Windows] | type[DocumentWindows]]] = {"stream": Windows, "documents": DocumentWindows}


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The token sources of a run and the tokenizer that made them, if known."""

    train: tuple[TokenSource, ...] = ()
    weights: tuple[float, ...] = ()
    """Weight of each training source, in any proportion; empty for their sizes."""
    validation: TokenSource | None = None
    tokenizer: Tokenizer | None = None
    num_validation_bytes: int | None = None
    held_out: tuple[TokenStore, ...] = ()
    """The stores joined in ``validation``, in the order of the corpora."""
    instances: InstanceSource | None = None
    """BERT instances that replace the training stores of an encoder."""
    held_out_instances: InstanceSource | None = None

    @property
    def held_out_by_name(self) -> dict[str, TokenStore]:
        """The stores joined in ``validation`` by name; empty if there is only one."""
        return by_name(self.held_out) if len(self.held_out) > 1 else {}

    @property
    def fingerprints(self) -> dict[str, str | None]:
        """Hashes of the contents, by which a resumed run recognizes its data."""
        validation = self.validation or self.held_out_instances
        if self.instances:
            train = self.instances.fingerprint
        else:
            train = joint_fingerprint(self.train, self.weights) if len(self.train) > 1 else self.train[0].fingerprint
        if self.instances and self.tokenizer:
            train = hashlib.sha256(f"{train}:{self.tokenizer.digest}".encode()).hexdigest()
        return {"train": train, "validation": validation.fingerprint if validation else None}

    @property
    def vocab_size(self) -> int | None:
        """The largest vocabulary that the data were made with; None if unknown."""
        if self.instances and self.tokenizer:
            return self.tokenizer.vocab_size
        known = (getattr(source, "vocab_size", None) for source in self.train)
        return max((size for size in known if size is not None), default=None)


def open_sources(recipe: Recipe) -> Sources:
    """Open the stores that ``recipe`` names; training corpora include their validation stores.

    Raises:
        UserError, DataError: a store is missing, malformed, or made with a different tokenizer than another.
    """
    if recipe.data.synthetic:
        assert recipe.model.vocab_size is not None, "the validator requires a vocabulary with synthetic data"
        synthetic = SyntheticTokens(
            vocab_size=recipe.model.vocab_size,
            num_documents=_NUM_SYNTHETIC_DOCUMENTS,
            document_length=recipe.sequence_length + 1,
            seed=recipe.training.seed,
        )
        return Sources(train=(synthetic,))
    hides_tokens = isinstance(recipe.objective, MaskingConfig)
    if hides_tokens and recipe.data.train and holds_instances(recipe.data.train[0]):
        return _open_instances(recipe)
    if not recipe.data.train:
        raise UserError(
            f"recipe {recipe.name!r} names no training data: build a store with `hornbook corpus build` and add "
            "`data.train=FOLDER` (or `data.synthetic` to train on random tokens)"
        )
    cache = recipe.data.chunk_cache
    stores = tuple(open_store(path, "train", cache) for path in recipe.data.train)
    if recipe.data.tokenizer is not None:
        raise UserError(
            "data.tokenizer applies to files of instances only; a token store records its own tokenizer: leave it out"
        )
    own = recipe.data.validation
    held_out = open_held_out(recipe.data.train, cache) if own is None else [open_store(own, "validation", cache)]
    refuse_other_tokenizers([*stores, *held_out])
    validation = join(held_out) if len(held_out) > 1 else next(iter(held_out), None)
    return Sources(
        train=stores,
        weights=recipe.data.weights,
        validation=validation,
        held_out=tuple(held_out),
        tokenizer=next(filter(None, (store.tokenizer() for store in stores)), None),
        num_validation_bytes=validation.num_bytes if validation else None,
    )


def network_facts(recipe: Recipe, sources: Sources) -> dict[str, str]:
    """Return what reading the training stores at URLs takes, in words; empty if all are local.

    A sample's tokens are in one chunk, or a few that follow each other. A store that fits in the cache is transferred
    once; of another one, nearly every sample needs chunks that are no longer there.
    """
    remote = [store for store in sources.train if isinstance(store, TokenStore) and store.remote]
    if not remote:
        return {}
    width = max(store.indexed.dtype.itemsize for store in remote)
    most = (CHUNK_BYTES + recipe.sequence_length * width) / recipe.sequence_length
    size, limit = sum(store.indexed.tokens.nbytes for store in remote), recipe.data.chunk_cache.limit
    what = f"{format_bytes(size)} of tokens by chunks of {format_bytes(CHUNK_BYTES)}, up to {most:.0f} bytes per token"
    lasts = "until the cache has them all" if size <= limit else "all the time, since they do not fit in the cache"
    return {"network": f"{what} {lasts} (data.cache_gib {recipe.data.cache_gib:g})"}


def complete(recipe: Recipe, sources: Sources) -> Recipe:
    """Return ``recipe`` with the vocabulary size of its training data.

    Raises:
        UserError: the model's vocabulary is unknown, or smaller than the stores'.
    """
    store_size, stores = sources.vocab_size, ", ".join(recipe.data.train)
    model_size = recipe.model.vocab_size
    if model_size is None and store_size is None:
        raise UserError(
            f"neither the training data ({stores}) nor the recipe state the vocabulary size: "
            "add `model.vocab_size=N`, one more than the largest token id"
        )
    is_cut = getattr(recipe.model, "clamp_tokens", False)
    if model_size is not None and store_size is not None and model_size < store_size and not is_cut:
        raise UserError(
            f"model.vocab_size is {model_size}, but the training data ({stores}) were made with {store_size} tokens: "
            f"leave model.vocab_size out, or set it to {store_size} or more"
        )
    return replace(recipe, model=replace(recipe.model, vocab_size=model_size or store_size))


def window_samples(recipe: Recipe, sources: Sources) -> Samples:
    """Return the samples of a decoder, which are windows; see ``build_samples`` for arguments and errors."""
    windows = open_windows(recipe, sources)
    mask, shares = recipe.data.document_mask, list[tuple[float, str]]()
    from_stream, unscored = recipe.data.windows == "stream", getattr(recipe.objective, "unscored_tokens", 0)
    if isinstance(windows, Mixture):
        shares = [*zip(windows.shares, recipe.data.train, strict=False)]

    def scored(source: TokenSource) -> HeldOutWindows:
        length = recipe.sequence_length
        held_out: EvaluationWindows | EvaluationDocumentWindows
        if from_stream:
            held_out = EvaluationWindows(source, length, score_end_of_text=False)
        else:
            held_out = EvaluationDocumentWindows(source, length)
        return HeldOutWindows(held_out, document_mask=mask, num_unscored=unscored)

    return Samples(
        maker=WindowBatches(windows, seed=recipe.training.seed, document_mask=mask, num_unscored=unscored),
        num_samples=windows.num_items,
        tokens_per_sample=recipe.sequence_length - unscored,
        held_out=None if sources.validation is None else scored(sources.validation),
        held_out_bytes=sources.num_validation_bytes if from_stream and not unscored else None,
        held_out_stores={name: scored(store) for name, store in sources.held_out_by_name.items()},
        facts={"mixture": ", ".join(f"{share:.1%} {path}" for share, path in shares)} if len(shares) > 1 else {},
    )


def open_windows(recipe: Recipe, sources: Sources) -> Windows | DocumentWindows | Mixture:
    """Return the windows of the training stores, without a mixture if there is a single store."""
    if len(sources.train) == 1:
        windows = _KINDS[recipe.data.windows](sources.train[0], recipe.sequence_length, recipe.training.seed)
        if (recipe.data.max_samples or windows.num_items) >= windows.num_items:
            return windows
    return open_mixture(recipe, sources)


def open_mixture(recipe: Recipe, sources: Sources) -> Mixture:
    """Return the mixture of the training stores, also for a single store."""
    length, seed = recipe.sequence_length, recipe.training.seed
    kind, most = _KINDS[recipe.data.windows], recipe.data.max_samples
    return Mixture(sources.train, length, seed, sources.weights, max_samples=most, kind=kind)


def _open_instances(recipe: Recipe) -> Sources:
    """Open files of instances.

    Raises:
        UserError: there are several files, the file does not fit the recipe, or the tokenizer is not the one that made
            it, or is missing though the file is not masked.
        DataError: a file or the tokenizer is damaged.
    """
    path, *others = recipe.data.train
    if others:
        raise UserError("files of instances cannot be blended: name one file in data.train, or one folder of TFRecords")
    tokenizer = Tokenizer.load(recipe.data.tokenizer) if recipe.data.tokenizer else None
    instances = open_instances(path, seed=recipe.training.seed)
    held_out = open_instances(recipe.data.validation, seed=0) if recipe.data.validation else None
    for opened, name in ((instances, path), (held_out, recipe.data.validation)):
        if opened and opened.sequence_length != recipe.sequence_length:
            raise UserError(
                f"{name} has instances of {opened.sequence_length} tokens, but data.sequence_length is "
                f"{recipe.sequence_length}: set it to {opened.sequence_length}, or build instances of that length"
            )
        if opened and not opened.is_masked and tokenizer is None:
            raise UserError(
                f"{name} has instances without masks: name the tokenizer that made them by `data.tokenizer=FOLDER`, "
                "so that they can be masked during training"
            )
        if opened and tokenizer and opened.first_token != (begin := tokenizer.require_masking().cls):
            raise UserError(
                f"{name} was not made with the tokenizer {recipe.data.tokenizer}: it begins with token "
                f"{opened.first_token}, but the tokenizer's [CLS] or <s> is {begin}: name its tokenizer by "
                "`data.tokenizer`"
            )
    return Sources(tokenizer=tokenizer, instances=instances, held_out_instances=held_out)
