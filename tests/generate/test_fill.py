"""What is put into gaps, and how texts are put together again."""

import pytest
import torch
from tiny_encoder_runs import encoder_tokenizer
from tiny_encoders import tiny_encoder
from tiny_text import one_line

from hornbook.errors import UserError
from hornbook.generate.fill_mask import GapFiller
from hornbook.model.head import OutputHead


def filler(kind="wordpiece", likeliest=None, *, top_k=3, **changes) -> GapFiller:
    """A filler whose model takes a token for the likeliest everywhere, if one is named."""
    tokenizer = encoder_tokenizer(kind)
    model = tiny_encoder(vocab_size=tokenizer.vocab_size, residual_dropout=0.5, **changes)
    if likeliest is not None:
        with torch.no_grad():
            model.head.bias.zero_()
            model.head.bias[tokenizer.vocab[likeliest]] = 1e4
    return GapFiller(model, tokenizer, top_k=top_k)


@pytest.mark.parametrize(
    ("kind", "likeliest", "prompt", "text"),
    [
        ("wordpiece", "cat", "The [MASK] sat;\n a [MASK].", "The cat sat;\n a cat."),
        ("wordpiece", "##s", "two Cat [MASK] sat [MASK]", "two Cats sats"),
        ("wordpiece", ".", "[MASK][MASK]é", "..é"),
        ("roberta", "Ġcat", "The <mask> sat; a\n<mask>.", "The cat sat; a cat."),
        ("roberta", "s", "two Cat <mask> sat<mask>", "two Cats sats"),
        ("roberta", "Ġ", "[MASK] <mask>", "[MASK] "),
    ],
)
def test_the_text_is_the_prompt_with_its_gaps_filled(kind, likeliest, prompt, text):
    made = filler(kind, likeliest)
    (filled,) = made.fill([made.request(prompt)])
    assert filled.text == text
    assert all(gap[0].probability == pytest.approx(1.0) for gap in filled.gaps)


def test_the_best_come_first_and_dropout_is_off():
    made = filler(top_k=100)
    requests = [made.request(prompt) for prompt in ("the [MASK]", "[MASK] sat on the [MASK] [MASK]")]
    made._model.eval()
    first = made.fill(requests)
    made._model.train()
    assert made.fill(requests) == first and made._model.training
    assert [len(filled.gaps) for filled in first] == [1, 3]
    for gap in (gap for filled in first for gap in filled.gaps):
        probabilities = [guess.probability for guess in gap]
        assert probabilities == sorted(probabilities, reverse=True)
        assert len({guess.id for guess in gap}) == 100


def test_json_rounds_probabilities():
    made = filler()
    (filled,) = made.fill([made.request("the [MASK]")])
    record = filled.as_json()
    assert record["gaps"][0][0] == {
        "token": filled.gaps[0][0].token,
        "id": filled.gaps[0][0].id,
        "probability": round(filled.gaps[0][0].probability, 6),
    }


def test_what_cannot_be_filled_is_refused():
    made = filler()
    for prompt, parts in (
        ("no gap", ["line 7 has no mask", "[MASK]"]),
        ("a [MASK] " * 12, ["line 7 has 26 tokens", "24"]),
    ):
        with pytest.raises(UserError) as caught:
            made.request(prompt, place="line 7")
        assert one_line(caught.value, *parts)
    with pytest.raises(UserError) as caught:
        filler(top_k=101)
    assert one_line(caught.value, "top-k is 101; expected 1 to 100")


def test_a_fine_tuned_model_fills_no_gaps():
    model = tiny_encoder(vocab_size=encoder_tokenizer().vocab_size)
    model.head = OutputHead(32, model.vocab_size)
    with pytest.raises(UserError) as caught:
        GapFiller(model, encoder_tokenizer(), top_k=3)
    assert one_line(caught.value, "fine-tuned", "no longer has a head for masked tokens")
