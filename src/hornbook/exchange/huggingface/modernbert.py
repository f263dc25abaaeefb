"""Translate ModernBERT between transformers and hornbook: options, names, shapes.

::

    transformers (config.json)                                  hornbook (ModernBertConfig)
    global_attn_every_n_layers, or layer_types                  global_every
    local_attention                                             local_window
    global_rope_theta, local_rope_theta, or rope_parameters     global_rope_theta, local_rope_theta
    model.layers.3.attn.Wqkv.weight          [3 D, D]           blocks.3.attention.qkv.weight           [3, D, D]
    model.layers.3.mlp.Wi.weight             [2 F, D]           blocks.3.feed_forward.gate_up.weight    [2, F, D]
    head.dense.weight, decoder.bias                             head.transform.dense.weight, head.bias

The models for masked tokens, classes of sequences and spans are translated; every option is translated, known to change
nothing, or refused by name.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from torch import Tensor

from hornbook.config import ModernBertConfig
from hornbook.errors import CheckpointError
from hornbook.exchange.huggingface.common import (
    ACTIVATIONS,
    Imported,
    Options,
    Weight,
    check_weights,
    head_of,
    is_same,
    option_problems,
    options_of,
    refuse_head_size,
    their_activation,
    unknown_options,
)

MODEL_TYPE: Final = "modernbert"
_ARCHITECTURES: Final = {
    "pretraining": "ModernBertForMaskedLM",
    "classification": "ModernBertForSequenceClassification",
    "span": "ModernBertForQuestionAnswering",
}
_OPTIONS: Final[Options] = {
    "num_layers": (("num_hidden_layers",), 22),
    "hidden_size": (("hidden_size",), 768),
    "num_heads": (("num_attention_heads",), 12),
    "feed_forward_size": (("intermediate_size",), 1152),
    "vocab_size": (("vocab_size",), 50368),
    "max_positions": (("max_position_embeddings",), 8192),
    "embedding_dropout": (("embedding_dropout",), 0.0),
    "layer_norm_epsilon": (("norm_eps",), 1e-5),
    "initializer_std": (("initializer_range",), 0.02),
    "global_every": (("global_attn_every_n_layers",), 3),
    "local_window": (("local_attention",), 128),
    "global_rope_theta": (("global_rope_theta",), 160_000.0),
    "local_rope_theta": (("local_rope_theta",), 10_000.0),
    "classifier_pooling": (("classifier_pooling",), "cls"),
}
_NEUTRAL: Final[dict[str, object]] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "classifier_activation": "gelu",
    "classifier_bias": False,
    "decoder_bias": True,
    "is_decoder": False,
    "problem_type": "single_label_classification",
    "mlp_bias": False,
    "mlp_dropout": 0.0,
    "norm_bias": False,
    "quantization_config": {},
    "tie_word_embeddings": True,
}
"""Options that change the computation, and the one value that hornbook's ModernBERT supports."""
_ELSEWHERE: Final = {"hidden_activation", "layer_types", "rope_parameters"}
_WITHOUT_EFFECT: Final = {
    *("cls_token_id", "sep_token_id", "classifier_dropout", "deterministic_flash_attn"),
    *("initializer_cutoff_factor", "position_embedding_type", "reference_compile", "repad_logits_with_grad"),
    *("sparse_pred_ignore_index", "sparse_prediction", "gradient_checkpointing", "layer_norm_eps"),
}
_BLOCK: Final = {
    "attention_norm": "attn_norm",
    "attention.qkv": "attn.Wqkv",
    "attention.out": "attn.Wo",
    "feed_forward_norm": "mlp_norm",
    "feed_forward.gate_up": "mlp.Wi",
    "feed_forward.down": "mlp.Wo",
}
_OUTSIDE: Final = {
    "embedding.tokens": "model.embeddings.tok_embeddings.weight",
    "embedding.norm.weight": "model.embeddings.norm.weight",
    "head.norm.weight": "model.final_norm.weight",
    "head.bias": "decoder.bias",
    "head.transform.dense.weight": "head.dense.weight",
    "head.transform.norm.weight": "head.norm.weight",
    **{f"head.{ours}.{kind}": f"classifier.{kind}" for ours in ("labels", "spans") for kind in ("weight", "bias")},
}
_HEAD: Final = "decoder.weight"
_TYPES: Final = {"full_attention": True, "sliding_attention": False}


