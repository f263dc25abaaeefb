"""Training steps on a GPU without values: no mixed devices, few waits, few kernels."""

import json
from pathlib import Path

import pytest
import torch
from cases import mostly_slow
from ranks import python, steps_without_gpu

from hornbook.measure.kernel_trace import _pairs_of_tiles
from hornbook.measure.memory_check import TOLERANCES
from hornbook.ops.spans import spans_of_sequences

FAST = ("gpt bf16", "gpt bf16, 4 micro-batches", "gpt without Triton", "gpt dropout", "gpt sparse", "bert padded")


@pytest.fixture(scope="module", params=mostly_slow([(FAST,), ((),)]), ids=["fast", "all"])
def steps(request):
    """What steps of the chosen cases do, or of all."""
    return steps_without_gpu(Path(__file__).parent / "fake_steps.py", *request.param)


@pytest.mark.slow
def test_micro_batches_of_a_recipe_share_an_update(steps):
    sizes = ["--model.num-layers=2", "--model.hidden-size=64", "--model.num-heads=4"]
    words = ["plan", "gpt2-small", *sizes, "--training.micro-batch-size=4", "--device", "h100", "--kernels", "--json"]
    batches = (f"--training.global-batch-size={number}" for number in (4, 8))
    one, two = (json.loads(python("-m", "hornbook", *words, batch).stdout) for batch in batches)
    assert (one["num_micro_batches"], two["num_micro_batches"]) == (1, 2)
    assert one["peak_bytes"] == two["peak_bytes"] > 0
    assert one["mfu_of_recipe"] == one["mfu"] == two["mfu"] < two["mfu_of_recipe"]


def test_only_tiles_with_hidden_pairs_are_masked():
    def pairs(*lengths):
        lengths_S = torch.tensor(lengths)
        spans = spans_of_sequences(lengths_S.cumsum(0) - lengths_S, lengths_S, sum(lengths), torch.device("cpu"))
        return _pairs_of_tiles(spans.tokens)

    assert pairs(128, 64) == (128 * 128 + 64 * 64, 0)
    assert pairs(32, 96) == (64 * 128 + 64 * 96, 64 * 128 + 64 * 32)  # 96 keys: one and a half tiles


def test_no_step_mixes_devices(steps):
    assert not {title: found["error"] for title, found in steps.items() if "error" in found}


def test_a_step_waits_for_its_losses_and_its_gradient_norm_only(steps):
    for title, found in steps.items():
        assert len(found["waits"]) == 2, (title, found["waits"])
        assert all(place.startswith("engine/step.py:") for place in found["waits"])


def test_dropout_is_one_kernel(steps):
    """Each way: inside of the norm behind it, or of the embedding."""
    assert not {"triton_dropout", "triton_dropout_gradient"} & set(steps["gpt dropout"]["names"])
    assert "bitwise_right_shift" not in steps["gpt dropout"]["names"]
    # fewer additions of residuals, one more kernel for the attention's gradients
    assert steps["gpt dropout"]["kernels"] <= steps["gpt bf16"]["kernels"] + 2 * 2 * 8
    assert steps["gpt without Triton"]["kernels"] > 2 * steps["gpt dropout"]["kernels"]


def test_attention_with_dropout_or_sequences_is_tritons(steps):
    titles = {"gpt dropout", "bert padded", "bert packed", "bert unpadded", "roberta", "groupbert"}
    for title in titles & steps.keys():
        assert {"triton_attention", "triton_attention_gradients"} <= set(steps[title]["names"]), title
        assert "_softmax" not in steps[title]["names"]
    assert "triton_attention" not in steps["gpt bf16"]["names"]


def test_losses_are_tritons(steps):
    for title, found in steps.items():
        others = ("gpt without Triton", "gpt vocabulary in parts")
        assert ("triton_cross_entropy" in found["names"]) == (title not in others), title
    if "decoder dropout" in steps:
        assert "tanh" not in steps["decoder dropout"]["names"]  # its logits are capped


def test_the_plan_predicts_the_tensors_of_a_step(steps):
    for title, found in steps.items():
        if title not in ("bert packed", "bert unpadded", "roberta", "groupbert"):  # whose rows are not full
            assert found["planned"] == pytest.approx(found["peak"], rel=TOLERANCES["resident"]), title


def test_block_sparse_layers_take_triton(steps):
    assert "block_sparse_product" in steps["gpt sparse"]["names"]


def test_products_of_a_feed_forward_apply_the_activation(steps):
    for title in {"gpt bf16", "gpt fp16", "gpt dropout", "bert padded", "roberta"} & steps.keys():
        assert {"triton_activated_linear", "triton_activated_gradient"} <= set(steps[title]["names"]), title
    if "gpt fp32" in steps:
        assert "triton_activated_linear" not in steps["gpt fp32"]["names"]


def test_gradients_of_query_key_and_value_are_not_stacked(steps):
    assert "addmm_" in steps["gpt bf16"]["names"]
    assert "addmm_" not in steps["gpt dropout"]["names"]  # Triton's attention stores them side by side


def test_updates_write_the_weights_that_products_take(steps):
    few, many = (steps[title]["casts"] for title in ("gpt bf16", "gpt bf16, 4 micro-batches"))
    assert not {"bfloat16", "float32"} & (few.keys() | many.keys())
    assert "triton_adamw" in steps["gpt bf16"]["names"]
    assert steps["gpt without Triton"]["casts"]["float32"] > 2 * 2 * 4 * 2


def test_embeddings_are_a_kernel_and_their_gradients_have_no_table(steps):
    for title in {"gpt bf16", "gpt dropout"} & steps.keys():
        assert {"triton_embedding", "triton_add_rows"} <= set(steps[title]["names"]), title
        assert not {"embedding", "embedding_dense_backward"} & set(steps[title]["names"]), title


@pytest.mark.slow
def test_gpt2_reaches_half_of_an_h100_and_dropout_costs_a_twentieth():
    """On the roofline, with one micro-batch a step and with those of the recipe."""
    words = ["plan", "gpt2-small", "--training.micro-batch-size=16", "--device", "h100", "--kernels", "--json"]
    dropouts = [f"--model.{place}-dropout=0.1" for place in ("embedding", "residual", "attention")]
    plain, dropped = (json.loads(python("-m", "hornbook", *words, *more).stdout) for more in ((), dropouts))
    assert plain["mfu"] > 0.502 and plain["mfu_of_recipe"] > 0.52
    assert 1.0 < plain["mfu"] / dropped["mfu"] < 1.045
    assert 1.0 < plain["mfu_of_recipe"] / dropped["mfu_of_recipe"] < 1.046
