"""The family ``decoder`` against transformers' decoders, on random weights: logits, loss, gradients and generation."""

import dataclasses
from collections.abc import Iterator

import pytest
import torch
import transformers
from cases import mostly_slow
from native_forms import NativeCalls, all_native
from tiny import hidden_states, random_batch, randomize
from torch import Tensor

from hornbook.config import DecoderConfig, Recipe
from hornbook.generate.decoder import CachedDecoder, make_decoder
from hornbook.model import LanguageModel, initialize, model_of
from hornbook.ops.native.kernels import NOT_CHOSEN, Kernels, using

SIZES = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "vocab_size": 70, "max_positions": 24}
LLAMA_MODULES = {
    "attention_norm": ["input_layernorm"],
    "attention.query": ["self_attn.q_proj"],
    "attention.key_value": ["self_attn.k_proj", "self_attn.v_proj"],
    "attention.qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "attention.query_norm": ["self_attn.q_norm"],
    "attention.key_norm": ["self_attn.k_norm"],
    "attention.out": ["self_attn.o_proj"],
    "feed_forward_norm": ["post_attention_layernorm"],
    "feed_forward.gate_up": ["mlp.gate_proj", "mlp.up_proj"],
    "feed_forward.down": ["mlp.down_proj"],
}
"""The modules of transformers that a module of a block becomes."""
LLAMA3 = {"rope_factor": 8.0, "rope_original_positions": 16, "rope_low_factor": 1.0, "rope_high_factor": 4.0}


