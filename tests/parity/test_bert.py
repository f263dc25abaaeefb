"""hornbook's BERT and RoBERTa against transformers', on random weights: logits, both losses and every gradient."""

import re

import pytest
import torch
from tiny import hidden_states
from tiny_encoders import LAYOUTS, Sample, distance, gradients_of, lay_out, make_samples, tiny_encoder
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, BertForPreTraining, RobertaConfig, RobertaForMaskedLM

from hornbook.model import EncoderModel
from hornbook.samples.windows import NOT_SCORED

TABLES = {"tokens": "word_embeddings", "positions": "position_embeddings", "segments": "token_type_embeddings"}
BLOCK = {
    "attention_norm": "attention.output.LayerNorm",
    "attention.out": "attention.output.dense",
    "feed_forward.up": "intermediate.dense",
    "feed_forward.down": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}
HEADS = {
    "bert": {
        "transform.dense": "cls.predictions.transform.dense",
        "transform.norm": "cls.predictions.transform.LayerNorm",
        "pooler": "bert.pooler.dense",
        "classifier": "cls.seq_relationship",
    },
    "roberta": {"transform.dense": "lm_head.dense", "transform.norm": "lm_head.layer_norm"},
}
BIAS = {"bert": "cls.predictions.bias", "roberta": "lm_head.bias"}
SIZES = {
    "plain": {},
    "one layer, one head": {"num_layers": 1, "num_heads": 1},
    "many small heads": {"num_heads": 8},
    "own feed-forward size, other activation": {"feed_forward_size": 40, "activation": "gelu_tanh"},
    "wide, large epsilon, vocabulary of 65": {"hidden_size": 64, "vocab_size": 65, "layer_norm_epsilon": 1e-2},
    "padded to the row, relu": {"vocab_size": 128, "activation": "relu"},
}
LENGTHS = {"of all kinds": [24, 3, 17, 9, 1, 24, 12], "whole rows": [24, 24], "alone": [5]}
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}


def to_hf(family: str, name: str, tensor: Tensor) -> dict[str, Tensor]:
    """transformers' names and tensors of a tensor shaped like our parameter ``name``."""
    part, _, rest = name.partition(".")
    stem, _, kind = rest.rpartition(".")
    if part == "head":
        return {f"{HEADS[family][stem]}.{kind}" if stem else BIAS[family]: tensor}
    if part == "embedding":
        where = f"LayerNorm.{kind}" if stem == "norm" else f"{TABLES[rest]}.weight"
        return {f"{family}.embeddings.{where}": tensor}
    index, module, kind = re.fullmatch(r"(\d+)\.(.+)[._](weight|bias)", rest).groups()
    prefix = f"{family}.encoder.layer.{index}."
    if module != "attention.qkv":
        return {f"{prefix}{BLOCK[module]}.{kind}": tensor}
    parts = zip(("query", "key", "value"), tensor.chunk(3), strict=True)
    return {f"{prefix}attention.self.{one}.{kind}": values.squeeze(0) for one, values in parts}


def renamed(family: str, model: EncoderModel, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """All of our tensors under transformers' names."""
    theirs: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        theirs |= to_hf(family, name, model.logical(name, tensor).clone())
    return theirs


def hf_model(family: str, model: EncoderModel, sizes: dict, kind: type | None = None) -> torch.nn.Module:
    """A model of transformers, dropout off, eager attention, with the weights of ``model``."""
    given = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "vocab_size": 70, **sizes}
    config = (BertConfig if family == "bert" else RobertaConfig)(
        vocab_size=given["vocab_size"],
        hidden_size=given["hidden_size"],
        num_hidden_layers=given["num_layers"],
        num_attention_heads=given["num_heads"],
        intermediate_size=given.get("feed_forward_size", 4 * given["hidden_size"]),
        hidden_act=ACTIVATIONS[given.get("activation", "gelu")],
        max_position_embeddings=24 if family == "bert" else 26,
        type_vocab_size=2 if family == "bert" else 1,
        layer_norm_eps=given.get("layer_norm_epsilon", 1e-12 if family == "bert" else 1e-5),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
    )
    peer = (kind or (BertForPreTraining if family == "bert" else RobertaForMaskedLM))(config)
    state = renamed(family, model, {name: parameter.detach() for name, parameter in model.own_parameters()})
    missing, unexpected = peer.load_state_dict(state, strict=False)
    tied = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    tied |= {"lm_head.decoder.weight", "lm_head.decoder.bias"}
    assert set(missing) <= tied
    assert (kind is not None) or not unexpected
    return peer


