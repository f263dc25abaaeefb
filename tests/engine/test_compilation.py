"""Compiled blocks: one graph for all layers, without breaks, on the path that a GPU takes."""

import importlib.util
from functools import partial

import pytest
import torch

from hornbook.config import load_recipe
from hornbook.engine import parallelize
from hornbook.engine.build_training import build_loader, build_samples, build_training
from hornbook.engine.step import train_step
from hornbook.model import LanguageModel
from hornbook.ops import attention, layers, sequence_groups
from hornbook.parallel.world import World
from hornbook.samples.sources import complete, open_sources

SMALL = {
    "data.synthetic": True, "data.sequence_length": 32, "model.vocab_size": 300, "model.hidden_size": 32,
    "model.num_heads": 2, "model.num_layers": 24, "model.max_positions": 32, "training.global_batch_size": 4,
    "training.micro_batch_size": 4, "training.steps": 20, "precision.compute": "bf16", "precision.kernels": "torch",
    "training.compile": "blocks",
}  # fmt: skip
DROPOUTS = {"model.residual_dropout": 0.1, "model.attention_dropout": 0.1, "model.embedding_dropout": 0.1}
WINDOWS = {"model.window": 8, "model.window_pattern": "LG", "model.feed_forward_size": 64}
GROUPED = {"model.num_kv_heads": 1, "model.head_size": 16}
CUT = sequence_groups._cut


@pytest.fixture
def train(monkeypatch):
    """Return a function that trains three steps of a recipe, and returns their results."""
    from torch._dynamo import reset
    from torch._dynamo.utils import counters

    monkeypatch.setattr(attention, "is_blocked", lambda *given, **options: False)
    monkeypatch.setattr(layers, "affine_dtype", lambda dtype, device: dtype)
    monkeypatch.setattr(sequence_groups, "_cut", lambda order, lengths, is_coarse: CUT(order, lengths, is_coarse=True))
    monkeypatch.setattr(parallelize, "gathered_dtype", lambda model, device: model.compute_dtype)

    def steps(name, options):
        reset()
        counters.clear()
        recipe = load_recipe(name, [f"--{key}={value}" for key, value in {**SMALL, **options}.items()]).recipe
        sources = open_sources(recipe)
        recipe = complete(recipe, sources)
        samples = build_samples(recipe, sources, on_cpu=False)
        untouched = torch._dynamo.config.patch(), torch.compiler.config.patch()  # settings are restored
        with untouched[0], untouched[1], build_loader(recipe, samples, World(), prefetch=0) as loader:
            state, config = build_training(recipe, 20, World())
            results = [train_step(state, next(loader), config) for _ in range(3)]
        assert not counters["graph_break"]
        return results

    return steps


@pytest.fixture
def count_graphs(monkeypatch, train):
    """Return a function that trains three steps of a recipe and returns how many graphs its blocks were compiled to."""
    from torch._dynamo.utils import counters

    monkeypatch.setattr(parallelize.torch, "compile", partial(torch.compile, backend="aot_eager"))

    def count(name, options):
        assert all(result.loss > 0.0 for result in train(name, options))
        return counters["stats"]["unique_graphs"]

    return count


