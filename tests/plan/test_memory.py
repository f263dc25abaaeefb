"""State and shapes of every bundled recipe on every layout, beside models on the meta device."""

import math
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from cases import mostly_slow

from hornbook.config import AdamWConfig, MemoryConfig, MomentumConfig, ParallelConfig, bundled_recipes, load_recipe
from hornbook.config.description import description_of
from hornbook.config.optimizers import role_of, states_of
from hornbook.config.rank_part import RankPart
from hornbook.config.sparsity import SparsityConfig
from hornbook.errors import UserError
from hornbook.model import build_model
from hornbook.optim.updates import Update, build_update
from hornbook.plan.layers import ALL_NATIVE, Compute
from hornbook.plan.memory import full_tokens, memory_of
from hornbook.plan.stand_ins import with_vocabulary
from hornbook.run.initial_weights import outline

LAYOUTS = {
    "one": (1, ParallelConfig()),
    "replicas": (2, ParallelConfig()),
    "shards": (4, ParallelConfig(data_parallel="shard")),
    "tensor": (2, ParallelConfig(tensor_parallel=2)),
    "stages": (4, ParallelConfig(pipeline_parallel=4)),
    "all three": (8, ParallelConfig(data_parallel="shard", tensor_parallel=2, pipeline_parallel=2)),
}


def recipes():
    found = {name: with_vocabulary(load_recipe(name, require_data=False).recipe) for name in bundled_recipes()}
    return {name: recipe for name, recipe in found.items() if description_of(recipe.model)}


RECIPES = recipes()
OF_EACH_FAMILY = {type(recipe.model): name for name, recipe in RECIPES.items()}.values()
"""A recipe of each, which is compared by default."""
BY_FAMILY = mostly_slow(sorted(RECIPES, key=lambda name: name not in OF_EACH_FAMILY), len(OF_EACH_FAMILY))


def on_meta(recipe):
    with torch.device("meta"):
        return dict(build_model(recipe.model, torch.float32).own_parameters())


@pytest.mark.parametrize("name", BY_FAMILY)
def test_ranks_hold_the_parameters_of_the_model(name):
    recipe = replace(RECIPES[name], sparsity=SparsityConfig())
    whole = {name: tuple(parameter.shape) for name, parameter in on_meta(recipe).items()}
    for num_ranks, parallel in LAYOUTS.values():
        laid_out = replace(recipe, parallel=parallel)
        if [*parallel.conflicts(recipe.model)]:
            continue
        parts = [RankPart.of(laid_out, num_ranks, rank) for rank in range(num_ranks)]
        tensor, shard = parts[0].sizes.tensor, parts[0].sizes.shard
        for part in parts:
            for key, shape in part.shapes.items():
                dimension = part.description.cut(key)
                expected = list(whole[key])
                if dimension is not None:
                    expected[dimension] //= tensor
                assert tuple(expected) == shape, key
        assert {key for part in parts for key in part.shapes} == set(whole)
        copies = num_ranks // parts[0].sizes.pipeline // shard
        cut_of = recipe.model.description().cut
        cut = sum(math.prod(shape) / (1 if cut_of(key) is None else tensor) for key, shape in whole.items())
        held = sum(part.num_held({}) for part in parts)
        assert held == pytest.approx(cut * copies, rel=1e-3), "shards of odd sizes are padded"


@dataclass(frozen=True, kw_only=True)
class Mixed(AdamWConfig):
    """One number per row for matrices of blocks, nothing for biases, two moments for the rest."""

    def states(self, name, shape):
        if name.startswith("blocks."):
            return {"rows": (*shape[:-1], 1)} if role_of(name, shape) == "matrix" else {}
        return super().states(name, shape)


@dataclass(frozen=True, kw_only=True)
class Plain:
    """What docs/extend.md asks of an optimizer, and nothing else."""

    learning_rate: float = 0.1
    clip_norm: float | None = None


@build_update.register(Mixed)
@build_update.register(Plain)
def _(config):
    return Update(states=partial(states_of, config), apply=lambda *_: None)


