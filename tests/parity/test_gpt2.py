"""hornbook's GPT against transformers' GPT-2, on random weights: logits, summed loss and every gradient."""

import math
import re

import pytest
import torch
from tiny import hidden_states, random_batch, randomize, tiny_config
from transformers import GPT2Config, GPT2LMHeadModel

from hornbook.model import LanguageModel, build_model, initialize
from hornbook.samples.batches import Batch

HF_ACTIVATIONS = {"gelu_tanh": "gelu_new", "gelu": "gelu", "relu": "relu", "silu": "silu", "relu_squared": "relu2"}
HF_MODULES = {
    "attention_norm": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "feed_forward_norm": "ln_2",
    "feed_forward.up": "mlp.c_fc",
    "feed_forward.down": "mlp.c_proj",
}
SHAPES = {
    "vocabulary no multiple of 64, short sequence": {"num_tokens": 9},
    "one layer, one head, one token": {"num_layers": 1, "num_heads": 1, "num_tokens": 1},
    "many small heads, all positions": {"num_heads": 8, "hidden_size": 32, "num_tokens": 24},
    "wider": {"hidden_size": 256, "num_heads": 4, "vocab_size": 1000, "num_tokens": 24},
    "more than one block of queries": {"max_positions": 300, "num_tokens": 290},
    "padded to the row": {"vocab_size": 128, "num_tokens": 16},
    "one token past a multiple": {"vocab_size": 65, "num_layers": 3, "num_tokens": 16},
    "own feed-forward size": {"feed_forward_size": 40, "num_tokens": 12},
    "gelu": {"activation": "gelu", "num_tokens": 12},
    "relu": {"activation": "relu", "num_tokens": 12},
    "silu": {"activation": "silu", "num_tokens": 12},
    "relu squared": {"activation": "relu_squared", "num_tokens": 12},
    "large epsilon": {"layer_norm_epsilon": 1e-2, "num_tokens": 12},
}
GPT2_WIDTH = {"hidden_size": 768, "num_heads": 12, "vocab_size": 50257, "max_positions": 1024, "num_tokens": 128}


def hf_model(model: LanguageModel, config) -> GPT2LMHeadModel:
    """A GPT-2 of transformers, dropout off, eager attention, with the weights of ``model``."""
    peer = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=config.vocab_size,
            n_positions=config.max_positions,
            n_embd=config.hidden_size,
            n_layer=config.num_layers,
            n_head=config.num_heads,
            n_inner=config.feed_forward_size,
            activation_function=HF_ACTIVATIONS[config.activation],
            layer_norm_epsilon=config.layer_norm_epsilon,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            attn_implementation="eager",
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    state = dict(to_hf(model, name, parameter.detach()) for name, parameter in model.own_parameters())
    missing, unexpected = peer.load_state_dict(state, strict=False)
    assert missing == ["lm_head.weight"], "all but the tied head are given"
    assert not unexpected
    return peer


def to_hf(model: LanguageModel, name: str, tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
    """transformers' name and layout of a tensor shaped like our parameter ``name``: its Conv1D is transposed."""
    tables = {"embedding.tokens": "wte.weight", "embedding.positions": "wpe.weight"}
    if name in tables:
        return f"transformer.{tables[name]}", model.logical(name, tensor).clone()
    if name.startswith("head.norm."):
        return f"transformer.ln_f.{name.rpartition('.')[2]}", tensor.clone()
    block, module, kind = re.fullmatch(r"blocks\.(\d+)\.(.+)\.(weight|bias)", name).groups()
    tensor = tensor.flatten(0, -2).t() if kind == "weight" and tensor.dim() > 1 else tensor.flatten()
    return f"transformer.h.{block}.{HF_MODULES[module]}.{kind}", tensor.clone()


def summed_losses(model: LanguageModel, peer: GPT2LMHeadModel, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Our sum over the targets, and transformers'; its labels are given shifted, since one sequence has one token."""
    targets = batch["targets"]
    theirs = peer(input_ids=batch["tokens"], labels=targets, shift_labels=targets, num_items_in_batch=1).loss
    return model.head.cross_entropy(hidden_states(model, batch), targets), theirs


def gradient_error(model: LanguageModel, peer: GPT2LMHeadModel) -> float:
    """L2 norm of the difference of all gradients, as a share of the norm of transformers' gradients."""
    theirs = {name: parameter.grad.double() for name, parameter in peer.named_parameters()}
    ours = dict(to_hf(model, name, parameter.grad.double()) for name, parameter in model.own_parameters())
    assert ours.keys() == theirs.keys()
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in theirs.values()))
    return math.sqrt(sum(float((ours[name] - theirs[name]).square().sum()) for name in theirs)) / norm


@pytest.mark.parametrize(
    "shape",
    [
        *(pytest.param(shape, id=name) for name, shape in SHAPES.items()),
        pytest.param(GPT2_WIDTH, id="width and vocabulary of GPT-2 small", marks=pytest.mark.slow),
    ],
)
def test_logits_loss_and_gradients_equal_transformers(shape: dict):
    sizes = dict(shape)
    num_tokens = sizes.pop("num_tokens")
    config = tiny_config(**sizes)
    model = build_model(config, torch.float32)
    initialize(model, 3)
    randomize(model, scale=1.2 / math.sqrt(config.hidden_size))  # logits of spread 1 or 2, whatever the width
    peer = hf_model(model, config)
    batch = random_batch(3, num_tokens, vocab_size=config.vocab_size, unscored=0.3, seed=1)
    batch["targets"][0, 0] = 5

    logits = model.head.logits(hidden_states(model, batch))
    torch.testing.assert_close(logits, peer(input_ids=batch["tokens"]).logits, atol=1e-5, rtol=0)

    ours, theirs = summed_losses(model, peer, batch)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    ours.backward()
    theirs.backward()
    model.fold_tied_gradients()
    assert gradient_error(model, peer) < 1e-5


def test_bfloat16_stays_near_fp32():
    """bf16 keeps 8 bits. Allowed: logits 20 % of their spread, the loss 1 %, gradients 5 % of their norm."""
    config = tiny_config(hidden_size=64)
    precise, rough = (build_model(config, dtype) for dtype in (torch.float32, torch.bfloat16))
    for model in (precise, rough):
        initialize(model, 3)
        randomize(model, scale=0.1)
    batch = random_batch(4, 24, seed=2)
    logits = [model.head.logits(hidden_states(model, batch)) for model in (precise, rough)]
    assert (logits[0] - logits[1]).abs().max() < 0.2 * logits[0].std()
    losses = [model.head.cross_entropy(hidden_states(model, batch), batch["targets"]) for model in (precise, rough)]
    torch.testing.assert_close(losses[1], losses[0], rtol=0.01, atol=0.0)
    for loss, model in zip(losses, (precise, rough), strict=True):
        loss.backward()
        model.fold_tied_gradients()
    gradients = [torch.cat([p.grad.flatten() for _, p in model.own_parameters()]) for model in (precise, rough)]
    assert gradients[1].dtype == torch.float32
    assert (gradients[0] - gradients[1]).norm() < 0.05 * gradients[0].norm()
