"""Trace the samples of a step back to documents and their source files.

    runs/mine/run.json         recipe, fingerprint of the data
    the stores that it names   step 3 of batches of 8: samples 16 .. 23
                                 -> sample 16: corpora/wiki, tokens 0 .. 56 of document 12, a.txt at byte 0, the text

A sample of an encoder is a sequence: both texts of a pair are traced, and masks are shown as [MASK→word].

Nothing is logged for this during training: the order is a function of the seed, so recipe and stores suffice. The
price: the stores must still exist unchanged. Future steps can be traced, too.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import singledispatch
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hornbook.config import LabelledConfig, Recipe
from hornbook.config.recipe_files import IDENTITY
from hornbook.config.suggest import did_you_mean_path
from hornbook.corpora.store import TokenStore
from hornbook.engine.build_training import build_samples, num_steps
from hornbook.errors import DataError, UserError
from hornbook.exchange.contents import refuse_unknown_parts, stored_recipe
from hornbook.run.run_folder import read_identity
from hornbook.samples.batches import WindowBatches
from hornbook.samples.instances import InstanceSource
from hornbook.samples.layout import EncoderBatches
from hornbook.samples.mixture import Provenance
from hornbook.samples.sequences import NO_PAIR, StoredSequences, TokenSequence
from hornbook.samples.sources import Sources, open_mixture, open_sources
from hornbook.samples.windows import Piece
from hornbook.text.tokenizer import Tokenizer
from hornbook.wording import counted


@dataclass(frozen=True, kw_only=True)
class TracedPiece:
    """Tokens ``start .. start + num_tokens - 1`` of a document.

    Attributes:
        document: number in the store.
        file, offset: source file of its text, and the offset in it; None if unknown.
        unit: unit of the offset, ``"byte"`` or ``"row"``.
        url, languages: of a page of a web archive, see `hornbook.text.readers.web_archives.Page`; None if unknown.
        tokens: token ids.
        text: text of these tokens; None without a tokenizer.
    """

    document: int
    start: int
    num_tokens: int
    file: str | None
    offset: int | None
    unit: Literal["byte", "row"]
    url: str | None
    languages: str | None
    tokens: list[int]
    text: str | None


@dataclass(frozen=True, kw_only=True)
class TracedSample:
    """A sample and its source texts.

    Attributes:
        sample: sample number, counted from the start of the run.
        store: path of the store, or of an instance's file.
        epoch: the store's epoch, from 0.
        pieces: its parts of documents, in reading order; inserted end-of-text tokens, [CLS] and [SEP] belong to none.
            Empty for an instance that was masked when it was built.
    """

    sample: int
    store: str
    epoch: int
    pieces: list[TracedPiece]


@dataclass(frozen=True, kw_only=True)
class TracedSequence(TracedSample):
    """A training sequence of an encoder.

    Attributes:
        record: number of the instance in its file, from 0; None for sequences of stores.
        pair_label: 0 if the second text follows the first, 1 if it is from another document, None for a single text.
        tokens: the model's input: masked, with [CLS] and [SEP].
        positions: positions of the predicted tokens.
        labels: the original ids at these positions.
        text: text of the tokens, with ``[MASK→word]`` for predicted ones; None without a tokenizer.
    """

    record: int | None
    pair_label: int | None
    tokens: list[int]
    positions: list[int]
    labels: list[int]
    text: str | None


def trace_step(run: Path, step: int, sample: int | None = None) -> Iterator[TracedSample]:
    """Yield the samples of a step, computed one by one.

    Args:
        run: the run's folder.
        step: counted from 1, as in ``metrics.jsonl``.
        sample: number of a single sample to trace; None for all.

    Raises:
        UserError: there is no such run, step or sample, or the run trains on labels or synthetic tokens.
        DataError: a store is gone, damaged, or differs from the one that the run was trained on.
    """
    recipe, fingerprint = _read_identity(run)
    if recipe.data.synthetic:
        raise UserError(f"{run} was trained on synthetic tokens, which have no source documents")
    if isinstance(recipe.objective, LabelledConfig):
        raise UserError(f"{run} was trained on labeled files ({recipe.objective.name}); expected a run on token stores")
    sources = open_sources(replace(recipe, data=replace(recipe.data, validation=None)))
    sources = replace(sources, validation=None, held_out=())
    if fingerprint != (now := sources.fingerprints["train"]):
        raise DataError(
            f"the stores are not those that {run} was trained on: their fingerprint was {str(fingerprint)[:12]} and is "
            f"now {str(now)[:12]}; restore them"
        )
    samples = build_samples(recipe, sources, on_cpu=True)
    if step > (last := num_steps(recipe, samples)):
        raise UserError(f"{run} has {counted(last, 'step')}: expected a step from 1 to {last}, not {step}")
    size = recipe.training.global_batch_size
    numbers = range((step - 1) * size, step * size)
    if sample is not None and sample not in numbers:
        raise UserError(f"step {step} has samples {numbers[0]} to {numbers[-1]}: expected one of them, not {sample}")
    return _trace(samples.maker, numbers if sample is None else [sample], recipe, sources)


@singledispatch
def _trace(maker: object, samples: Iterable[int], recipe: Recipe, sources: Sources) -> Iterator[TracedSample]:
    """Trace samples, dispatched on the type of the batch maker."""
    raise UserError(f"batches of {type(maker).__name__}, by {recipe.objective.name}, cannot be traced to documents")


@_trace.register
def _trace_windows(
    maker: WindowBatches, samples: Iterable[int], recipe: Recipe, sources: Sources
) -> Iterator[TracedSample]:
    mixture = open_mixture(recipe, sources)
    for sample in samples:
        yield TracedSample(sample=sample, **_places(mixture.provenance(sample), recipe, sources))


@_trace.register
def _trace_sequences(
    maker: EncoderBatches, samples: Iterable[int], recipe: Recipe, sources: Sources
) -> Iterator[TracedSample]:
    source, tokenizer = maker.source, sources.tokenizer
    for sample in samples:
        (sequence,) = maker.sequences(np.array([sample]))
        number = int(maker.among_all(np.array([sample]))[0])
        if isinstance(source, InstanceSource):
            epoch, file, record = source.provenance(number)
            place: dict[str, Any] = {"store": str(file), "epoch": epoch, "pieces": [], "record": record}
        else:
            assert isinstance(source, StoredSequences), "synthetic sequences have no provenance"
            place = _places(source.provenance(number), recipe, sources) | {"record": None}
        if maker.num_items < source.num_sequences:
            place["epoch"] = sample // maker.num_items
        assert sequence.positions is not None and sequence.labels is not None, "the maker has masked them"
        yield TracedSequence(
            sample=sample,
            **place,
            pair_label=sequence.pair_label if maker.has_pairs and sequence.pair_label != NO_PAIR else None,
            tokens=sequence.tokens.tolist(),
            positions=sequence.positions.tolist(),
            labels=sequence.labels.tolist(),
            text=_marked(sequence, tokenizer) if tokenizer else None,
        )


def _places(provenance: Provenance, recipe: Recipe, sources: Sources) -> dict[str, Any]:
    """Return store, epoch and pieces of a sample."""
    number, epoch, pieces = provenance
    store = sources.train[number]
    assert isinstance(store, TokenStore), "synthetic tokens were rejected"
    traced = [_traced(piece, store, sources.tokenizer) for piece in pieces]
    return {"store": recipe.data.train[number], "epoch": epoch, "pieces": traced}


def _traced(piece: Piece, store: TokenStore, tokenizer: Tokenizer | None) -> TracedPiece:
    ids: list[int] = np.asarray(store.read(*piece)).tolist()
    file, offset = store.source(piece.document) or (None, None)
    url, languages = store.page(piece.document) or (None, None)
    return TracedPiece(
        **piece._asdict(),
        file=file,
        offset=offset,
        unit=store.offset_unit(piece.document),
        url=url,
        languages=languages,
        tokens=ids,
        text=tokenizer.decode(ids) if tokenizer else None,
    )


def _marked(sequence: TokenSequence, tokenizer: Tokenizer) -> str:
    """Return the text of a masked sequence: ``[CLS] the [[MASK]→cat] sat [SEP]``."""
    assert sequence.positions is not None and sequence.labels is not None, "it is masked"
    parts, start = [], 0
    for position, label in zip(sequence.positions.tolist(), sequence.labels.tolist(), strict=True):
        parts.append(tokenizer.decode(sequence.tokens[start:position]))
        shown, hidden = (tokenizer.decode([token]) for token in (sequence.tokens[position], label))
        parts.append(f"[{shown.removeprefix('[').removesuffix(']')}→{hidden}]")
        start = position + 1
    parts.append(tokenizer.decode(sequence.tokens[start:]))
    return (" " if tokenizer.continuing_prefix else "").join(filter(None, parts))


def _read_identity(run: Path) -> tuple[Recipe, str | None]:
    """Return the recipe of a run and the fingerprint of its training data."""
    path = run / IDENTITY
    if not path.is_file():
        raise UserError(
            f"no run in {run}{did_you_mean_path(run)}; expected a folder with a {IDENTITY}, as `hornbook train` leaves"
        )
    identity = read_identity(path)
    refuse_unknown_parts(identity["recipe"], str(run), ("model", "objective"))  # they determine the samples
    return stored_recipe(identity["recipe"], str(path)), identity["data"].get("train")
