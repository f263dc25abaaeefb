"""What differs between the decoders of transformers, in names, options and defaults (`decoders`)."""

from collections.abc import Iterable
from typing import Final

from hornbook.config import DecoderConfig
from hornbook.errors import CheckpointError
from hornbook.exchange.huggingface.decoders import DecoderFamily

_BOTH: Final = {
    "attention_norm": ("input_layernorm",),
    "attention_output_norm": ("post_attention_layernorm",),
    "feed_forward_norm": ("pre_feedforward_layernorm",),
    "feed_forward_output_norm": ("post_feedforward_layernorm",),
}
_AFTER: Final = {name: _BOTH[name] for name in ("attention_output_norm", "feed_forward_output_norm")}
_GEMMA: Final[dict[str, object]] = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "sliding_window": 4096,
}
_GEMMA_NAMES: Final = {"attention_scale": "query_pre_attn_scalar", "logit_cap": "final_logit_softcapping"}

DECODERS: Final = {
    family.model_type: family
    for family in (
        DecoderFamily(
            model_type="llama",
            architecture="LlamaForCausalLM",
            names={"qkv_bias": "attention_bias", "linear_bias": "mlp_bias"},
            defaults={"vocab_size": 32000, "attention_bias": False, "mlp_bias": False},
        ),
        DecoderFamily(
            model_type="qwen3",
            architecture="Qwen3ForCausalLM",
            own={"query_key_norm": "head"},
            defaults={"vocab_size": 151936, "head_dim": 128, "intermediate_size": 22016, "num_key_value_heads": 32}
            | {"max_position_embeddings": 32768},
            has_windows=True,
        ),
        DecoderFamily(
            model_type="olmo2",
            architecture="Olmo2ForCausalLM",
            own={"query_key_norm": "width", "norm_placement": "after"},
            defaults={"vocab_size": 50304, "rms_norm_eps": 1e-5},
            block=_AFTER,
        ),
        DecoderFamily(
            model_type="gemma2",
            architecture="Gemma2ForCausalLM",
            own={"norm_placement": "both"},
            names=_GEMMA_NAMES | {"attention_cap": "attn_logit_softcapping"},
            defaults=_GEMMA
            | {"vocab_size": 256000, "max_position_embeddings": 8192, "sliding_window_pattern": 2}
            | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
            block=_BOTH,
            has_windows=True,
            norm_offset=1.0,
            scales_embedding=True,
        ),
        DecoderFamily(
            model_type="gemma3_text",
            architecture="Gemma3ForCausalLM",
            own={"query_key_norm": "head", "norm_placement": "both"},
            names=_GEMMA_NAMES,
            defaults=_GEMMA
            | {"vocab_size": 262208, "max_position_embeddings": 131072, "sliding_window_pattern": 6}
            | {"rope_theta": 1e6, "rope_local_base_freq": 1e4},
            block=_BOTH,
            has_windows=True,
            norm_offset=1.0,
            scales_embedding=True,
        ),
        DecoderFamily(
            model_type="nanochat",
            architecture="NanoChatForCausalLM",
            own={"query_key_norm": "head", "norm_gain": False, "embedding_norm": True, "feed_forward": "plain"},
            names={"logit_cap": "final_logit_softcapping"},
            defaults={"vocab_size": 50304, "hidden_size": 768, "intermediate_size": 8192, "num_hidden_layers": 12}
            | {"num_attention_heads": 6, "hidden_act": "relu2", "final_logit_softcapping": 15.0},
            block={"feed_forward.up": ("mlp.fc1",), "feed_forward.down": ("mlp.fc2",)},
            rotates_back=True,
        ),
    )
}
"""The families by transformers' types; the weights of SmolLM and many others are Llamas."""


def closest_decoder(
    config: DecoderConfig, families: Iterable[DecoderFamily] = tuple(DECODERS.values())
) -> tuple[DecoderFamily, list[str]]:
    """Return the family with the most options of a model, and the options in which it differs; none if it has all."""
    found = [(family.differences(config), family) for family in families]
    differences, family = min(found, key=lambda pair: len(pair[0]))
    return family, differences


def decoder_of(config: DecoderConfig) -> DecoderFamily:
    """Return the family of transformers with all options of a model.

    Raises CheckpointError if there is none; the message has the options in which the closest family differs.
    """
    family, differences = closest_decoder(config)
    if differences:
        raise CheckpointError(
            f"transformers has no model with these options: the closest, {family.architecture}, differs in "
            f"{', '.join(differences)}; this model cannot be exported"
        )
    return family
