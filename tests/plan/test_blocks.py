"""What a block keeps, in B·T·D units, by the tape, beside what autograd saves and what the allocator counts."""

import pytest
import torch
from cases import mostly_slow

from hornbook.config import GPTConfig, load_recipe
from hornbook.engine.activations import counted_bytes
from hornbook.engine.build_training import build_training
from hornbook.measure.memory_check import allocated_at_peak, tokens_of
from hornbook.measure.throughput import synthetic_loader
from hornbook.parallel.world import World
from hornbook.plan.attention import Group, Tokens
from hornbook.plan.blocks import block_of
from hornbook.plan.layers import Compute, Layers
from hornbook.plan.tape import Tape
from hornbook.run.planning import compute_on

CPU = torch.device("cpu")
SIZES = [
    "model.vocab_size=300",
    "model.num_layers=2",
    "model.hidden_size=64",
    "model.num_heads=4",
    "training.micro_batch_size=4",
    "training.global_batch_size=4",
    "data.sequence_length=64",
    "precision.kernels=torch",
]
MODELS = {
    "gpt": "demo",
    "gpt with dropouts": "demo model.attention_dropout=0.1 model.residual_dropout=0.1",
    "gpt by documents": "demo data.document_mask=true",
    "gpt by documents with dropout": "demo data.document_mask=true model.attention_dropout=0.1",
    "bert padded": "bert-mini data.layout=padded",
    "bert packed": "bert-mini data.layout=packed",
    "bert unpadded": "bert-mini data.layout=unpadded",
    "bert without dropouts": "bert-mini model.attention_dropout=0 model.residual_dropout=0",
    "modernbert padded": "modernbert-mini data.layout=padded model.local_window=16",
    "modernbert unpadded": "modernbert-mini data.layout=unpadded model.local_window=16",
    "modernbert with dropout": "modernbert-mini data.layout=unpadded model.local_window=16 model.attention_dropout=0.1",
    "modernbert, native": "modernbert-mini data.layout=unpadded model.local_window=16 precision.kernels=native",
    "groupbert": "groupbert-base-phase1 data.layout=unpadded",
    "decoder": "demo model.family=decoder",
    "decoder with grouped heads": "demo model.family=decoder model.num_kv_heads=2 model.residual_dropout=0.1",
    "decoder like qwen": "demo model.family=decoder model.num_kv_heads=1 model.query_key_norm=head",
    "decoder like gemma": "demo model.family=decoder model.query_key_norm=head model.norm_placement=both "
    "model.window=16",
    "decoder like olmo": "demo model.family=decoder model.query_key_norm=width model.norm_placement=after",
    "decoder with shifted keys": "demo model.family=decoder model.query_key_norm=head model.shifted_keys=true",
    "decoder with shifted keys, native": "demo model.family=decoder model.num_kv_heads=2 model.shifted_keys=true "
    "model.query_key_norm=head precision.kernels=native",
    "decoder with caps": "demo model.family=decoder model.attention_cap=9 model.feed_forward=plain",
}


@pytest.mark.parametrize("dtype", mostly_slow(["bf16", "fp32"]))
@pytest.mark.parametrize("name", MODELS)
def test_a_block_keeps_what_the_tape_says(name, dtype):
    recipe_name, *options = MODELS[name].split()
    words = [f"--{word}" for word in (*SIZES, f"precision.compute={dtype}", *options)]
    recipe = load_recipe(recipe_name, words, require_data=False).recipe
    state, _ = build_training(recipe, 1, World(device=CPU))
    batch = next(synthetic_loader(recipe, World(device=CPU)))[0]
    model, kept = state.model, {}
    context = model.make_context(batch)
    x = model.embedding(batch["tokens"], batch["positions"], batch["keys"], batch.get("segments"))
    x = x.detach().requires_grad_()
    block = model.blocks[1]
    block(x, context)
    of_context = [leaf for leaf in torch.utils._pytree.tree_leaves(context) if isinstance(leaf, torch.Tensor)]
    with counted_bytes(x, *block.parameters(), *of_context) as saved:
        kept["y"] = block(x, context)
    y_is_saved = kept["y"].untyped_storage().data_ptr() in saved
    tape = Tape()
    layers = Layers(tape, compute_on(recipe, CPU))
    block_of(recipe.model.description().block, 1, tokens_of(recipe, state, batch)).forward(layers, "x", "y")
    packed = sum(tape.size(name) for name in tape.names() if name.endswith("/panels"))  # native products keep them
    predicted = tape.live - packed - (0 if y_is_saved else tape.size("y"))
    unit = x.numel() * x.element_size()
    assert predicted / unit == pytest.approx(sum(saved.values()) / unit, rel=0.01)


@pytest.mark.parametrize(("dtype", "units"), [("fp32", 18.0), ("bf16", 21.0)])
def test_a_block_of_gpt_in_units(dtype, units):
    """15 of layers; 3 of weights of 8 heads, whose blocks of 128 queries have 3/4 of T x T; bf16: 3 of copied weights.

    These are what `saved_tensors_hooks` found in the prototypes of scaling (section 6).
    """
    model = GPTConfig(num_layers=1, hidden_size=512, num_heads=8, max_positions=256)
    num = 8 * 256
    tokens = Tokens(num=num, num_real=num, groups=(Group(8, 256),), num_scored=num)
    tape = Tape()
    layers = Layers(tape, Compute(dtype=dtype))
    block_of(model.description().block, 0, tokens).forward(layers, "x", "y")
    assert (tape.live - tape.size("y")) / (num * 512 * layers.itemsize) == pytest.approx(units, abs=0.02)


def test_the_allocator_counts_what_the_tape_does():
    held = []
    peak = allocated_at_peak(lambda: held.append(torch.zeros(1000).add(torch.ones(1000))))
    assert peak == 3 * 4000
