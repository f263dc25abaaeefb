"""Translate GPT-2 between transformers and hornbook: options, names, shapes.

::

    transformers (config.json, Conv1D)                          hornbook (GPTConfig, Linear)
    n_embd, n_layer, activation_function "gelu_new"             hidden_size, num_layers, activation "gelu_tanh"
    transformer.h.3.attn.c_attn.weight     [D, 3D]              blocks.3.attention.qkv.weight     [3, D, D]
    transformer.h.3.mlp.c_fc.weight        [D, F]               blocks.3.feed_forward.up.weight   [F, D]
    lm_head.weight                         [V, D], or absent    tied to embedding.tokens
    score.weight                           [C, D]               head.labels.weight (GPT2ForSequenceClassification)

Their matrices are transposed, everything else is unchanged; ``GPT2Model`` has no prefix ``transformer.``. All problems
of a set of weights are reported at once, in the names of the file.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from torch import Tensor

from hornbook.config import GPTConfig
from hornbook.errors import CheckpointError
from hornbook.exchange.huggingface.common import (
    ACTIVATIONS,
    Imported,
    Options,
    check_weights,
    head_of,
    is_same,
    option_problems,
    options_of,
    refuse_head_size,
    their_activation,
)

MODEL_TYPE: Final = "gpt2"

_OPTIONS: Final[Options] = {
    "num_layers": (("n_layer", "num_hidden_layers"), 12),
    "hidden_size": (("n_embd", "hidden_size"), 768),
    "num_heads": (("n_head", "num_attention_heads"), 12),
    "feed_forward_size": (("n_inner",), None),
    "vocab_size": (("vocab_size",), 50257),
    "max_positions": (("n_positions", "max_position_embeddings", "n_ctx"), 1024),
    "embedding_dropout": (("embd_pdrop",), 0.1),
    "residual_dropout": (("resid_pdrop",), 0.1),
    "attention_dropout": (("attn_pdrop",), 0.1),
    "layer_norm_epsilon": (("layer_norm_epsilon",), 1e-5),
    "initializer_std": (("initializer_range",), 0.02),
}
_SETTLED: Final[dict[str, object]] = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "pruned_heads": {},
    "quantization_config": {},
}
"""Options that change the computation, and the one value that hornbook's GPT supports."""

_BLOCK: Final = {
    "attention_norm": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "feed_forward_norm": "ln_2",
    "feed_forward.up": "mlp.c_fc",
    "feed_forward.down": "mlp.c_proj",
}
_PREFIX: Final = "transformer."
_HEAD: Final = "lm_head.weight"
_SCORE: Final = "score.weight"
_OUTSIDE: Final = {
    "embedding.tokens": "wte.weight",
    "embedding.positions": "wpe.weight",
    "head.labels.weight": _SCORE,
}
_BUFFERS: Final = (".attn.bias", ".attn.masked_bias")
"""Old files have the causal mask as tensors."""


class Weight(NamedTuple):
    """A parameter: its names and shapes in hornbook and transformers; transformers transposes a block's matrices."""

    ours: str
    theirs: str
    shape: tuple[int, ...]
    their_shape: tuple[int, ...]
    is_transposed: bool = False

    def their_name(self, prefix: str = _PREFIX) -> str:
        """Return the name in a file; the class layer has no prefix."""
        return self.theirs if self.theirs == _SCORE else prefix + self.theirs

    def to_ours(self, tensor: Tensor) -> Tensor:
        """Return a transformers tensor in hornbook's shape, without a copy."""
        return (tensor.t() if self.is_transposed else tensor).reshape(self.shape)

    def to_theirs(self, tensor: Tensor) -> Tensor:
        """Return a hornbook tensor in transformers' shape, without a copy."""
        return tensor.reshape(-1, self.shape[-1]).t() if self.is_transposed else tensor.reshape(self.their_shape)


