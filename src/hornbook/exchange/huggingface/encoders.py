"""Translate BERT and RoBERTa between transformers and hornbook: options, names, shapes.

::

    transformers                                            hornbook
    hidden_size, num_hidden_layers, hidden_dropout_prob     hidden_size, num_layers, embedding_ and residual_dropout
    bert.encoder.layer.3.attention.self.query.weight  [D, D]    blocks.3.attention.qkv.weight  [3, D, D]
    bert.encoder.layer.3.attention.output.LayerNorm.weight      blocks.3.attention_norm.weight
    cls.predictions.transform.dense.weight                      head.transform.dense.weight
    cls.predictions.decoder.weight  [V, D], or absent           tied to embedding.tokens

Files have all heads, some of them or none (``BertModel``, without the prefix ``bert.``), or heads of other tasks.
Weights that pre-training needs and a file lacks are drawn at random, those without a use are left out, and both are
reported. transformers has one dropout where hornbook has two: the export writes that of the blocks, and reports it.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from hornbook.config import EncoderConfig
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
)
from hornbook.model import initialize
from hornbook.model.encoder import build_head

_OPTIONS: Final[Options] = {
    "num_layers": (("num_hidden_layers",), 12),
    "hidden_size": (("hidden_size",), 768),
    "num_heads": (("num_attention_heads",), 12),
    "feed_forward_size": (("intermediate_size",), 3072),
    "vocab_size": (("vocab_size",), None),  # of the family
    "max_positions": (("max_position_embeddings",), 512),
    "embedding_dropout": (("hidden_dropout_prob",), 0.1),
    "residual_dropout": (("hidden_dropout_prob",), 0.1),
    "attention_dropout": (("attention_probs_dropout_prob",), 0.1),
    "layer_norm_epsilon": (("layer_norm_eps",), 1e-12),
    "initializer_std": (("initializer_range",), 0.02),
    "num_segments": (("type_vocab_size",), 2),
}
BIASES: Final = ("qkv_bias", "projection_bias", "prediction_bias")
_SWITCHES: Final = (*BIASES, "head_transform")  # only in TensorFlow's
_SETTLED: Final[dict[str, object]] = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "pruned_heads": {},
    "quantization_config": {},
    "problem_type": "single_label_classification",
}
"""Options that change the computation, and the one value that hornbook's encoders support."""

