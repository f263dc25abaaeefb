"""Compiled blocks: one graph for all layers, without breaks, on the path that a GPU takes."""

from functools import partial

import pytest
import torch

from hornbook.config import load_recipe
from hornbook.engine import parallelize
from hornbook.engine.build_training import build_loader, build_samples, build_training
from hornbook.engine.step import train_step
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
CUT = sequence_groups._cut


@pytest.mark.filterwarnings("ignore")  # of the compiler, about itself
@pytest.mark.parametrize(
    ("name", "options", "num_graphs"),
    [("gpt2-small", DROPOUTS, 1), ("bert-tiny", {**DROPOUTS, "data.layout": "packed"}, 2)],
)
def test_24_layers_share_a_graph(monkeypatch, name, options, num_graphs):
    """Of BERT, one for the first number of sequences and one for any number."""
    from torch._dynamo import reset
    from torch._dynamo.utils import counters

    monkeypatch.setattr(attention, "is_blocked", lambda *given, **options: False)
    monkeypatch.setattr(layers, "affine_dtype", lambda dtype, device: dtype)
    monkeypatch.setattr(sequence_groups, "_cut", lambda order, lengths, is_coarse: CUT(order, lengths, is_coarse=True))
    monkeypatch.setattr(parallelize.torch, "compile", partial(torch.compile, backend="aot_eager"))
    reset()
    counters.clear()
    recipe = load_recipe(name, [f"--{key}={value}" for key, value in {**SMALL, **options}.items()]).recipe
    sources = open_sources(recipe)
    recipe = complete(recipe, sources)
    samples = build_samples(recipe, sources, on_cpu=False)
    untouched = torch._dynamo.config.patch(), torch.compiler.config.patch()  # settings are restored
    with untouched[0], untouched[1], build_loader(recipe, samples, World(), prefetch=0) as loader:
        state, config = build_training(recipe, 20, World())
        for _ in range(3):
            assert train_step(state, next(loader), config).loss > 0.0
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == num_graphs
