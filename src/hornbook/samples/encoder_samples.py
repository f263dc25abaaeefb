"""Build an encoder's samples: sequences by objective, masked by (seed, sample), in the layout with the least padding.

Held-out sequences have the same pairs and masks in every run, whatever its seed, so that losses can be compared.
"""

from collections.abc import Sequence, Set
from dataclasses import fields, replace

from hornbook.config import MaskingConfig, Recipe
from hornbook.corpora.store import TokenStore
from hornbook.errors import UserError
from hornbook.samples.batches import Samples
from hornbook.samples.encoder_sources import HELD_OUT_SEED, instance_batches, masked_batches, store_batches
from hornbook.samples.instances import InstanceSource
from hornbook.samples.layout import EncoderBatches, choose_layout
from hornbook.samples.sources import Sources
from hornbook.samples.synthetic import SyntheticSequences
from hornbook.text.tokenizer import Tokenizer


def encoder_samples(objective: MaskingConfig, recipe: Recipe, sources: Sources, *, on_cpu: bool) -> Samples:
    """Return the samples of an encoder; see ``build_samples`` for arguments and errors."""
    train = replace(_training(objective, recipe, sources), max_samples=recipe.data.max_samples)
    mean = train.mean_length()
    layout = choose_layout(mean, recipe.sequence_length, on_cpu=on_cpu, asked=recipe.data.layout)
    held_out = _held_out(objective, recipe, sources, sources.held_out)
    parts = {name: _held_out(objective, recipe, sources, [store]) for name, store in sources.held_out_by_name.items()}
    padding = 1 - mean / recipe.sequence_length
    return Samples(
        maker=replace(train, layout=layout),
        num_samples=train.num_items,
        tokens_per_sample=mean,
        held_out=held_out and replace(held_out, layout=layout),
        held_out_stores={name: replace(part, layout=layout) for name, part in parts.items() if part},
        ids_are_checked=train.rules is not None,
        shows_padding=True,
        noun="sequence",
        facts={"layout": f"{layout}; {mean:.0f} tokens a sequence, padded rows would be {padding:.0%} padding"},
    )


def _training(objective: MaskingConfig, recipe: Recipe, sources: Sources) -> EncoderBatches:
    seed = recipe.training.seed
    if sources.instances:
        return _static(objective, sources.instances, sources.tokenizer, seed)
    if not recipe.data.synthetic:
        stores = [store for store in sources.train if isinstance(store, TokenStore)]
        return _stores(objective, recipe, stores, sources.tokenizer, seed, sources.weights)
    assert recipe.model.vocab_size is not None, "the validator requires a vocabulary with synthetic data"
    length, size = recipe.sequence_length, recipe.model.vocab_size
    source = SyntheticSequences(vocab_size=size, sequence_length=length, seed=seed)
    return masked_batches(objective, source, source.special, seed=seed)


def _held_out(
    objective: MaskingConfig, recipe: Recipe, sources: Sources, stores: Sequence[TokenStore]
) -> EncoderBatches | None:
    if sources.held_out_instances:
        return _static(objective, sources.held_out_instances, sources.tokenizer, HELD_OUT_SEED)
    return _stores(objective, recipe, stores, sources.tokenizer, HELD_OUT_SEED) if stores else None


def _static(
    objective: MaskingConfig, instances: InstanceSource, tokenizer: Tokenizer | None, seed: int
) -> EncoderBatches:
    """Return the batches of instances, which are masked during training if the file has no masks.

    Raises:
        UserError: the recipe's masking options differ from the file's masks, or the tokenizer has no mask token.
    """
    if not instances.is_masked:
        _refuse(objective, {"sequences", "short_sequence_probability"}, "instances, which are already cut")
        return instance_batches(objective, instances, tokenizer, seed=seed)
    others = {spec.name for spec in fields(objective)} - {"name", "max_predictions"}
    _refuse(objective, others, "instances that were masked when they were made")
    asked, found = objective.max_predictions, instances.max_predictions
    if asked and found and asked != found:
        raise UserError(
            f"the instances have at most {found} predictions each, but objective.max_predictions is {asked}: "
            f"set it to {found} or leave it out"
        )
    return instance_batches(objective, instances, tokenizer, seed=seed)


def _refuse(objective: MaskingConfig, names: Set[str], what: str) -> None:
    """Raise UserError if one of these options is not at its default."""
    for spec in fields(objective):
        if spec.name in names and getattr(objective, spec.name) != spec.default:
            raise UserError(f"objective.{spec.name} has no effect on {what}: leave it out, or train on a store")


def _stores(
    objective: MaskingConfig,
    recipe: Recipe,
    stores: Sequence[TokenStore],
    tokenizer: Tokenizer | None,
    seed: int,
    weights: Sequence[float] = (),
) -> EncoderBatches:
    """Return the batches of stores.

    Raises:
        UserError: the special tokens are unknown, or a store does not fit the objective.
    """
    if tokenizer is None:
        raise UserError(
            f"{stores[0].path} does not record its tokenizer, so its mask token is unknown: "
            "`hornbook corpus convert` it to a store with `tokenizer`"
        )
    length = recipe.sequence_length
    return store_batches(objective, stores, tokenizer, sequence_length=length, seed=seed, weights=weights)
