"""The model families that can be exchanged with transformers, by their names on both sides.

::

    config.json "model_type": "bert"  -> FAMILIES["bert"] -> read, to_section ...
    [model] family = "bert"           -> family_of(config) -> to_theirs, from_section
"""

from collections.abc import Collection, Mapping
from typing import Any, Final, Protocol

from torch import Tensor

from hornbook.config import BertConfig, DecoderConfig, GPTConfig, ModernBertConfig, RobertaConfig
from hornbook.errors import CheckpointError
from hornbook.exchange.huggingface import gpt2, modernbert
from hornbook.exchange.huggingface.common import Imported
from hornbook.exchange.huggingface.decoder_families import DECODERS, decoder_of
from hornbook.exchange.huggingface.encoder_words import BERT, ROBERTA


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
