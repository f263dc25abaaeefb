"""What a recipe's ``[objective]`` section can ask for, one dataclass a ``name``."""

from dataclasses import dataclass
from typing import Literal

from hornbook.config.options import option
from hornbook.config.registry import register


@dataclass(frozen=True, kw_only=True)
class CausalLMConfig:
    """Predict the next token at every position."""

    name: str = option("causal_lm", help="what is learned")


@dataclass(frozen=True, kw_only=True)
class MaskingConfig:
    """What the objectives share that hide tokens and predict them."""

    name: str = option("masking", help="what is learned")
    mask_probability: float = option(0.15, help="share of the tokens to predict", above=0, below=1)
    max_predictions: int | None = option(
        None, help="masked tokens of a sequence at most; none: mean + 2 deviations, a multiple of 16", minimum=1
    )
    whole_words: bool = option(False, help="mask all pieces of a word together")


@dataclass(frozen=True, kw_only=True)
class MaskedLMConfig(MaskingConfig):
    """Predict masked tokens of one text (BERT without its pairs, RoBERTa)."""

    name: str = option("mlm", help="what is learned")
    sequences: Literal["joined", "documents", "lines"] = option(
        "joined", help="joined: documents end to end, cut to length; documents: each cut; lines: each sentence"
    )


@dataclass(frozen=True, kw_only=True)
class PretrainingConfig(MaskingConfig):
    """BERT's two tasks (Devlin et al. 2019): masked tokens, and whether the second text follows the first."""

    name: str = option("mlm_nsp", help="what is learned")
    short_sequence_probability: float = option(
        0.1, help="share of the pairs that are cut to a random length", minimum=0, maximum=1
    )


@dataclass(frozen=True, kw_only=True)
class LabelledConfig:
    """What the objectives share that learn from labels; ``data.train`` and ``data.validation`` are labelled files."""

    name: str = option("labelled", help="what is learned")


@dataclass(frozen=True, kw_only=True)
class ClassificationConfig(LabelledConfig):
    """Tell the class of a text, or of a pair of texts, from files of JSONL, CSV or TSV."""

    name: str = option("classification", help="what is learned")
    text: str = option("text", help="field or column of the text; numbers, from 0, where a table has no header")
    second_text: str | None = option(None, help="field or column of a pair's second text; none: single texts")
    label: str = option("label", help="field or column of the class")
    labels: tuple[str, ...] = option((), help="the classes in the order of their numbers; []: those of the training")


@dataclass(frozen=True, kw_only=True)
class SpanConfig(LabelledConfig):
    """Find the answer to a question in a text (SQuAD, Rajpurkar et al. 2016), from SQuAD's JSON."""

    name: str = option("span", help="what is learned")
    document_stride: int = option(128, help="tokens from the beginning of a window of the text to the next", minimum=1)
    max_question_tokens: int = option(64, help="tokens of a question; the rest is cut off", minimum=1)
    max_answer_tokens: int = option(30, help="tokens of an answer that is looked for", minimum=1)
    unanswerable: bool = option(False, help="questions may have no answer in their text (SQuAD 2.0)")


register("objective", "causal_lm", CausalLMConfig)
register("objective", "mlm", MaskedLMConfig)
register("objective", "mlm_nsp", PretrainingConfig)
register("objective", "classification", ClassificationConfig)
register("objective", "span", SpanConfig)
