"""The names of transformers for the classes and heads of BERT and RoBERTa; they share all others (`encoders`)."""

from typing import Final

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