def layout(config: GPTConfig) -> Iterator[Weight]:
    """Yield every parameter of the model that ``config`` describes, with the tied table once."""
    assert config.vocab_size is not None, "a model with weights has a vocabulary"
    for ours, shape, _ in config.description().parameters():
        layer, _, kind = ours.rpartition(".")
        where, _, rest = layer.partition(".")
        if where == "blocks":
            index, _, name = rest.partition(".")
            is_matrix, columns = len(shape) > 1 and kind == "weight", shape[-1]
            theirs = (columns, math.prod(shape) // columns) if is_matrix else (math.prod(shape),)
            yield Weight(ours, f"h.{index}.{_BLOCK[name]}.{kind}", shape, theirs, is_matrix)
        else:
            yield Weight(ours, _OUTSIDE.get(ours, f"ln_f.{kind}"), shape, shape)


def to_section(config: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return a recipe's ``[model]`` section, unchecked, from a ``config.json``.

    Raises CheckpointError if the config has options that hornbook's GPT does not support; the message lists all.
    """
    section = options_of(config, _OPTIONS)
    activation = config.get("activation_function") or "gelu_new"
    problems = [
        f"{name} is {config[name]!r:.80}, expected {settled!r}"
        for name, settled in _SETTLED.items()
        if config.get(name) is not None and bool(config[name]) is not bool(settled)
    ]
    problems += option_problems("activation_function", activation, "n_layer", section["num_layers"])
    head = head_of(config)
    if head["head"] == "span":
        problems.append("the class is GPT2ForQuestionAnswering, expected GPT2LMHeadModel or one that classifies")
    if "num_labels" in head and config.get("problem_type") not in (None, "single_label_classification"):
        problems.append(f"problem_type is {config['problem_type']!r:.80}, expected 'single_label_classification'")
    if problems:
        raise CheckpointError(f"{what}: hornbook's GPT does not support this: {'; '.join(problems)}; use another model")
    return {"family": "gpt", "activation": ACTIVATIONS[activation], **section, **head}


def their_name(option: str) -> str:
    """Return the name in ``config.json`` of a hornbook option."""
    if option == "activation":
        return "activation_function"
    return _OPTIONS[option][0][0] if option in _OPTIONS else option


def from_section(config: GPTConfig) -> dict[str, Any]:
    """Return the ``config.json`` of a model, without entries about its files and tokenizer.

    Raises CheckpointError if transformers' GPT-2 cannot represent the model.
    """
    refuse_head_size(config, "GPT-2")
    values = {names[0]: getattr(config, ours) for ours, (names, _) in _OPTIONS.items()}
    settled = {name: value for name, value in _SETTLED.items() if isinstance(value, bool)}
    kind = "GPT2ForSequenceClassification" if config.head == "classification" else "GPT2LMHeadModel"
    fixed = {"model_type": MODEL_TYPE, "architectures": [kind], "tie_word_embeddings": True}
    activation = {"activation_function": their_activation(config.activation)}
    return {**fixed, **values, **settled, "n_ctx": config.max_positions, **activation}


def read(tensors: Mapping[str, Tensor], config: GPTConfig, *, tied: bool, what: str) -> Imported:
    """Return the weights of a file in hornbook's names and shapes, fp32; matrices are views.

    Args:
        tensors: tensors of the file, with or without the prefix and the head.
        config: the expected model.
        tied: whether the config ties the head, so that the file may omit it.
        what: name of the file in errors.

    Raises:
        CheckpointError: weights are missing, unknown, of another shape or dtype, not finite, or the head is not tied;
            all problems in one line.
    """
    prefix = _PREFIX if any(name.startswith(_PREFIX) for name in tensors) else ""
    expected = {weight.their_name(prefix): weight for weight in layout(config)}
    found = {name: tensor for name, tensor in tensors.items() if not name.endswith(_BUFFERS)}
    head = found.pop(_HEAD, None)
    untied = [f"{_HEAD} is missing, but tie_word_embeddings is false"] if head is None and not tied else []
    table = found.get(f"{prefix}wte.weight")
    if head is not None and table is not None and not is_same(head, table):
        untied.append(f"{_HEAD} differs from {prefix}wte.weight, but hornbook's GPT has a tied head")
    check_weights(found, {name: weight.their_shape for name, weight in expected.items()}, what, untied)
    return Imported({weight.ours: weight.to_ours(found[name]).float() for name, weight in expected.items()})


def to_theirs(tensors: Mapping[str, Tensor], config: GPTConfig) -> dict[str, Tensor]:
    """Return the weights in transformers' names and shapes, without the tied head; matrices are views."""
    return {weight.their_name(): weight.to_theirs(tensors[weight.ours]) for weight in layout(config)}