def to_section(config: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return a recipe's ``[model]`` section, unchecked, from a ``config.json``.

    Raises CheckpointError if the config has options that hornbook does not support; the message lists all.
    """
    section = options_of(config, _OPTIONS)
    activation = config.get("hidden_activation") or "gelu"
    problems = [*option_problems("hidden_activation", activation, "num_hidden_layers", section["num_layers"])]
    known = {names[0] for names, _ in _OPTIONS.values()} | _ELSEWHERE | _WITHOUT_EFFECT
    problems += unknown_options(config, known, _NEUTRAL)
    architecture = (config.get("architectures") or ["ModernBertModel"])[0]
    if architecture not in (*_ARCHITECTURES.values(), "ModernBertModel"):
        problems.append(f"the class is {architecture!r:.80}, expected {', '.join(_ARCHITECTURES.values())}")
    if (types := config.get("layer_types")) is not None:
        every = _period(types)
        section |= {"global_every": every}
        if every is None:
            problems.append(
                f"layer_types is {types!r:.80}, expected full_attention in every N-th layer, from the first"
            )
    for option, kind in {"global_rope_theta": "full_attention", "local_rope_theta": "sliding_attention"}.items():
        given = (config.get("rope_parameters") or {}).get(kind) or {}
        section[option] = given.get("rope_theta", section[option])
        if given.get("rope_type", "default") != "default":
            problems.append(f"rope_type of {kind} is {given['rope_type']!r:.80}, expected 'default'")
    if problems:
        raise CheckpointError(
            f"{what}: hornbook does not support this {MODEL_TYPE}: {'; '.join(problems)}; use another"
        )
    return {"family": MODEL_TYPE, "activation": ACTIVATIONS[activation], **section, **head_of(config)}


def _period(types: object) -> int | None:
    """Return the distance of layers with full attention, from the first on; None if it differs."""
    if not isinstance(types, list) or not types or not {*map(str, types)} <= _TYPES.keys():
        return None
    are_full = [_TYPES[kind] for kind in types]
    every = next((index for index, is_full in enumerate(are_full) if index and is_full), len(types))
    return every if are_full == [index % every == 0 for index in range(len(types))] else None


def their_name(option: str) -> str:
    """Return the name in ``config.json`` of a hornbook option."""
    return "hidden_activation" if option == "activation" else _OPTIONS[option][0][0] if option in _OPTIONS else option


def from_section(config: ModernBertConfig) -> dict[str, Any]:
    """Return the ``config.json`` of a model, without entries about its files and tokenizer.

    Raises CheckpointError if transformers cannot represent the model.
    """
    refuse_head_size(config, "ModernBERT")
    fixed = {"qkv_bias": False, "projection_bias": False, "prediction_bias": True}
    for option, value in (fixed | {"head_transform": True}).items():
        if (own := getattr(config, option)) != value:
            raise CheckpointError(
                f"model.{option} is {own!r}, but transformers' ModernBERT needs {value!r}; this model cannot be "
                "exported"
            )
    values = {names[0]: getattr(config, ours) for ours, (names, _) in _OPTIONS.items()}
    return {
        "model_type": MODEL_TYPE,
        "architectures": [_ARCHITECTURES[config.head]],
        **values,
        "intermediate_size": config.effective_feed_forward_size,
        "hidden_activation": their_activation(config.activation),
        "classifier_activation": their_activation(config.activation),
        **dict.fromkeys(("bos_token_id", "cls_token_id", "eos_token_id", "pad_token_id", "sep_token_id")),
    }


def layout(config: ModernBertConfig) -> Iterator[Weight]:
    """Yield every parameter of the model that ``config`` describes, with the tied table once."""
    for ours, shape, _ in config.description().parameters():
        layer, _, kind = ours.rpartition(".")
        theirs = _OUTSIDE.get(ours)
        if theirs is None:
            _, index, name = layer.split(".", 2)
            theirs = f"model.layers.{index}.{_BLOCK[name]}.{kind}"
        yield Weight(ours, (theirs,), shape)


def _their_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape if len(shape) < 3 else (shape[0] * shape[1], shape[2])


def read(tensors: Mapping[str, Tensor], config: ModernBertConfig, *, tied: bool, what: str) -> Imported:
    """Return the weights of a file in hornbook's names and shapes, fp32.

    Args:
        tensors: tensors of the file, with or without the tied head.
        config: the expected model.
        tied: whether the config ties the head; it does, or is refused.
        what: name of the file in errors.

    Raises:
        CheckpointError: weights are missing, unknown, of another shape or dtype, not finite, or the head is not tied;
            all problems in one line.
    """
    found = dict(tensors)
    head, table = found.pop(_HEAD, None), found.get(_OUTSIDE["embedding.tokens"])
    differs = head is not None and table is not None and not is_same(head, table)
    untied = [
        f"{_HEAD} differs from {_OUTSIDE['embedding.tokens']}, but hornbook's ModernBERT has a tied head"
    ] * differs
    weights = list(layout(config))
    check_weights(found, {weight.theirs[0]: _their_shape(weight.shape) for weight in weights}, what, untied)
    return Imported({weight.ours: found[weight.theirs[0]].float().view(weight.shape) for weight in weights})


def to_theirs(tensors: Mapping[str, Tensor], config: ModernBertConfig) -> dict[str, Tensor]:
    """Return the weights in transformers' names and shapes as views, without the tied head."""
    return {weight.theirs[0]: tensors[weight.ours].view(_their_shape(weight.shape)) for weight in layout(config)}
