"""Predicted memory beside what PyTorch's allocator counts in real steps: within 3 % on every bundled recipe, shrunk."""

from dataclasses import replace

import pytest
import torch
from cases import mostly_slow
from ranks import errors_of

from hornbook.config import LabelledConfig, ParallelConfig, bundled_recipes, load_recipe
from hornbook.config.description import description_of
from hornbook.measure.memory_check import TOLERANCES, check_steps
from hornbook.ops.native import choice
from hornbook.ops.native.kernels import PYTORCH, instruction_sets
from hornbook.parallel.world import World
from hornbook.plan.layers import ALL_NATIVE
from hornbook.plan.stand_ins import shrunk
from hornbook.run.planning import compute_on

SIXTEEN_BITS = (
    "precision.weights=bf16 precision.gradients=bf16 precision.first_moment=bf16 precision.second_moment=bf16"
)
MODES = {
    "resident": "",
    "recompute all": "memory.recompute=all",
    "recompute attention": "memory.recompute=attention",
    "budget": "memory.recompute=all memory.recompute_budget=1",
    "phased": "memory.execution=phased training.global_batch_size=16",
    "phased in 16 bits": f"memory.execution=phased {SIXTEEN_BITS}",
    "phased with chunks": "memory.execution=phased memory.vocabulary_chunks=8",
    "chunks": "memory.vocabulary_chunks=4",
    "16 bits": SIXTEEN_BITS,
    "16-bit moments": "precision.first_moment=bf16",
    "fp16 state": "precision.weights=fp16 precision.gradients=fp16 precision.second_moment=fp16",
    "fp16": "precision.compute=fp16",
    "lamb": "optimizer.name=lamb",
    "momentum": "optimizer.name=momentum",
    "attention dropout": "model.attention_dropout=0.1 model.residual_dropout=0.1",
}
MODELS = ("demo", "bert-mini", "groupbert-base-phase1")
LAYOUTS_OF_RANKS = {
    "replicas": "",
    "shards": "parallel.data_parallel=shard",
    "tensor": "parallel.tensor_parallel=2",
    "sequence": "parallel.tensor_parallel=2 parallel.sequence_parallel=true",
    **{
        schedule: f"parallel.pipeline_parallel=2 parallel.pipeline_schedule={schedule}"
        for schedule in ("gpipe", "1f1b", "interleaved", "zero-bubble", "v-shaped")
    },
}
LAYOUTS = ("padded", "packed", "unpadded")


def error_of(name, options="", dtype="fp32", kernels="torch"):
    words = [f"--{word}" for word in f"precision.compute={dtype} precision.kernels={kernels} {options}".split()]
    recipe = shrunk(load_recipe(name, words, require_data=False).recipe)
    return check_steps(recipe, World(device=torch.device("cpu"))).error


def known():
    recipes = {name: load_recipe(name, require_data=False).recipe for name in bundled_recipes()}
    return [
        name
        for name, recipe in recipes.items()
        if description_of(recipe.model) and not isinstance(recipe.objective, LabelledConfig)  # random tokens
    ]


@pytest.mark.parametrize(
    ("name", "options"),
    mostly_slow([("demo", ""), ("demo", "memory.execution=phased"), ("bert-tiny", ""), ("sparse-gpt", "")]),
)
def test_four_runs(name, options):
    assert abs(error_of(name, options)) < TOLERANCES["resident"]


@pytest.mark.parametrize(
    ("name", "dtype", "kernels"),
    [("llama-3.2-1b", "fp32", "native"), ("decoder-demo", "bf16", "torch")],
    ids=["native attention of documents", "capped logits are freed"],
)
def test_what_only_all_recipes_showed(name, dtype, kernels):
    assert abs(error_of(name, dtype=dtype, kernels=kernels)) < TOLERANCES["resident"]


@pytest.mark.slow
@pytest.mark.parametrize("name", known())
@pytest.mark.parametrize(("dtype", "kernels"), [(d, k) for d in ("fp32", "bf16") for k in ("torch", "auto")])
def test_every_recipe(name, dtype, kernels):
    assert abs(error_of(name, dtype=dtype, kernels=kernels)) < TOLERANCES["resident"]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("mode", "dtype", "kernels"),
    [(mode, dtype, kernels) for mode in MODES for dtype in ("fp32", "bf16") for kernels in ("torch", "auto")],
)
def test_every_mode(name, mode, dtype, kernels):
    execution = "phased" if mode.startswith("phased") else "resident"
    assert abs(error_of(name, MODES[mode], dtype, kernels)) < TOLERANCES[execution]


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["bert-mini", "roberta-base-wikitext2", "groupbert-base-phase1"])
def test_every_layout_of_sequences(name, layout):
    assert abs(error_of(name, f"data.layout={layout}", "bf16")) < TOLERANCES["resident"]


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["torch", "auto"])
@pytest.mark.parametrize("block_size", [4, 16])
def test_a_sparse_token_table(block_size, kernels):
    assert abs(error_of("sparse-demo", f"sparsity.embedding_block_size={block_size}", kernels=kernels)) < 0.03


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["torch", "auto"])
@pytest.mark.parametrize("layout", LAYOUTS_OF_RANKS)
def test_every_layout_of_ranks(layout, kernels):
    options = [f"--{word}" for word in LAYOUTS_OF_RANKS[layout].split()]
    options += ["--precision.compute=fp32", f"--precision.kernels={kernels}"]
    errors = dict(zip(MODELS, errors_of(2, [[name, *options] for name in MODELS]), strict=True))
    assert max(abs(error) for each in errors.values() for error in each) < TOLERANCES["resident"], errors


@pytest.mark.parametrize("dtype", mostly_slow(["bf16", "fp32"]))
@pytest.mark.parametrize("slow", mostly_slow(["cross_entropy", "layer_norm", "attention", "linear"]))
def test_native_operators_beside_one_of_pytorch(monkeypatch, slow, dtype):
    """``auto`` measures each kernel by itself, so that it selects some native operators and not others."""

    def seconds(kernel, shape):
        return {PYTORCH: 0.0 if kernel.name.startswith(slow) else 2.0} | dict.fromkeys(instruction_sets(), 1.0)

    if not instruction_sets():
        pytest.skip("this processor has no AVX2")
    monkeypatch.setattr(choice, "seconds", seconds)
    recipe = load_recipe("bert-mini", [f"--precision.compute={dtype}"], require_data=False).recipe
    assert compute_on(recipe, torch.device("cpu")).native == ALL_NATIVE - {slow}
    assert abs(error_of("bert-mini", dtype=dtype, kernels="auto")) < TOLERANCES["resident"]


def test_a_prediction_that_is_off_is_seen():
    recipe = shrunk(load_recipe("demo", ["--precision.compute=fp32"], require_data=False).recipe)
    found = check_steps(recipe, World(device=torch.device("cpu")))
    other = replace(found, predicted=replace(found.predicted, workspace=found.predicted.workspace * 2))
    assert other.error > TOLERANCES["resident"] > found.error
    assert recipe.parallel == ParallelConfig()
