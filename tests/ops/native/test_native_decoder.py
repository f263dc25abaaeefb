"""Decoders with native operators against the same with PyTorch's: every option that native operators compute."""

import pytest
import torch
from native_forms import NativeCalls, all_native
from tiny import random_batch, randomize

from hornbook.config import DecoderConfig, Recipe
from hornbook.model import initialize, model_of
from hornbook.ops.native.kernels import NOT_CHOSEN, using

SIZES = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "vocab_size": 70, "max_positions": 24}
OPTIONS = {
    "llama": {"num_kv_heads": 2},
    "dropout": {"attention_dropout": 0.2, "residual_dropout": 0.1, "query_key_norm": "head"},
    "gemma": {
        "num_kv_heads": 1, "query_key_norm": "head", "norm_placement": "both", "window": 5, "window_pattern": "LG",
        "local_rope_theta": 100.0, "attention_cap": 2.0, "attention_scale": 0.7, "activation": "gelu_tanh",
    },
    "olmo": {"query_key_norm": "width", "norm_placement": "after", "num_kv_heads": 2},
    "olmo stacked": {"query_key_norm": "width"},
    "nanochat": {
        "norm_gain": False, "query_key_norm": "head", "feed_forward": "plain", "activation": "relu_squared",
        "rope_share": 0.5,
    },
    "layer norm": {"norm": "layer", "linear_bias": True, "qkv_bias": True, "positions": "learned"},
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_losses_and_gradients(name, documents, dtype):
    batch = random_batch(3, 24, unscored=0.1)
    if documents:
        batch["documents"] = (torch.arange(24) >= 9).long().expand(3, -1) + torch.arange(3).unsqueeze(1)

    def gradients(kernels, dtype):
        model = model_of(Recipe(model=DecoderConfig(**SIZES | OPTIONS[name])), dtype)
        initialize(model, seed=3)
        randomize(model, scale=0.1)
        with using(kernels):
            loss = model(lambda head, x_BTD, batch: head.cross_entropy(x_BTD, batch["targets"]), batch)
            loss.backward()
        return [loss.detach(), *(parameter.grad for _, parameter in model.own_parameters())]

    right = gradients(NOT_CHOSEN, torch.float32)
    with NativeCalls() as calls:
        ours = errors(gradients(all_native(), dtype), right)
    assert calls.names >= {"attention", "attention_backward", "norm", "norm_backward", "linear"}
    if dtype == torch.float32:
        assert ours.max() < 2e-5
    else:  # it errs no more than PyTorch
        assert ours.mean() < 1.25 * errors(gradients(NOT_CHOSEN, dtype), right).mean()


def errors(found, right):
    """The relative error of each tensor."""
    pairs = zip(found, right, strict=True)
    return torch.stack([(own - exact).norm() / exact.norm().clamp(min=1e-6) for own, exact in pairs])
