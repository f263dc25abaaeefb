"""The model families that can be exchanged with transformers, by their names on both sides.

::

    config.json "model_type": "bert"  -> FAMILIES["bert"] -> read, to_section ...
    [model] family = "bert"           -> family_of(config) -> to_theirs, from_section

Of BERT and RoBERTa, only the names of classes and heads differ; they share all others (`encoders`).
"""

from collections.abc import Collection, Mapping
from typing import Any, Final, Protocol

from torch import Tensor

from hornbook.config import BertConfig, DecoderConfig, GPTConfig, ModernBertConfig, RobertaConfig
from hornbook.errors import CheckpointError
from hornbook.exchange.huggingface import gpt2, modernbert
from hornbook.exchange.huggingface.common import Imported
from hornbook.exchange.huggingface.decoder_families import DECODERS, decoder_of
from hornbook.exchange.huggingface.encoders import EncoderFamily

BERT: Final = EncoderFamily(
    model_type="bert",
    architectures={
        "pretraining": "BertForPreTraining",
        "classification": "BertForSequenceClassification",
        "span": "BertForQuestionAnswering",
    },
    vocab_size=30522,
    first_position=0,
    pad_token_id=None,
    heads={
        "pretraining": {
            "head.transform.dense": ("cls.predictions.transform.dense", "masked tokens"),
            "head.transform.norm": ("cls.predictions.transform.LayerNorm", "masked tokens"),
            "head.pooler": ("{trunk}pooler.dense", "whole texts"),
            "head.classifier": ("cls.seq_relationship", "pairs of texts"),
        },
        "classification": {
            "head.pooler": ("{trunk}pooler.dense", "whole texts"),
            "head.labels": ("classifier", "classes"),
        },
        "span": {"head.spans": ("qa_outputs", "spans")},
    },
    base_architecture="BertModel",
    partial_architectures={
        frozenset({"masked tokens"}): "BertForMaskedLM",
        frozenset({"masked tokens", "whole texts"}): "BertForMaskedLM",
        frozenset({"whole texts", "pairs of texts"}): "BertForNextSentencePrediction",
    },
    bias="cls.predictions.bias",
    decoder="cls.predictions.decoder",
)
ROBERTA: Final = EncoderFamily(
    model_type="roberta",
    architectures={
        "pretraining": "RobertaForMaskedLM",
        "classification": "RobertaForSequenceClassification",
        "span": "RobertaForQuestionAnswering",
    },
    vocab_size=50265,
    first_position=2,
    pad_token_id=1,
    heads={
        "pretraining": {
            "head.transform.dense": ("lm_head.dense", "masked tokens"),
            "head.transform.norm": ("lm_head.layer_norm", "masked tokens"),
        },
        "classification": {
            "head.pooler": ("classifier.dense", "whole texts"),
            "head.labels": ("classifier.out_proj", "classes"),
        },
        "span": {"head.spans": ("qa_outputs", "spans")},
    },
    base_architecture="RobertaModel",
    partial_architectures={},
    bias="lm_head.bias",
    decoder="lm_head.decoder",
)


class Family(Protocol):
    """The translation of one family; see `gpt2`, `decoders`, `encoders` and `modernbert`."""

    def to_section(self, config: Mapping[str, Any], what: str) -> dict[str, Any]:
        """Return a recipe's ``[model]`` section from a ``config.json``."""

    def their_name(self, option: str) -> str:
        """Return the name in ``config.json`` of a hornbook option."""

    def from_section(self, config: Any) -> dict[str, Any]:
        """Return the ``config.json`` of a model."""

    def read(self, tensors: Mapping[str, Tensor], config: Any, *, tied: bool, what: str) -> Imported:
        """Return a file's weights in hornbook's names and shapes, with notes."""

    def to_theirs(self, tensors: Mapping[str, Tensor], config: Any) -> dict[str, Tensor]:
        """Return weights in transformers' names and shapes."""


FAMILIES: Final[Mapping[str, Family]] = {
    "gpt2": gpt2,
    "bert": BERT,
    "roberta": ROBERTA,
    "modernbert": modernbert,
    **DECODERS,
}
_OF_CONFIG: Final[Mapping[type, str]] = {
    GPTConfig: "gpt2",
    BertConfig: "bert",
    RobertaConfig: "roberta",
    ModernBertConfig: "modernbert",
}


def objective_of(model_type: str, weights: Collection[str]) -> str:
    """Return the default objective for further training; with pairs if there is a head for them."""
    if model_type not in ("bert", "roberta", "modernbert"):
        return "causal_lm"
    return "mlm_nsp" if any("seq_relationship" in name for name in weights) else "mlm"


def family_of(config: Any) -> Family:
    """Return the family of a model for export.

    Raises CheckpointError if transformers does not have it.
    """
    if type(config) is DecoderConfig:
        return decoder_of(config)
    name = _OF_CONFIG.get(type(config))
    if name is None:
        raise CheckpointError(
            f"a model of the family {config.family!r} cannot be exported; "
            "expected 'gpt', 'decoder', 'bert', 'roberta' or 'modernbert'"
        )
    return FAMILIES[name]
