"""Layouts that a recipe's parts cannot be trusted to support are refused before anything is built."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from unittest.mock import Mock

import pytest
import tiny_layouts
import torch

from hornbook.config import (
    AdamWConfig,
    CausalLMConfig,
    DecoderConfig,
    EncoderConfig,
    GPTConfig,
    MemoryConfig,
    ParallelConfig,
    PrecisionConfig,
    Recipe,
)
from hornbook.config.modernbert import ModernBertConfig
from hornbook.engine.build_training import build_loader, build_samples, build_training, shape_of
from hornbook.errors import DataError, UserError
from hornbook.ops import cross_entropy
from hornbook.ops.native.kernels import FORMS, NOT_CHOSEN, use
from hornbook.parallel.ranks import Ranks
from hornbook.parallel.world import Axes, World
from hornbook.samples.sources import open_sources


@dataclass(frozen=True, kw_only=True)
class Mine(CausalLMConfig):
    """An objective of one's own."""


@dataclass(frozen=True, kw_only=True)
class MyOptimizer(AdamWConfig):
    """An optimizer of one's own."""


class Agreeing(Ranks):
    """Ranks that cannot send anything, and have the same ``value`` in ``share``, or that of ``first``."""

    first = None

    def share(self, value, source):
        return value if self.first is None else self.first


