"""ModernBERT beside transformers': logits, losses, gradients, every layout of a batch, import and export."""

from pathlib import Path

import pytest
import torch
from tiny_huggingface import edit_config, edit_weights, refusal
from torch import Tensor
from torch.nn import functional
from transformers import (
    AutoModelForMaskedLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    ModernBertForQuestionAnswering,
    ModernBertForSequenceClassification,
)

from hornbook.exchange.huggingface import read_folder, write_folder
from hornbook.exchange.huggingface.modernbert import read
from hornbook.exchange.restore import load_model
from hornbook.model import EncoderModel
from hornbook.samples.windows import NOT_SCORED

CPU = torch.device("cpu")
LENGTHS = [20, 7, 13, 20]


@pytest.fixture
def peer() -> ModernBertForMaskedLM:
    """Five layers, of which 0 and 3 are global; the others see three tokens on either side."""
    torch.manual_seed(3)
    config = ModernBertConfig(
        vocab_size=70,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=5,
        num_attention_heads=4,
        max_position_embeddings=24,
        local_attention=6,
        pad_token_id=0,
        attn_implementation="eager",
        **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")),
    )
    model = ModernBertForMaskedLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


@pytest.fixture
def folder(peer: ModernBertForMaskedLM, tmp_path: Path) -> Path:
    peer.save_pretrained(tmp_path / "hf")
    return tmp_path / "hf"


def padded() -> tuple[Tensor, Tensor]:
    """Tokens ``[S, T]`` with padding, and the mask of tokens."""
    draws = torch.Generator().manual_seed(0)
    is_token = torch.arange(20) < torch.tensor(LENGTHS).unsqueeze(1)
    return torch.randint(1, 70, is_token.shape, generator=draws) * is_token, is_token


def batch_of(layout: str) -> dict[str, Tensor]:
    """The sequences, one a row with padding, or all in one row; every third token is predicted, as in ``padded``."""
    tokens, is_token = padded()
    positions = torch.arange(20).expand(tokens.shape)
    if layout == "unpadded":
        tokens, positions = tokens[is_token].unsqueeze(0), positions[is_token].unsqueeze(0)
        firsts = torch.tensor([0, *LENGTHS[:-1]]).cumsum(0)
    else:
        firsts = torch.arange(len(LENGTHS)) * 20
    indices = torch.cat([first + torch.arange(0, length, 3) for first, length in zip(firsts, LENGTHS, strict=True)])
    return {
        "tokens": tokens,
        "positions": positions,
        "keys": torch.zeros_like(tokens),
        "firsts": firsts,
        "lengths": torch.tensor(LENGTHS),
        "predictions": indices,
        "targets": tokens.flatten()[indices],
    }


@pytest.mark.parametrize("layout", ["padded", "unpadded"])
def test_logits_losses_and_gradients(peer, folder: Path, layout: str) -> None:
    model, batch = load_model(folder, CPU, compute="fp32").model, batch_of(layout)
    assert isinstance(model, EncoderModel)
    tokens, is_token = padded()
    theirs = peer(tokens, attention_mask=is_token.long()).logits
    assert theirs.std() > 0.1, "the weights matter"
    logits = model(lambda head, x_BTD, batch: head.logits(x_BTD), batch)
    ours = logits[0] if layout == "unpadded" else logits[is_token]
    torch.testing.assert_close(ours, theirs[is_token], rtol=1e-5, atol=1e-5)
    loss, _ = model(lambda head, x_BTD, batch: head.predict(x_BTD, batch["predictions"], batch["targets"]), batch)
    labels = torch.where(is_token & (torch.arange(20) % 3 == 0), tokens, NOT_SCORED)
    other = functional.cross_entropy(theirs.flatten(0, 1), labels.flatten(), reduction="sum")
    torch.testing.assert_close(loss, other, rtol=1e-5, atol=1e-5)
    loss.backward()
    other.backward()
    model.fold_tied_gradients()
    gradients = {name: parameter.grad for name, parameter in peer.named_parameters()}
    options = load_model(folder, CPU, compute="fp32").recipe.model
    expected = read(gradients, options, tied=True, what="gradients").weights
    found = {name: model.logical(name, parameter.grad) for name, parameter in model.own_parameters()}
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-5 * float(gradient.abs().max()))