@dataclasses.dataclass
class Family:
    """A family of transformers: its classes, our options, its options, and what its names and weights differ by."""

    name: str
    ours: dict = dataclasses.field(default_factory=dict)
    theirs: dict = dataclasses.field(default_factory=dict)
    modules: dict = dataclasses.field(default_factory=dict)

    def config(self) -> DecoderConfig:
        return DecoderConfig(**SIZES | {"num_kv_heads": 2, "feed_forward_size": 48, "tied": False} | self.ours)

    def model(self, ours: LanguageModel) -> torch.nn.Module:
        """The model of transformers with the weights of ours, and eager attention."""
        config = self.config()
        options = {
            "hidden_size": config.hidden_size,
            "intermediate_size": config.effective_feed_forward_size,
            "num_hidden_layers": config.num_layers,
            "num_attention_heads": config.num_heads,
            "num_key_value_heads": config.effective_kv_heads,
            "head_dim": config.effective_head_size,
            "max_position_embeddings": config.max_positions,
            "rms_norm_eps": config.norm_epsilon,
            "tie_word_embeddings": config.tied,
            "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
            "attn_implementation": "eager",
            "vocab_size": config.vocab_size,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
        }
        own = {"Gemma3": "Gemma3TextConfig"}.get(self.name, f"{self.name}Config")
        peer = getattr(transformers, f"{self.name}ForCausalLM")(getattr(transformers, own)(**options | self.theirs))
        peer = peer.eval()
        parts = {name: part for name, p in ours.own_parameters() for name, part in self.parts(ours, name, p.detach())}
        if self.name.startswith("Gemma"):
            parts = {name: part - 1 if "norm" in name else part for name, part in parts.items()}
        missing, unexpected = peer.load_state_dict(parts, strict=False)
        assert not unexpected
        assert missing == (["lm_head.weight"] if config.tied else []), "every other weight is given"
        return peer

    def parts(self, model: LanguageModel, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The names and parts in transformers of a tensor shaped like our parameter."""
        whole = {
            "embedding.tokens": "model.embed_tokens.weight",
            "head.table": "lm_head.weight",
            "head.norm.weight": "model.norm.weight",
        }
        if name in whole:
            yield whole[name], model.logical(name, tensor).clone()
            return
        _, block, *module, kind = name.split(".")
        modules = (LLAMA_MODULES | self.modules)[".".join(module)]
        for other, part in zip(modules, tensor if len(modules) > 1 else [tensor], strict=True):
            if self.name == "NanoChat" and other.endswith(("q_proj", "k_proj")):  # it rotates the other way around
                size = self.config().effective_head_size
                part = part.unflatten(0, (-1, 2, size // 2)).flip(1).flatten(0, 2)
            yield f"model.layers.{block}.{other}.{kind}", part.clone()


def rope(**parameters) -> dict:
    return {"rope_parameters": {"rope_theta": 10_000.0} | parameters}


GEMMA = {
    "num_layers": 3,
    "tied": True,
    "head_size": 12,
    "norm_placement": "both",
    "query_key_norm": "head",
    "activation": "gelu_tanh",
    "embedding_scale": 32**0.5,
    "window": 7,
    "window_pattern": "LLG",
    "rope_theta": 1e6,
    "local_rope_theta": 1e4,
}
GEMMA_OPTIONS = {
    "sliding_window": 7,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "query_pre_attn_scalar": 12,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
GEMMA_MODULES = {
    "attention_output_norm": ["post_attention_layernorm"],
    "feed_forward_norm": ["pre_feedforward_layernorm"],
    "feed_forward_output_norm": ["post_feedforward_layernorm"],
}
FAMILIES = {
    "llama": Family("Llama"),
    "llama tied, one key-value head": Family("Llama", {"tied": True, "num_kv_heads": 1}),
    "llama as many key-value heads, own head size": Family("Llama", {"num_kv_heads": None, "head_size": 12}),
    "llama with biases": Family(
        "Llama", {"qkv_bias": True, "linear_bias": True}, {"attention_bias": True, "mlp_bias": True}
    ),
    "llama gelu, theta": Family("Llama", {"activation": "gelu", "rope_theta": 500.0}, {"hidden_act": "gelu"}),
    "llama linear": Family(
        "Llama", {"rope_scaling": "linear", "rope_factor": 3.0}, rope(rope_type="linear", factor=3.0)
    ),
    "llama 3.1": Family(
        "Llama",
        {"rope_scaling": "llama3", **LLAMA3},
        rope(
            rope_type="llama3",
            factor=8.0,
            original_max_position_embeddings=16,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
        ),
    ),
    "llama yarn": Family(
        "Llama",
        {"rope_scaling": "yarn", "rope_factor": 4.0, "rope_original_positions": 6, "head_size": 32},
        rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=6),
    ),
    "qwen3": Family("Qwen3", {"query_key_norm": "head", "head_size": 16, "norm_epsilon": 1e-6}),
    "qwen3 tied": Family("Qwen3", {"query_key_norm": "head", "tied": True, "num_kv_heads": 4}),
    "olmo2": Family(
        "Olmo2",
        {"norm_placement": "after", "query_key_norm": "width"},
        modules={
            "attention_output_norm": ["post_attention_layernorm"],
            "feed_forward_output_norm": ["post_feedforward_layernorm"],
        },
    ),
    "gemma3": Family("Gemma3", GEMMA, GEMMA_OPTIONS, GEMMA_MODULES),
    "gemma2 with caps and its own scale": Family(
        "Gemma2",
        GEMMA
        | {"query_key_norm": "none", "local_rope_theta": None}
        | {"attention_cap": 0.5, "logit_cap": 2.0, "attention_scale": 0.5},
        {
            **{key: GEMMA_OPTIONS[key] for key in ("sliding_window", "layer_types")},
            "attn_logit_softcapping": 0.5,
            "final_logit_softcapping": 2.0,
            "query_pre_attn_scalar": 4,
        },
        GEMMA_MODULES,
    ),
    "nanochat": Family(
        "NanoChat",
        {
            "norm_gain": False,
            "embedding_norm": True,
            "query_key_norm": "head",
            "feed_forward": "plain",
            "activation": "relu_squared",
            "logit_cap": 3.0,
            "num_kv_heads": None,
        },
        {"final_logit_softcapping": 3.0},
        {"feed_forward.up": ["mlp.fc1"], "feed_forward.down": ["mlp.fc2"]},
    ),
}


@pytest.fixture(params=FAMILIES.values(), ids=FAMILIES.keys())
def family(request) -> Family:
    return request.param


@pytest.fixture
def model(family: Family) -> LanguageModel:
    model = model_of(Recipe(model=family.config()), torch.float32)
    initialize(model, seed=3)
    randomize(model, scale=0.1)
    return model


@pytest.mark.parametrize("kernels", mostly_slow(["native", "torch"]))
def test_logits_losses_and_gradients(family: Family, model: LanguageModel, kernels: str) -> None:
    with using(all_native() if kernels == "native" else NOT_CHOSEN), NativeCalls() as calls:
        compare_gradients(family, model)
    assert ({"attention", "norm", "linear"} <= calls.names) == (kernels == "native")


def compare_gradients(family: Family, model: LanguageModel) -> None:
    peer, batch = family.model(model), random_batch(3, 24, unscored=0.1)
    theirs = peer(batch["tokens"]).logits
    assert theirs.std() > 0.1, "the weights matter"
    torch.testing.assert_close(model.head.logits(hidden_states(model, batch)), theirs, rtol=1e-5, atol=1e-5)
    loss = model(lambda head, x_BTD, batch: head.cross_entropy(x_BTD, batch["targets"]), batch)
    other = torch.nn.functional.cross_entropy(theirs.flatten(0, 1), batch["targets"].flatten(), reduction="sum")
    torch.testing.assert_close(loss, other, rtol=1e-5, atol=1e-5)
    loss.backward()
    other.backward()
    model.fold_tied_gradients()
    expected = {name: parameter.grad for name, parameter in peer.named_parameters()}
    compared = set()
    for name, parameter in model.own_parameters():
        for their_name, part in family.parts(model, name, parameter.grad):
            torch.testing.assert_close(part, expected[their_name], rtol=1e-5, atol=1e-5 * float(part.abs().max()))
            compared.add(their_name)
    assert compared == expected.keys()


@pytest.mark.parametrize("kernels", mostly_slow(["native", "torch"]))
def test_greedy_generation(family: Family, model: LanguageModel, kernels: str) -> None:
    """Prompts of unequal lengths over the cache, against the largest logits of transformers without a cache."""
    peer, prompts = family.model(model), [[5, 9, 2, 8, 1], [7, 3]]
    with using(all_native() if kernels == "native" else Kernels(why="test")):
        decoder = make_decoder(model.eval())
    assert isinstance(decoder, CachedDecoder)
    assert (decoder._model._token is not None) == (kernels == "native")
    logits, texts = decoder.start(prompts, 24), [list(prompt) for prompt in prompts]
    for _ in range(16):
        ids = logits.argmax(-1).tolist()
        with torch.no_grad():
            assert ids == [int(peer(torch.tensor([text])).logits[0, -1].argmax()) for text in texts]
        texts = [[*text, number] for text, number in zip(texts, ids, strict=True)]
        logits = decoder.advance(ids)
    assert len({*texts[0]}) > 3, "it does not only repeat itself"
