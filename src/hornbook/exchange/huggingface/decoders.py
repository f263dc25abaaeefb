"""Translate the family ``decoder`` between transformers and hornbook: Llama, Qwen3, OLMo 2, Gemma 3, NanoChat.

::

    transformers (config.json)                                  hornbook (DecoderConfig)
    num_key_value_heads, rms_norm_eps, rope_parameters          num_kv_heads, norm_epsilon, rope_theta, rope_scaling, …
    sliding_window, layer_types                                 window, window_pattern
    model.layers.3.self_attn.{q,k,v}_proj.weight                blocks.3.attention.qkv.weight, or query and key_value
    model.layers.3.mlp.{gate,up}_proj.weight                    blocks.3.feed_forward.gate_up.weight
    lm_head.weight  [V, D], absent if tied                      head.table

A family is a few lines of ``decoder_families``. Every option of a ``config.json`` is translated, known to change
nothing, or refused by name. A model is exported as the first family whose translation there and back keeps its options.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from math import isclose
from typing import Any, Final

import torch
from torch import Tensor

from hornbook.config import DecoderConfig
from hornbook.errors import CheckpointError
from hornbook.exchange.huggingface.common import (
    ACTIVATIONS,
    Imported,
    Options,
    Weight,
    check_weights,
    is_same,
    option_problems,
    options_of,
    their_activation,
    unknown_options,
)
from hornbook.exchange.huggingface.rotary_options import ROTARY, rotary_options, their_rotary_options

_NAMES: Final = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_size": "head_dim",
    "feed_forward_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "max_positions": "max_position_embeddings",
    "norm_epsilon": "rms_norm_eps",
    "attention_dropout": "attention_dropout",
    "initializer_std": "initializer_range",
    "tied": "tie_word_embeddings",
}
_DEFAULTS: Final = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "tie_word_embeddings": False,
}
_NEUTRAL: Final[dict[str, object]] = {
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "chunk_size_feed_forward": 0,
    "final_logit_softcapping": None,
    "is_encoder_decoder": False,
    "is_decoder": False,
    "add_cross_attention": False,
    "mlp_bias": False,
    "pruned_heads": {},
    "quantization_config": {},
    "rope_interleaved": False,
    "use_bidirectional_attention": False,
    "use_sliding_window": False,
}
"""Options that change the computation, and the one value that is supported, unless a family translates them."""
_CAPS: Final = ("attention_cap", "logit_cap")
_WINDOWS: Final = ("sliding_window", "layer_types", "sliding_window_pattern", "_sliding_window_pattern")
_LETTERS: Final = {"sliding_attention": "L", "full_attention": "G"}
_LOST: Final = ("embedding_dropout", "residual_dropout", "initializer_std", "zero_init_outputs")
"""Options of training that an export does not keep; they change no result of the model."""
_BLOCK: Final = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.query": ("self_attn.q_proj",),
    "attention.key_value": ("self_attn.k_proj", "self_attn.v_proj"),
    "attention.query_norm": ("self_attn.q_norm",),
    "attention.key_norm": ("self_attn.k_norm",),
    "attention.out": ("self_attn.o_proj",),
    "attention_norm": ("input_layernorm",),
    "feed_forward_norm": ("post_attention_layernorm",),
    "feed_forward.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "feed_forward.down": ("mlp.down_proj",),
}
_PREFIX: Final = "model."
_HEAD: Final = "lm_head.weight"


@dataclass(frozen=True, kw_only=True)
class DecoderFamily:
    """The translation of one family.

    Attributes:
        model_type: transformers' type.
        architecture: transformers' class.
        own: hornbook's options that all models of the family have.
        names: further options: their names in transformers.
        defaults: of options of ``config.json``, where they differ from Llama's.
        block: transformers' names of the layers of a block, where they differ from Llama's.
        has_windows: whether layers can have sliding windows; the pattern without ``layer_types`` has one layer without.
        norm_offset: added to the gains of a file.
        scales_embedding: whether embeddings are multiplied by the root of the hidden size.
        rotates_back: whether queries and keys are rotated by the negative angle.
    """

    model_type: str
    architecture: str
    own: Mapping[str, object] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)
    block: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    has_windows: bool = False
    norm_offset: float = 0.0
    scales_embedding: bool = False
    rotates_back: bool = False

    @property
    def _options(self) -> Options:
        defaults = {**_DEFAULTS, **self.defaults}
        return {ours: ((theirs,), defaults.get(theirs)) for ours, theirs in {**_NAMES, **self.names}.items()}

    @property
    def _activation(self) -> str:
        return "hidden_activation" if "hidden_activation" in self.defaults else "hidden_act"

    def to_section(self, config: Mapping[str, Any], what: str) -> dict[str, Any]:
        """Return a recipe's ``[model]`` section, unchecked, from a ``config.json``.

        Raises CheckpointError if the config has options that hornbook does not support; the message lists all.
        """
        section, problems = self._translated(config)
        if problems:
            raise CheckpointError(
                f"{what}: hornbook does not support this {self.model_type}: {'; '.join(problems)}; use another model"
            )
        return section

    def _translated(self, config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Return the section of a ``config.json`` and the problems of its options."""
        section = {"family": "decoder", **self.own, **options_of(config, self._options)}
        activation = config.get(self._activation) or self.defaults.get(self._activation, "silu")
        problems = [*option_problems(self._activation, activation, "num_hidden_layers", section["num_layers"])]
        section |= {ours: config.get(self.names[ours], section[ours]) for ours in _CAPS if ours in self.names}
        section["activation"] = ACTIVATIONS.get(str(activation))
        rotary, faults = rotary_options(config, section["max_positions"], self.defaults)
        section |= rotary
        problems += faults
        if "qkv_bias" in self.names and section["qkv_bias"] != section["linear_bias"]:
            problems.append("attention_bias and mlp_bias differ, expected equal values")
        if scalar := section.pop("attention_scale", None):
            section["attention_scale"] = scalar**-0.5 if isinstance(scalar, int | float) and scalar > 0 else scalar
        if self.scales_embedding:
            section["embedding_scale"] = None
        if self.has_windows:
            windows, faults = self._windows(config, section)
            section |= windows
            problems += faults
        if "window" not in section:
            section.pop("local_rope_theta", None)
        return section, [*problems, *self._unknown(config)]

    def _unknown(self, config: Mapping[str, Any]) -> Iterator[str]:
        """Yield the options that would change the computation, and those that are not known."""
        known = {*_NAMES.values(), *self.names.values(), *ROTARY, self._activation, "pretraining_tp", "is_llama_config"}
        known |= {*_WINDOWS, "use_sliding_window", "max_window_layers"} if self.has_windows else set()
        yield from unknown_options(config, known, _NEUTRAL)

    def _windows(self, config: Mapping[str, Any], section: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Return ``window`` and ``window_pattern``, if a layer has a window."""
        window = config.get("sliding_window", self.defaults.get("sliding_window"))
        types, num_layers = config.get("layer_types"), section["num_layers"]
        if window is None or config.get("use_sliding_window") is False or type(num_layers) is not int:
            return {}, []
        if types is None:
            period = next((config[name] for name in _WINDOWS[2:] if config.get(name)), self.defaults.get(_WINDOWS[2]))
            if type(period) is not int or not 0 < period <= num_layers + 1:
                return {}, [f"layer_types is missing and sliding_window_pattern is {period!r:.80}, expected a number"]
            return {"window": window, "window_pattern": "L" * (period - 1) + "G"}, []
        if not isinstance(types, list) or len(types) != num_layers or not {*map(str, types)} <= _LETTERS.keys():
            names = " or ".join(_LETTERS)
            return {}, [f"layer_types is {types!r:.80}, expected {names} for each of {num_layers} layers"]
        pattern = "".join(_LETTERS[kind] for kind in types)
        if "L" not in pattern:
            return {}, []
        if type(window) is int and type(section["max_positions"]) is int:
            window = min(window, section["max_positions"])
        return {"window": window, "window_pattern": shortest(pattern)}, []

    def their_name(self, option: str) -> str:
        """Return the name in ``config.json`` of a hornbook option."""
        names = {**_NAMES, **self.names, "activation": self._activation, "window": "sliding_window"}
        return names.get(option, option)

    def from_section(self, config: DecoderConfig) -> dict[str, Any]:
        """Return the ``config.json`` of a model, without entries about its files and tokenizer."""
        values = {theirs: getattr(config, ours) for ours, theirs in {**_NAMES, **self.names}.items()}
        values |= {
            "num_key_value_heads": config.effective_kv_heads,
            "head_dim": config.effective_head_size if "head_dim" in self.defaults else config.head_size,
            "intermediate_size": config.effective_feed_forward_size,
            self._activation: their_activation(config.activation),
            **their_rotary_options(config),
        }
        if "attention_scale" in self.names:
            scale = config.attention_scale or config.effective_head_size**-0.5
            scalar = scale**-2
            values[self.names["attention_scale"]] = round(scalar) if isclose(scalar, round(scalar)) else scalar
        if self.has_windows:
            kinds = {letter: kind for kind, letter in _LETTERS.items()}
            values["sliding_window"] = config.window or self.defaults.get("sliding_window")
            values["layer_types"] = [kinds[letter] for letter in _letters(config)]
            if "sliding_window" not in self.defaults:
                values["use_sliding_window"] = config.window is not None
        caps = {self.names.get(ours) for ours in _CAPS}  # null is not their default
        given = {name: value for name, value in values.items() if value is not None or name in caps}
        return {"model_type": self.model_type, "architectures": [self.architecture], **given}

    def differences(self, config: DecoderConfig) -> list[str]:
        """Return the options of a model that this family does not keep, there and back."""
        section, problems = self._translated(self.from_section(config))
        if problems:
            return problems
        ours, theirs = _computed(config), _computed(DecoderConfig(**section))
        return [f"model.{name}" for name in ours if not _equal(ours[name], theirs[name])]

    def layout(self, config: DecoderConfig, prefix: str) -> Iterator[Weight]:
        """Yield every parameter of the model that ``config`` describes, with a tied table once."""
        names = _BLOCK | dict(self.block)
        outside = {"embedding.tokens": f"{prefix}embed_tokens.weight", "head.table": _HEAD}
        for ours, shape, _ in config.description().parameters():
            layer, _, kind = ours.rpartition(".")
            if layer.startswith("blocks."):
                _, index, name = layer.split(".", 2)
                yield Weight(ours, tuple(f"{prefix}layers.{index}.{their}.{kind}" for their in names[name]), shape)
            else:
                yield Weight(ours, (outside.get(ours, f"{prefix}norm.{kind}"),), shape)

    def read(self, tensors: Mapping[str, Tensor], config: DecoderConfig, *, tied: bool, what: str) -> Imported:
        """Return the weights of a file in hornbook's names and shapes, fp32.

        Args:
            tensors: tensors of the file, with or without the prefix.
            config: the expected model, which is tied or not.
            tied: ignored, since its default depends on the family.
            what: name of the file in errors.

        Raises:
            CheckpointError: weights are missing, unknown, of another shape or dtype, not finite, or a tied head differs
                from the table; all problems in one line.
        """
        prefix = _PREFIX if any(name.startswith(_PREFIX) for name in tensors) else ""
        found = {name: tensor for name, tensor in tensors.items() if not name.endswith("rotary_emb.inv_freq")}
        head, table = found.pop(_HEAD, None) if config.tied else None, found.get(f"{prefix}embed_tokens.weight")
        differs = head is not None and table is not None and not is_same(head, table)
        untied = [f"{_HEAD} differs from {prefix}embed_tokens.weight, but tie_word_embeddings is true"] * differs
        weights = list(self.layout(config, prefix))
        expected = {name: weight.their_shape for weight in weights for name in weight.theirs}
        check_weights(found, expected, what, untied)
        return Imported({weight.ours: self._to_ours(weight, found, config) for weight in weights})

    def _to_ours(self, weight: Weight, found: Mapping[str, Tensor], config: DecoderConfig) -> Tensor:
        parts = {name: self._turned(name, found[name], config) for name in weight.theirs}
        tensor = weight.to_ours(parts)
        return tensor + self.norm_offset if self._is_gain(weight) else tensor

    def to_theirs(self, tensors: Mapping[str, Tensor], config: DecoderConfig) -> dict[str, Tensor]:
        """Return the weights in transformers' names and shapes, without a tied head."""
        theirs: dict[str, Tensor] = {}
        for weight in self.layout(config, _PREFIX):
            tensor = tensors[weight.ours]
            parts = weight.to_theirs(tensor - self.norm_offset if self._is_gain(weight) else tensor)
            theirs |= {name: self._turned(name, part, config) for name, part in parts.items()}
        return theirs

    def _is_gain(self, weight: Weight) -> bool:
        return self.norm_offset != 0.0 and len(weight.shape) == 1 and weight.ours.endswith("norm.weight")

    def _turned(self, name: str, tensor: Tensor, config: DecoderConfig) -> Tensor:
        """Exchange the halves of the heads of queries and keys, which reverses their rotation."""
        if not self.rotates_back or not name.endswith(("q_proj.weight", "k_proj.weight")):
            return tensor
        return torch.unflatten(tensor, 0, (-1, 2, config.effective_head_size // 2)).flip(1).flatten(0, 2)


def shortest(pattern: str) -> str:
    """Return the shortest beginning that repeats to the pattern."""
    lengths = range(1, len(pattern) + 1)
    return next(pattern[:n] for n in lengths if (pattern[:n] * len(pattern)).startswith(pattern))


def _letters(config: DecoderConfig) -> str:
    """Return L or G for each layer."""
    pattern = config.window_pattern if config.window is not None else "G"
    return (pattern * config.num_layers)[: config.num_layers]


def _computed(config: DecoderConfig) -> dict[str, object]:
    """Return the options that determine what a model computes, with derived values."""
    derived = replace(
        config,
        embedding_scale=config.effective_embedding_scale,
        num_kv_heads=config.effective_kv_heads,
        head_size=config.effective_head_size,
        feed_forward_size=config.effective_feed_forward_size,
        attention_scale=config.attention_scale or config.effective_head_size**-0.5,
        window_pattern=_letters(config),
        local_rope_theta=config.local_rope_theta or (config.rope_theta if config.rope_scaling == "none" else None),
    )
    values = {item.name: getattr(derived, item.name) for item in fields(derived) if item.name not in _LOST}
    return values if "L" in _letters(config) else values | {"local_rope_theta": None}


def _equal(first: object, second: object) -> bool:
    if isinstance(first, float) and isinstance(second, float):
        return isclose(first, second, rel_tol=1e-6)
    return first == second