_TABLES: Final = {"tokens": "word_embeddings", "positions": "position_embeddings", "segments": "token_type_embeddings"}
_BLOCK: Final = {
    "attention.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.out": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "feed_forward.up": ("intermediate.dense",),
    "feed_forward.down": ("output.dense",),
    "feed_forward_norm": ("output.LayerNorm",),
}
_BUFFERS: Final = ("embeddings.position_ids", "embeddings.token_type_ids")
_OLD_NAMES: Final = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""Files converted from TensorFlow's have its names of the norms' parameters."""
_HEADS: Final = ("classifier.", "qa_outputs.", "pooler.", "cls.", "lm_head.")
_SEED: Final = 0


@dataclass(frozen=True, kw_only=True)
class EncoderFamily:
    """The translation of one family.

    Attributes:
        model_type: transformers' type, also the prefix of the trunk's tensors.
        architectures: transformers' class of an export, by the model's head.
        vocab_size: default of a config.
        first_position: rows of the position table that no token uses.
        pad_token_id: the required value in a config, if any.
        heads: for each head, hornbook's names of its layers, transformers' names, and the part of the head.
        base_architecture: transformers' class of the trunk, with or without a pooler.
        partial_architectures: transformers' class of a pre-trained model without all parts of its head, by its parts.
        bias: transformers' name of the bias over the vocabulary.
        decoder: transformers' name of the tied layer.
    """

    model_type: str
    architectures: Mapping[str, str]
    vocab_size: int
    first_position: int
    pad_token_id: int | None
    heads: Mapping[str, Mapping[str, tuple[str, str]]]
    base_architecture: str
    partial_architectures: Mapping[frozenset[str], str]
    bias: str
    decoder: str

    def to_section(self, config: Mapping[str, Any], what: str) -> dict[str, Any]:
        """Return a recipe's ``[model]`` section, unchecked, from a ``config.json``.

        Raises CheckpointError if the config has options that hornbook does not support; the message lists all.
        """
        section = options_of(config, {**_OPTIONS, "vocab_size": (("vocab_size",), self.vocab_size)})
        activation = config.get("hidden_act") or "gelu"
        settled = _SETTLED | ({} if self.pad_token_id is None else {"pad_token_id": self.pad_token_id})
        problems = [
            f"{name} is {config[name]!r:.80}, expected {value!r}"
            for name, value in settled.items()
            if config.get(name) is not None and config[name] != value
        ]
        problems += option_problems("hidden_act", activation, "num_hidden_layers", section["num_layers"])
        if problems:
            raise CheckpointError(
                f"{what}: hornbook's {self.model_type} does not support this: {'; '.join(problems)}; use another model"
            )
        if type(section["max_positions"]) is int:
            section["max_positions"] -= self.first_position
        section |= {name: config[name] for name in _SWITCHES if name in config}
        return {"family": self.model_type, "activation": ACTIVATIONS[activation], **section, **head_of(config)}

    def their_name(self, option: str) -> str:
        """Return the name in ``config.json`` of a hornbook option."""
        return "hidden_act" if option == "activation" else _OPTIONS[option][0][0] if option in _OPTIONS else option

    def from_section(self, config: EncoderConfig) -> dict[str, Any]:
        """Return the ``config.json`` of a model, without entries about its files and tokenizer.

        Raises CheckpointError if transformers cannot represent the model.
        """
        refuse_head_size(config, self.model_type)
        if config.head == "pretraining" and not config.head_transform:
            raise CheckpointError(
                f"model.head_transform is false, but transformers' {self.model_type} has that layer before its "
                "prediction of tokens; this model cannot be exported"
            )
        values = {names[0]: getattr(config, ours) for ours, (names, _) in _OPTIONS.items()}
        values |= {
            "intermediate_size": config.effective_feed_forward_size,
            "max_position_embeddings": config.max_positions + self.first_position,
            "hidden_act": their_activation(config.activation),
        }
        fixed = {
            "model_type": self.model_type,
            "architectures": [self.architectures[config.head]],
            "tie_word_embeddings": True,
        }
        padding = {} if self.pad_token_id is None else {"pad_token_id": self.pad_token_id}
        return {**fixed, **values, "position_embedding_type": "absolute", **padding}

    def layout(self, config: EncoderConfig, prefix: str) -> Iterator[Weight]:
        """Yield every parameter of the model that ``config`` describes, with the tied table once."""
        assert config.vocab_size is not None, "a model with weights has a vocabulary"
        for ours, shape, _ in config.description().parameters():
            layer, _, kind = ours.rpartition(".")
            where, _, rest = layer.partition(".")
            part = ""
            if where == "blocks":
                index, _, name = rest.partition(".")
                theirs = tuple(f"{prefix}encoder.layer.{index}.{their}.{kind}" for their in _BLOCK[name])
            elif where == "embedding":
                their = f"LayerNorm.{kind}" if rest else f"{_TABLES[kind]}.weight"
                theirs = (f"{prefix}embeddings.{their}",)
            elif rest:
                their, part = self.heads[config.head][layer]
                theirs = (f"{their.replace('{trunk}', prefix)}.{kind}",)
            else:
                theirs, part = (self.bias,), "masked tokens"
            yield Weight(ours, theirs, shape, part)

    def read(self, tensors: Mapping[str, Tensor], config: EncoderConfig, *, tied: bool, what: str) -> Imported:
        """Return the weights of a file; missing parts of the head are drawn from a fixed seed.

        Args:
            tensors: tensors of the file, with or without the prefix.
            config: the expected model.
            tied: whether the config ties the table, so that the file may omit it.
            what: name of the file in errors.

        Raises:
            CheckpointError: weights are missing, unknown, of another shape or dtype, not finite, or the head is not
                tied; all problems in one line.
        """
        prefix = f"{self.model_type}." if any(name.startswith(f"{self.model_type}.") for name in tensors) else ""
        found = {_new_name(name): tensor for name, tensor in tensors.items() if not name.endswith(_BUFFERS)}
        weights = list(self.layout(config, prefix))
        untied = self._tie(found, f"{prefix}embeddings.word_embeddings.weight", tied=tied)
        absent = _absent_parts(weights, found)
        expected = {name: w.their_shape for w in weights if w.part not in absent for name in w.theirs}
        foreign = tuple(head for head in _HEADS if config.head != "pretraining" or not self.bias.startswith(head))
        others = [name for name in found.keys() - expected.keys() if name.removeprefix(prefix).startswith(foreign)]
        kept = {name: tensor for name, tensor in found.items() if name not in others}
        check_weights(kept, expected, what, untied)
        ours = {weight.ours: weight.to_ours(found) for weight in weights if weight.part not in absent}
        drawn = {name: tensor for name, tensor in (_drawn(config) if absent else {}).items() if name not in ours}
        return Imported(ours | drawn, tuple(drawn), tuple(_notes(what, absent, sorted(others))))

    def to_theirs(self, tensors: Mapping[str, Tensor], config: EncoderConfig) -> dict[str, Tensor]:
        """Return the weights in transformers' names and shapes as views, without the tied table.

        Biases that the model lacks are written as zeros, which computes the same.
        """
        own = {weight.ours for weight in self.layout(config, "")}
        theirs: dict[str, Tensor] = {}
        for weight in self.layout(_with_biases(config), f"{self.model_type}."):
            theirs |= weight.to_theirs(tensors[weight.ours] if weight.ours in own else torch.zeros(weight.shape))
        return theirs

    def without_untrained(
        self, theirs: Mapping[str, Tensor], config: EncoderConfig, untrained: Collection[str]
    ) -> tuple[dict[str, Tensor], str, list[str]]:
        """Remove the parts of the head that were never trained.

        Args:
            theirs: tensors from ``to_theirs``.
            config: the model.
            untrained: hornbook's names of weights that were drawn at random.

        Returns:
            The remaining tensors, transformers' class for them, and the removed parts.
        """
        parts = list(dict.fromkeys(weight.part for weight in self.layout(config, "") if weight.part))
        part_of = {name: w.part for w in self.layout(_with_biases(config), f"{self.model_type}.") for name in w.theirs}
        left_out = {weight.part for weight in self.layout(config, "") if weight.ours in untrained}
        left = {name: tensor for name, tensor in theirs.items() if part_of[name] not in left_out}
        kind = self.architectures[config.head]
        if left_out and config.head == "pretraining":
            kind = self.partial_architectures.get(frozenset(parts) - left_out, self.base_architecture)
        return left, kind, [part for part in parts if part in left_out]

    def _tie(self, found: dict[str, Tensor], table: str, *, tied: bool) -> list[str]:
        """Remove the tied layer from ``found``; its bias replaces a missing one over the vocabulary."""
        twins = {f"{self.decoder}.weight": table, f"{self.decoder}.bias": self.bias}
        tensors = {name: found.pop(name) for name in twins if name in found}
        if f"{self.decoder}.bias" in tensors:
            found.setdefault(self.bias, tensors[f"{self.decoder}.bias"])
        problems = []
        if self.bias in found and not tied and f"{self.decoder}.weight" not in tensors:
            problems.append(f"{self.decoder}.weight is missing, but tie_word_embeddings is false")
        for name, tensor in tensors.items():
            if twins[name] in found and not is_same(tensor, found[twins[name]]):
                problems.append(f"{name} differs from {twins[name]}, but hornbook's encoders have a tied head")
        return problems


def _with_biases(config: EncoderConfig) -> EncoderConfig:
    return replace(config, qkv_bias=True, projection_bias=True, prediction_bias=True)


def _new_name(name: str) -> str:
    old = next((old for old in _OLD_NAMES if name.endswith(old)), None)
    return name if old is None else name.removesuffix(old) + _OLD_NAMES[old]


def _absent_parts(weights: list[Weight], found: Collection[str]) -> list[str]:
    """Return the parts of the head that are entirely missing from a file."""
    parts = {weight.part: False for weight in weights if weight.part}
    for weight in weights:
        if weight.part:
            parts[weight.part] |= any(name in found for name in weight.theirs)
    return [part for part, is_there in parts.items() if not is_there]


def _drawn(config: EncoderConfig) -> dict[str, Tensor]:
    """Return the initial weights of a head."""
    head = build_head(config)
    initialize(head, _SEED)
    return {f"head.{name}": parameter.detach() for name, parameter in head.named_parameters()}


def _notes(what: str, absent: list[str], others: list[str]) -> Iterator[str]:
    if absent:
        yield f"{what} has no head for {', '.join(absent)}: it starts from random weights, to be trained before use"
    if others:
        yield f"{what}: left out, since the model does not use them: {', '.join(others)}"