@pytest.mark.filterwarnings("ignore")
def test_graphs_take_weights_in_16_bits_and_give_the_same_bits(monkeypatch, train):
    """In four layers of a block, a graph would cast the weights in each micro-batch, and their gradients back."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func

    def count(module, inputs):
        casts.append(sum(node.target is torch.ops.aten._to_copy.default for node in module.graph.nodes))
        return make_boxed_func(module.forward)

    backend = aot_autograd(fw_compiler=count, bw_compiler=count)
    monkeypatch.setattr(parallelize.torch, "compile", partial(torch.compile, backend=backend))
    found = {}
    for dtype in (None, torch.bfloat16):
        casts = []
        monkeypatch.setattr(parallelize, "gathered_dtype", lambda model, device, dtype=dtype: dtype)
        results = train("gpt2-small", {"model.num_layers": 2, "training.micro_batch_size": 1})
        found[dtype] = casts, [(result.loss, result.gradient_norm) for result in results]
    (wide, expected), (narrow, results) = found.values()
    assert results == expected
    assert [before - after for before, after in zip(wide, narrow, strict=True)] == [4, 4]


@pytest.mark.filterwarnings("ignore")  # of the compiler, about itself
@pytest.mark.parametrize(
    ("name", "options", "num_graphs"),
    [
        ("gpt2-small", DROPOUTS, 1),
        pytest.param("bert-tiny", {**DROPOUTS, "data.layout": "packed"}, 2, marks=pytest.mark.slow),
    ],
)
def test_24_layers_share_a_graph(count_graphs, name, options, num_graphs):
    """Of BERT by PyTorch's operators, one without padding and one with it."""
    assert count_graphs(name, options) == num_graphs


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize(
    ("name", "options", "num_graphs"),
    [
        ("gpt2-small", DROPOUTS, 1),
        ("bert-tiny", {**DROPOUTS, "data.layout": "packed"}, 1),
        ("bert-tiny", {**DROPOUTS, "data.layout": "unpadded", "training.micro_batch_size": 2}, 1),
        ("groupbert-base-phase1", {**DROPOUTS, "data.layout": "packed", "model.convolution_group_size": 8}, 1),
        ("llama-3.2-1b", {"data.document_mask": True, **GROUPED, **WINDOWS}, 2),
    ],
)
def test_24_layers_with_triton_share_a_graph_for_all_batches(monkeypatch, count_graphs, name, options, num_graphs):
    """The attention's results are not computed here, only its shapes: `test_triton_attention` compares them.

    A decoder has two kinds of layers, with a window and without.
    """
    from hornbook.ops.triton import attention as triton_attention

    calls = []

    def forward(packed, *others):
        calls.append(packed[0].shape)
        *_, num_heads, size = packed[0].shape
        return packed[0].new_zeros(len(packed[0]), num_heads, size), torch.zeros(num_heads, len(packed[0]))

    def hash_dropped(num_heads, spans, longest, keys, dropout, settings):
        words = triton_attention.num_words(longest, settings.window, is_causal=settings.is_causal)
        return torch.zeros(num_heads, words, len(keys), dtype=torch.int32)

    def backward(gradient, y, log_sums, packed, *others):
        return [torch.zeros_like(part) for part in packed], [part.new_zeros(part.shape[1:]).float() for part in packed]

    monkeypatch.setattr(triton_attention, "hash_dropped", hash_dropped)
    monkeypatch.setattr(triton_attention, "forward", forward)
    monkeypatch.setattr(triton_attention, "backward", backward)
    monkeypatch.setattr(LanguageModel, "takes_spans", lambda model, device: True)
    assert count_graphs(name, options) == num_graphs
    assert len(calls) >= 3 * 24


def test_blocks_are_compiled_by_default_on_a_gpu_where_nothing_breaks_their_graph(monkeypatch):
    def compiles(name, *words):
        recipe = load_recipe(name, words, require_data=False).recipe
        return parallelize.compiles_blocks(recipe, torch.device("cuda"))

    assert not compiles("gpt2-small")  # without Triton
    monkeypatch.setattr(parallelize, "selected", lambda device: True)
    assert all(map(compiles, ("gpt2-small", "llama-3.2-1b", "bert-base-phase1", "groupbert-base-phase1")))
    assert not compiles("sparse-gpt")
    assert not compiles("sparse-demo")
    for word in ("training.compile=none", "memory.offload_activations=true", "memory.recompute=attention"):
        assert not compiles("gpt2-small", f"--{word}")
    assert compiles("gpt2-small", "--parallel.tensor_parallel=2")
    assert not compiles("gpt2-small", "--parallel.tensor_parallel=2", "--parallel.sequence_parallel=true")