def padded(samples: list[Sample], family: str) -> dict[str, Tensor]:
    """The samples as transformers takes them; RoBERTa has no segments."""
    shape = (len(samples), 24)
    inputs = {name: torch.zeros(shape, dtype=torch.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
    inputs["position_ids"] = torch.arange(24).expand(shape) + (2 if family == "roberta" else 0)
    inputs["labels"] = torch.full(shape, NOT_SCORED)
    for row, sample in enumerate(samples):
        length = len(sample.tokens)
        inputs["input_ids"][row, :length] = sample.tokens
        inputs["attention_mask"][row, :length] = 1
        inputs["token_type_ids"][row, :length] = sample.segments if family == "bert" else 0
        inputs["labels"][row, sample.places] = sample.targets
    if family == "bert":
        inputs["next_sentence_label"] = torch.tensor([sample.label for sample in samples])
    return inputs


def hf_logits(output) -> Tensor:
    return output.prediction_logits if hasattr(output, "prediction_logits") else output.logits


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize(
    ("sizes", "lengths"),
    [
        *(pytest.param(sizes, LENGTHS["of all kinds"], id=name) for name, sizes in SIZES.items()),
        *(pytest.param({}, lengths, id=name) for name, lengths in LENGTHS.items()),
    ],
)
def test_logits_losses_and_gradients_equal_transformers(sizes, lengths, family, layout):
    model = tiny_encoder(family, **sizes)
    peer = hf_model(family, model, sizes)
    samples = make_samples(lengths, vocab_size=model.vocab_size)
    batch = lay_out(samples, layout)
    output = peer(**padded(samples, family))
    output.loss.backward()
    loss, gradients = gradients_of(model, batch)
    torch.testing.assert_close(loss, output.loss.detach(), atol=1e-5, rtol=1e-5)
    theirs = {name: parameter.grad for name, parameter in peer.named_parameters()}
    assert distance(renamed(family, model, gradients), theirs) < 1e-5

    with torch.no_grad():
        x_ND = hidden_states(model, batch).flatten(0, 1)
        for number, sample in enumerate(samples):
            first, length = int(batch["firsts"][number]), len(sample.tokens)
            ours = model.head.logits(x_ND[first : first + length])
            torch.testing.assert_close(ours, hf_logits(output)[number, :length], atol=1e-5, rtol=1e-5)


def test_the_losses_of_each_task_equal_transformers():
    model = tiny_encoder()
    samples = make_samples(LENGTHS["of all kinds"])
    batch = lay_out(samples, "unpadded")
    inputs = padded(samples, "bert")
    with torch.no_grad():
        output = hf_model("bert", model, {})(**inputs)
        masked = hf_model("bert", model, {}, BertForMaskedLM)(
            **{name: value for name, value in inputs.items() if name != "next_sentence_label"}
        )
        x_BTD = hidden_states(model, batch)
        total, num_correct = model.head.predict(x_BTD, batch["predictions"], batch["targets"])
        pairs, num_related = model.head.relate(x_BTD, batch["firsts"], batch["pair_labels"])
    labels = inputs["labels"]
    is_scored = labels != NOT_SCORED
    torch.testing.assert_close(total / is_scored.sum(), masked.loss)
    torch.testing.assert_close(pairs / len(samples), output.loss - masked.loss, atol=1e-5, rtol=1e-5)
    assert num_correct == (output.prediction_logits.argmax(-1) == labels)[is_scored].sum()
    assert num_related == (output.seq_relationship_logits.argmax(-1) == inputs["next_sentence_label"]).sum()


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_number_of_parameters_is_that_of_transformers(family):
    model = tiny_encoder(family)
    assert model.num_parameters == sum(parameter.numel() for parameter in hf_model(family, model, {}).parameters())
