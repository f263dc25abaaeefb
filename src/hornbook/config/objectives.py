"""The objectives of ``[objective]``: a dataclass for each ``name``.

::

    CausalLMConfig
    MaskingConfig         MaskedLMConfig, PretrainingConfig
    LabelledConfig        ClassificationConfig, SpanConfig
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from hornbook.config.options import Problem, choice_of, option


@choice_of("objective")
@dataclass(frozen=True, kw_only=True)
class CausalLMConfig:
    """Next-token prediction."""

    name: str = option("causal_lm", help="training objective")
    unscored_tokens: int = option(
        0,
        help="first tokens of each window that predict no next token, for lack of context",
        minimum=0,
    )
    recurrence_weights: bool = option(
        False,
        help=("divide the loss of each token by its number of occurrences as a target in the window"),
    )
    z_loss: float = option(
        0.0, help="weight of the mean of (log Σ exp logits)² in the loss, which keeps logits small", minimum=0
    )
    scored_share: ClassVar[float] = 1.0
    """Share of the tokens for which logits over the vocabulary are computed."""

    def problems(self) -> list[Problem]:
        if self.z_loss and self.recurrence_weights:
            message = "z_loss does not support recurrence_weights; remove one of them"
            return [Problem(("z_loss", "recurrence_weights"), message)]
        return []


@dataclass(frozen=True, kw_only=True)
class MaskingConfig:
    """The options of every masked language modeling objective."""

    name: str = option("", help="training objective")
    mask_probability: float = option(0.15, help="share of tokens to predict", above=0, below=1)
    max_predictions: int | None = option(
        None,
        help="maximum masked tokens per sequence; none: mean + 2 deviations, a multiple of 16",
        minimum=1,
    )
    whole_words: bool = option(False, help="mask all pieces of a word together")

    @property
    def scored_share(self) -> float:
        """Share of the tokens for which logits over the vocabulary are computed."""
        return self.mask_probability

    def most_masked(self, sequence_length: int) -> int:
        """Return the maximum number of masked tokens of a sequence; by default 32 of 128 and 96 of 512."""
        mean = sequence_length * self.mask_probability
        deviation = math.sqrt(mean * (1 - self.mask_probability))
        return self.max_predictions or min(sequence_length, math.ceil((mean + 2 * deviation) / 16) * 16)


@choice_of("objective")
@dataclass(frozen=True, kw_only=True)
class MaskedLMConfig(MaskingConfig):
    """Masked language modeling of single texts (BERT without pairs, RoBERTa)."""

    name: str = "mlm"
    sequences: Literal["joined", "documents", "lines"] = option(
        "joined",
        help=("joined: documents concatenated and cut; documents: each cut separately; lines: one sentence each"),
    )


@choice_of("objective")
@dataclass(frozen=True, kw_only=True)
class PretrainingConfig(MaskingConfig):
    """BERT's pre-training (Devlin et al. 2019): masked language modeling and next-sentence prediction."""

    name: str = "mlm_nsp"
    short_sequence_probability: float = option(0.1, help="share of pairs cut to a random length", minimum=0, maximum=1)


@dataclass(frozen=True, kw_only=True)
class LabelledConfig:
    """The base of objectives with labels; ``data.train`` and ``data.validation`` are labeled files."""

    name: str = option("", help="training objective")
    scored_share: ClassVar[float] = 0.0
    """Share of the tokens for which logits over the vocabulary are computed."""


@choice_of("objective")
@dataclass(frozen=True, kw_only=True)
class ClassificationConfig(LabelledConfig):
    """Classification of texts or pairs of texts, from JSONL, CSV or TSV files."""

    name: str = "classification"
    text: str = option("text", help="field or column with the text; or a column number, from 0")
    second_text: str | None = option(None, help="field or column with the second text of a pair; none: single texts")
    label: str = option("label", help="field or column with the label")
    labels: tuple[str, ...] = option(
        (), help="class names in the order of their ids; []: those of the training file, sorted"
    )


@choice_of("objective")
@dataclass(frozen=True, kw_only=True)
class SpanConfig(LabelledConfig):
    """Extractive question answering (SQuAD, Rajpurkar et al. 2016), from SQuAD's JSON."""

    name: str = "span"
    document_stride: int = option(128, help="tokens between the starts of two windows of the text", minimum=1)
    max_question_tokens: int = option(64, help="maximum tokens of a question; longer ones are truncated", minimum=1)
    max_answer_tokens: int = option(30, help="maximum tokens of a predicted answer", minimum=1)
    unanswerable: bool = option(False, help="questions may have no answer in their text (SQuAD 2.0)")