@pytest.mark.parametrize(
    "optimizer", [Mixed(), Plain(), MomentumConfig()], ids=lambda optimizer: type(optimizer).__name__
)
@pytest.mark.parametrize("execution", ["resident", "phased"])
def test_states_are_counted_as_an_optimizer_declares_them(optimizer, execution):
    """By plans, by the checks before a run, and by the home that keeps them."""
    recipe = replace(RECIPES["demo"], optimizer=optimizer)
    moments = outline(recipe).home.moments
    tensors = [tensor for states in moments.values() for tensor in states.values()]
    counted = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    padding = {
        name: len(table) - recipe.model.vocab_size for name, table in on_meta(recipe).items() if "tokens" in name
    }
    columns = recipe.model.hidden_size * len(moments["embedding.tokens"]) * 4
    assert recipe.bytes_of_states() == counted - padding["embedding.tokens"] * columns
    memory = memory_of(replace(recipe, memory=MemoryConfig(execution=execution)), compute=Compute())
    if execution == "resident":
        assert memory.moments == counted
    else:
        assert (memory.transfer.update.written > memory.transfer.size / 3) == bool(counted)
    if isinstance(optimizer, Mixed):
        assert {key: tuple(tensor.shape) for key, tensor in moments["blocks.0.attention.qkv.weight"].items()} == {
            "rows": (3, recipe.model.hidden_size, 1)
        }


@pytest.mark.parametrize("name", ["demo", "bert-tiny", "groupbert-base-phase1", "sparse-demo", "gpt3-2.7b"])
def test_state_takes_the_bytes_of_a_home(name):
    precision = replace(RECIPES[name].precision, first_moment="bf16") if name == "demo" else RECIPES[name].precision
    recipe = replace(RECIPES[name], precision=precision, parallel=ParallelConfig())
    state = outline(recipe)
    weights = [*(parameter for _, parameter in state.model.own_parameters()), *state.model.buffers()]
    moments = [tensor for tensors in state.home.moments.values() for tensor in tensors.values()]
    memory = memory_of(recipe, compute=Compute())
    stored = sum(tensor.numel() * tensor.element_size() for tensor in weights)
    assert memory.weights == pytest.approx(stored, rel=1e-4 if name == "sparse-demo" else 0), "maps count blocks, too"
    assert memory.moments == sum(tensor.numel() * tensor.element_size() for tensor in moments)


def test_gradients_are_as_many_as_weights_and_a_second_table():
    memory = memory_of(RECIPES["gpt2-small"], compute=Compute())
    table = 50304 * 768 * 4
    assert memory.weights <= memory.gradients + table
    assert memory.gradients <= memory.weights + table


def test_more_tokens_never_need_less():
    recipe = RECIPES["demo"]
    sizes = [
        memory_of(replace(recipe, training=replace(recipe.training, micro_batch_size=size)), compute=Compute()).peak
        for size in (1, 2, 4, 8, 16)
    ]
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("recompute", ["attention", "all"])
def test_recomputation_keeps_less(recompute):
    recipe = RECIPES["demo"]
    memory = replace(recipe.memory, recompute=recompute)
    kept = memory_of(recipe, compute=Compute()).peak
    assert memory_of(replace(recipe, memory=memory), compute=Compute()).peak < kept


def test_a_world_that_the_layout_does_not_divide_is_refused():
    with pytest.raises(UserError, match="multiple of 2 ranks"):
        memory_of(replace(RECIPES["demo"], parallel=LAYOUTS["tensor"][1]), num_ranks=3, compute=Compute())


def test_sequence_parallel_ranks_keep_a_slice_of_the_tokens_between_cut_layers():
    recipe = RECIPES["gpt2-small"]
    cut, sliced = (
        memory_of(replace(recipe, parallel=parallel), 2, compute=Compute())
        for parallel in (
            ParallelConfig(tensor_parallel=2),
            ParallelConfig(tensor_parallel=2, sequence_parallel=True),
        )
    )
    num_tokens = recipe.training.micro_batch_size * recipe.sequence_length
    per_token = 4 * recipe.model.hidden_size + 4  # of x, two norms, what is between the halves; statistics of the norms
    saved = cut.activations["blocks.0"] - sliced.activations["blocks.0"]
    assert saved == pytest.approx(4 * num_tokens * per_token / 2)


def test_no_native_operator_packs_a_weight_that_is_cut():
    recipe = replace(RECIPES["gpt2-small"], parallel=ParallelConfig(tensor_parallel=2))
    native, torch_alone = (memory_of(recipe, 2, compute=Compute(native=native)) for native in (ALL_NATIVE, frozenset()))
    assert native.workspace <= torch_alone.workspace + 2 * 2 * math.prod(RankPart.of(recipe, 2, 0).table)


