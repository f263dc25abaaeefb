"""The linear layers and token tables of hornbook's models, by name and shape, which may be block-sparse."""

from typing import Final, NamedTuple

from hornbook.config.factorized import FactorizedGPTConfig
from hornbook.config.models import (
    BertConfig,
    EncoderConfig,
    GPTConfig,
    GroupBertConfig,
    RobertaConfig,
    TransformerConfig,
)

_KNOWN: Final = (GPTConfig, FactorizedGPTConfig, BertConfig, RobertaConfig, GroupBertConfig)


class LinearShape(NamedTuple):
    """The shape of a linear layer's weights, which may be several stacked matrices of equal shape."""

    num_out: int
    num_in: int
    num_parts: int = 1


def linears_of(model: object) -> dict[str, LinearShape] | None:
    """Return the linear layers of the model that a recipe's section describes, by name; None for a custom model."""
    if type(model) not in _KNOWN:
        return None
    assert isinstance(model, TransformerConfig), "all known models are"
    block = _of_group_block(model) if isinstance(model, GroupBertConfig) else _of_block(model)
    blocks = {f"blocks.{index}.{name}": shape for index in range(model.num_layers) for name, shape in block.items()}
    if isinstance(model, FactorizedGPTConfig):
        wide, narrow = model.hidden_size, model.embedding_size
        projections = {"embedding.projection": (wide, narrow), "head.projection": (narrow, wide)}
        return blocks | {name: LinearShape(*shape) for name, shape in projections.items()}
    if isinstance(model, GPTConfig) and model.head == "classification":
        return blocks | {"head.labels": LinearShape(model.num_labels or 0, model.hidden_size)}
    return blocks | (_of_head(model) if isinstance(model, EncoderConfig) else {})


def table_of(model: object) -> LinearShape | None:
    """Return the token table of the model that a recipe's section describes; None for a custom model.

    It has no rows if the vocabulary is not known.
    """
    if type(model) not in _KNOWN:
        return None
    assert isinstance(model, TransformerConfig), "all known models are"
    width = model.embedding_size if isinstance(model, FactorizedGPTConfig) else model.hidden_size
    return LinearShape(model.vocab_size or 0, width)


def _of_attention(model: TransformerConfig) -> dict[str, LinearShape]:
    hidden, heads = model.hidden_size, model.num_heads * model.effective_head_size
    return {"attention.qkv": LinearShape(3 * heads, hidden, 3), "attention.out": LinearShape(hidden, heads)}


def _of_block(model: TransformerConfig) -> dict[str, LinearShape]:
    hidden, inner = model.hidden_size, model.effective_feed_forward_size
    feed_forward = {"feed_forward.up": LinearShape(inner, hidden), "feed_forward.down": LinearShape(hidden, inner)}
    return _of_attention(model) | feed_forward


def _of_group_block(model: GroupBertConfig) -> dict[str, LinearShape]:
    hidden, inner = model.hidden_size, model.effective_feed_forward_size
    square, wide = LinearShape(hidden, hidden), LinearShape(inner, hidden)
    maps = {"convolution.up": LinearShape(2 * hidden, hidden), "convolution.down": square}
    for name in ("first_feed_forward", "second_feed_forward"):
        maps |= {f"{name}.up": wide, f"{name}.down": square}
    return maps | _of_attention(model)


def _of_head(model: EncoderConfig) -> dict[str, LinearShape]:
    hidden = model.hidden_size
    square, pair = LinearShape(hidden, hidden), LinearShape(2, hidden)
    head = {
        "classification": {"pooler": square, "labels": LinearShape(model.num_labels or 0, hidden)},
        "span": {"spans": pair},
        "pretraining": ({"transform.dense": square} if model.head_transform else {})
        | ({"pooler": square, "classifier": pair} if model.has_pair_head else {}),
    }[model.head]
    return {f"head.{name}": shape for name, shape in head.items()}