def of_two(*, tensor: int = 1) -> World:
    """A world of two ranks that share the weights; nothing can be sent."""
    axes = Axes(data=Ranks(0, 2 // tensor), tensor=Ranks(0, tensor), holders=Ranks(0, 2), mesh=object())
    return World(Agreeing(0, 2), axes)


@pytest.mark.parametrize(
    ("changes", "world", "message"),
    [
        ({"parallel": ParallelConfig(tensor_parallel=2)}, World(), "needs a multiple of 2 ranks .* but the run has 1"),
        (
            {"parallel": ParallelConfig(data_parallel="shard"), "objective": Mine()},
            of_two(),
            "every micro-batch uses all of the model, which Mine does not guarantee: set it to 'replicate'",
        ),
        (
            {"memory": MemoryConfig(execution="phased"), "objective": Mine()},
            World(),
            "memory.execution = 'phased' requires that every micro-batch uses all of the model, which Mine does not "
            "guarantee: set it to 'resident'",
        ),
        (
            {"parallel": ParallelConfig(tensor_parallel=2), "optimizer": MyOptimizer()},
            of_two(tensor=2),
            "MyOptimizer may need whole weights",
        ),
    ],
)
def test_a_layout_that_a_part_may_not_support_is_refused(changes, world, message):
    with pytest.raises(UserError, match=message):
        build_training(replace(Recipe(), **changes), 1, world)


@pytest.mark.parametrize(
    "changes",
    [
        {"memory": MemoryConfig(offload_activations=True)},
        {"precision": PrecisionConfig(partials="half", kernels="torch")},
    ],
)
def test_an_option_of_gpus_is_refused_on_a_cpu(changes):
    with pytest.raises(UserError, match="this run uses cpu: remove it, or use `device='cuda'`"):
        build_training(replace(Recipe(), **changes), 1, World())


@pytest.mark.parametrize("model", ["gpt of 300 tokens", "bert of 300 tokens"])
def test_a_head_in_chunks_of_the_vocabulary_learns_the_same(model, monkeypatch):
    by_parts = Mock(wraps=cross_entropy.add_by_parts)
    monkeypatch.setattr(cross_entropy, "add_by_parts", by_parts)
    recipe = tiny_layouts.recipe_of(model, "adamw")
    recipe = replace(recipe, precision=replace(recipe.precision, kernels="torch"))
    expected = tiny_layouts.train(recipe, World(), steps=4)
    assert not by_parts.called
    found = tiny_layouts.train(replace(recipe, memory=MemoryConfig(vocabulary_chunks=4)), World(), steps=4)
    assert by_parts.called
    assert found.losses == pytest.approx(expected.losses, rel=1e-6)
    assert found.norms == pytest.approx(expected.norms, rel=1e-5)
    assert found.terms == [pytest.approx(terms, rel=1e-6) for terms in expected.terms]


def in_pipeline(schedule: str, rank: int = 0) -> tuple[Recipe, World]:
    """A tiny recipe, and a rank of a pipeline of two; nothing can be sent."""
    model = GPTConfig(vocab_size=70, hidden_size=32, num_heads=2, num_layers=4, max_positions=16)
    recipe = Recipe(model=model, parallel=ParallelConfig(pipeline_parallel=2, pipeline_schedule=schedule))
    return recipe, World(Agreeing(rank, 2), Axes(pipeline=Ranks(rank, 2)))


@pytest.mark.parametrize("schedule", ["zero-bubble", "v-shaped"])
def test_a_schedule_that_an_older_torch_cannot_run_is_refused(schedule, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.12.1+cu130")
    recipe, world = in_pipeline(schedule)
    with pytest.raises(
        UserError, match=rf'"{schedule}" requires PyTorch 2.13 or newer, but this is 2.12.1\+cu130: upgrade PyTorch or'
    ):
        build_training(recipe, 1, world)


@pytest.mark.parametrize(("schedule", "tables"), [("1f1b", [1, 1]), ("v-shaped", [1, 0])])
def test_the_ranks_of_a_pipeline_that_hold_the_tied_table(schedule, tables):
    """Once where embedding and head are on one rank; the head's rank holds a copy of it elsewhere."""
    for rank, num_tables in enumerate(tables):
        recipe, world = in_pipeline(schedule, rank)
        model = build_training(recipe, 1, world)[0].model
        held = [table for table in (model.embedding.tokens, model.head.table) if not table.is_meta]
        assert len({table.data_ptr() for table in held}) == num_tables


@dataclass(frozen=True, kw_only=True)
class Softsigned(GPTConfig):
    """A model of one's own with an activation that hornbook does not have."""

    activation: str = "softsign"


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (GPTConfig(), ("gelu_tanh", False, True)),
        (EncoderConfig(), ("gelu", False, True)),
        (DecoderConfig(), ("silu", True, False)),
        (
            DecoderConfig(feed_forward="plain", activation="relu_squared", linear_bias=True),
            ("relu_squared", False, True),
        ),
        (ModernBertConfig(), ("gelu", True, False)),
        (Softsigned(), ("gelu_tanh", False, True)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_operators_are_timed_for_the_feed_forward_of_the_model(model, kind):
    shape = shape_of(Recipe(model=model))
    assert (shape.activation, shape.is_gated, shape.has_bias) == kind
    assert shape.feed_forward_size == model.effective_feed_forward_size


def test_all_ranks_compute_with_the_forms_of_the_first():
    ranks = Agreeing()
    assert "layer_norm_f32" in forms_of_training(World(ranks))
    ranks.first = {}
    assert not forms_of_training(World(ranks))


def forms_of_training(world: World) -> dict[str, str]:
    """Return the kernels that a tiny training selects."""
    precision = PrecisionConfig(compute="fp32")
    recipe = replace(
        Recipe(), model=GPTConfig(num_layers=1, hidden_size=16, num_heads=2, vocab_size=32), precision=precision
    )
    before = use(NOT_CHOSEN)
    try:
        build_training(recipe, 1, world)
        return dict(FORMS)
    finally:
        use(before)


def test_tokens_are_checked_once():
    """By the masking of an encoder's sequences, or else by the loader."""
    recipe = tiny_layouts.recipe_of("bert padded", "adamw")
    samples = build_samples(recipe, open_sources(recipe), on_cpu=True)
    for ids_are_checked in (True, False):
        loader = build_loader(recipe, replace(samples, ids_are_checked=ids_are_checked), World(), vocab_size=5)
        with loader, nullcontext() if ids_are_checked else pytest.raises(DataError, match="allows only 0 to 4"):
            next(loader)
    assert samples.ids_are_checked
    decoder = tiny_layouts.recipe_of("gpt", "adamw")
    assert not build_samples(decoder, open_sources(decoder), on_cpu=True).ids_are_checked