def test_attention_by_tritons_kernel_keeps_a_bit_for_each_weight():
    recipe = RECIPES["gpt2-small"]
    dropped, plain = (replace(recipe, model=replace(recipe.model, attention_dropout=share)) for share in (0.1, 0.0))
    triton, torch_alone = (Compute(device="cuda", dtype="bf16", has_triton=has) for has in (True, False))
    kept = memory_of(dropped, compute=triton).activations["blocks.0"]
    queries = recipe.training.micro_batch_size * recipe.model.num_heads * recipe.sequence_length
    bits = 4 * (recipe.sequence_length // 32 + 1) * queries
    assert kept == memory_of(plain, compute=torch_alone).activations["blocks.0"] + bits  # of PyTorch's fused attention
    weights = queries * recipe.sequence_length
    assert memory_of(dropped, compute=torch_alone).activations["blocks.0"] > kept - bits + 6 * weights
    wide = replace(dropped, model=replace(dropped.model, num_heads=2))  # heads of 384 columns
    assert memory_of(wide, compute=triton).activations == memory_of(wide, compute=torch_alone).activations


@pytest.mark.parametrize(("recompute", "kept"), [("none", [1] * 4), ("attention", [0] * 4), ("all", [0, 0, 0, 1])])
def test_recomputed_attention_hashes_its_bits_again(recompute, kept):
    """Only the last block, whose backward pass is next, is not recomputed by "all"."""
    recipe = RECIPES["bert-mini"]
    model, memory = replace(recipe.model, vocab_size=64), replace(recipe.memory, recompute=recompute)
    recipe, triton = replace(recipe, memory=memory), Compute(device="cuda", dtype="bf16", has_triton=True)
    models = (replace(model, attention_dropout=share) for share in (0.0, 0.1))
    plain, dropped = (memory_of(replace(recipe, model=each), compute=triton) for each in models)
    bits = 4 * (recipe.sequence_length // 32 + 1) * full_tokens(recipe).num * model.num_heads
    more = (dropped.activations[f"blocks.{index}"] - plain.activations[f"blocks.{index}"] for index in range(4))
    assert [size / bits for size in more] == kept
    assert dropped.peak - plain.peak <= bits * max(1, sum(kept))


def test_a_budget_measures_a_layer_of_each_new_shape():
    recipe = RECIPES["bert-mini"]
    memory = replace(recipe.memory, recompute="all", recompute_budget=1)
    recipe = replace(recipe, memory=memory)
    seen, new = (
        memory_of(recipe, compute=Compute(), tokens=replace(full_tokens(recipe), is_new=is_new)).peak
        for is_new in (False, True)
    )
    assert new > seen
    assert memory_of(recipe, compute=Compute()).peak == new


@pytest.mark.parametrize(("schedule", "num_wires"), [("1f1b", 1), ("zero-bubble", 2), ("interleaved", 6)])
def test_a_micro_batch_more_takes_a_wire_to_receive_and_one_that_was_sent(schedule, num_wires):
    """Of the first of two ranks: one neighbor or three; 1f1b keeps nothing that was sent."""
    parallel = ParallelConfig(pipeline_parallel=2, pipeline_schedule=schedule)
    recipe = replace(RECIPES["gpt2-small"], parallel=parallel)
    less, more = (
        memory_of(replace(recipe, training=replace(recipe.training, **sizes)), 2, compute=Compute()).peak
        for sizes in ({"micro_batch_size": 1, "global_batch_size": size} for size in (16, 32))
    )
    wire = 4 * recipe.sequence_length * recipe.model.hidden_size
    assert (more - less) / wire == pytest.approx(16 * num_wires)


def test_a_sparse_token_table_has_one_gradient_of_its_blocks():
    recipe = RECIPES["sparse-demo"]  # of two micro-batches, the second finds gradients
    recipe = replace(recipe, training=replace(recipe.training, micro_batch_size=1, global_batch_size=2))
    sparse = replace(recipe, sparsity=replace(recipe.sparsity, embedding_block_size=16))
    dense_table, sparse_table = (memory_of(each, compute=Compute()).gradients for each in (recipe, sparse))
    table, absent = math.prod(RankPart.of(recipe, 1, 0).table), sparse.sparsity.num_absent(recipe.model)
    kept = math.prod(dict(recipe.model.shapes())["embedding.tokens"]) - absent["embedding.tokens"]
    assert dense_table - sparse_table == 4 * (2 * table - kept)