def test_out_again(peer, folder: Path, tmp_path: Path) -> None:
    write_folder(tmp_path / "again", read_folder(folder), shard_size=20_000)
    again = AutoModelForMaskedLM.from_pretrained(tmp_path / "again", attn_implementation="eager")
    assert type(again) is ModernBertForMaskedLM
    tokens, is_token = padded()
    with torch.no_grad():
        logits, expected = (model(tokens, attention_mask=is_token.long()).logits for model in (again, peer))
    torch.testing.assert_close(logits, expected, rtol=0, atol=0)
    same = load_model(tmp_path / "again", CPU, compute="fp32").recipe.model
    assert same == load_model(folder, CPU, compute="fp32").recipe.model


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm_bias": True}, "norm_bias is True, expected False"),
        ({"mlp_dropout": 0.1}, "mlp_dropout is 0.1, expected 0.0"),
        ({"experts": 8}, "'experts' is not known"),
        ({"layer_types": ["sliding_attention"] * 5}, "expected full_attention in every N-th layer, from the first"),
        ({"architectures": ["ModernBertForTokenClassification"]}, "expected ModernBertForMaskedLM"),
        ({"local_attention": 7}, "local_attention"),
    ],
    ids=str,
)
def test_options_that_hornbook_lacks_are_named(folder: Path, changes: dict, message: str) -> None:
    edit_config(folder, **changes)
    assert message in refusal(folder)


def test_an_untied_head_is_refused(folder: Path) -> None:
    edit_weights(folder, lambda tensors: tensors.update({"decoder.weight": torch.ones(70, 32)}))
    assert "decoder.weight differs from model.embeddings.tok_embeddings.weight" in refusal(folder)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (ModernBertForSequenceClassification, {"classifier_pooling": "cls"}),
        (ModernBertForSequenceClassification, {"classifier_pooling": "mean"}),
        (ModernBertForQuestionAnswering, {}),
    ],
)
@pytest.mark.parametrize("layout", ["padded", "unpadded"])
def test_heads_of_labels(peer, tmp_path: Path, kind, options: dict, layout: str) -> None:
    """Logits of classes and spans, from transformers and back to it."""
    torch.manual_seed(4)
    num_labels = 2 if kind is ModernBertForQuestionAnswering else 3
    theirs = kind(type(peer.config)(**{**peer.config.to_dict(), "num_labels": num_labels, **options})).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    theirs.save_pretrained(tmp_path / "hf")
    tokens, is_token = padded()
    expected = theirs(tokens, attention_mask=is_token.long())
    model = load_model(tmp_path / "hf", CPU, compute="fp32").model
    if kind is ModernBertForQuestionAnswering:
        logits = model(lambda head, x_BTD, batch: head.span_logits(x_BTD, batch), batch_of(layout))
        both = torch.stack((expected.start_logits, expected.end_logits), 2)
        torch.testing.assert_close(logits[is_token], both[is_token], rtol=1e-5, atol=1e-5)
    else:
        logits = model(lambda head, x_BTD, batch: head.label_logits(x_BTD, batch), batch_of(layout))
        torch.testing.assert_close(logits, expected.logits, rtol=1e-5, atol=1e-5)
    write_folder(tmp_path / "again", read_folder(tmp_path / "hf"))
    again = kind.from_pretrained(tmp_path / "again", attn_implementation="eager").eval()
    assert again.config.classifier_pooling == theirs.config.classifier_pooling
    torch.testing.assert_close(again.state_dict(), theirs.state_dict(), rtol=0, atol=0)
