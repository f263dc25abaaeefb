"""Texts and gaps in Python, against the commands and the functions below them."""

import json
from pathlib import Path

import pytest
import torch
from tiny_encoder_runs import encoder_contents
from tiny_huggingface import tiny_contents
from tiny_text import one_line, tiny_tokenizer

import hornbook
from hornbook.__main__ import main
from hornbook.checkpoint import save
from hornbook.errors import UserError
from hornbook.generate import Sampling, generate

PROMPT = "the cat"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save(tmp_path / "checkpoints", tiny_contents(max_positions=64))


@pytest.fixture
def gpt(checkpoint: Path) -> hornbook.Model:
    return hornbook.load(checkpoint, device="cpu", compute="fp32")


@pytest.fixture
def bert_checkpoint(tmp_path: Path) -> Path:
    return save(tmp_path / "encoder", encoder_contents("bert"))


def command(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict]:
    assert main(["generate", *words, "--device", "cpu", "--compute", "fp32", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["results"]


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ((), {}),
        (("--temperature", "0", "--output-length", "20"), {"temperature": 0.0, "output_length": 20}),
        (("--top-k", "none", "--top-p", "0.9", "--seed", "3"), {"top_k": None, "top_p": 0.9, "seed": 3}),
        (("--stop", "e", "--repetition-penalty", "1.3"), {"stop": "e", "repetition_penalty": 1.3}),
        (("--stop-token", "t", "--no-start-token"), {"stop_token": "t", "start_token": False}),
        (("--stop-token", "none", "--input-length", "2"), {"stop_token": "none", "input_length": 2}),
    ],
)
def test_a_text_is_that_of_the_command(checkpoint, gpt, capsys, words, options) -> None:
    (expected,) = command(capsys, str(checkpoint), "--prompt", PROMPT, *words)
    assert gpt.generate(PROMPT, **options) == expected["text"]


def test_several_prompts_and_samples(checkpoint: Path, gpt: hornbook.Model, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--prompt", PROMPT, "--prompt", "story", "--num-samples", "2", "--output-length", "12")
    expected = [text["text"] for text in command(capsys, str(checkpoint), *words)]
    for batch_size in (1, 3, 8):
        options = {"output_length": 12, "batch_size": batch_size}
        assert gpt.generate([PROMPT, "story"], num_samples=2, **options) == expected
    assert gpt.generate(PROMPT, num_samples=2, output_length=12) == expected[:2]
    assert gpt.generate([PROMPT], output_length=12) == expected[:1]
    assert gpt.generate(PROMPT, output_length=12) == expected[0]
    assert gpt.generate(output_length=3) == gpt.generate("", output_length=3)


def test_ids_are_continued_by_ids(gpt: hornbook.Model) -> None:
    ids = gpt.encode(PROMPT)
    expected = generate(gpt.module, ids, num_tokens=9, seed=4, sampling=Sampling(top_k=7), stop_id=300)
    assert gpt.generate(ids, output_length=9, seed=4, top_k=7, stop_token="none") == expected
    assert gpt.generate(torch.tensor(ids), output_length=9, seed=4, top_k=7, stop_token="none") == expected
    assert gpt.generate([ids, ids[:1]], output_length=9, seed=4, top_k=7, stop_token="none")[0] == expected
    text = gpt.generate(PROMPT, output_length=9, seed=4, temperature=0)
    assert tiny_tokenizer().decode(gpt.generate(ids, output_length=9, temperature=0)) == text
    assert len(gpt.generate(list(range(70)), input_length=4, output_length=2, stop_token="none")) == 2


@pytest.mark.parametrize(
    ("prompt", "options", "part"),
    [
        (PROMPT, {"temperature": -1.0}, "temperature is -1.0"),
        (PROMPT, {"num_samples": 0}, "num_samples is 0; expected 1 or more"),
        (PROMPT, {"batch_size": 0}, "batch_size is 0"),
        (PROMPT, {"output_length": 0}, "output_length is 0"),
        (PROMPT, {"stop_token": "the cat sat"}, "expected one"),
        (PROMPT * 40, {}, "64 positions"),
        ([PROMPT, PROMPT * 40], {}, "prompt 2 has"),
        ([1, 2], {"stop": ["a"]}, "stop applies only to prompts of text"),
        ([1, 2], {"input_length": 0}, "input_length is 0"),
        ([1, 999], {}, "id 999"),
        (list(range(65)), {}, "expected 1 to 64"),
        ([PROMPT, [1, 2]], {}, "texts and ids"),
    ],
)
def test_bad_input_is_one_line(gpt: hornbook.Model, prompt, options, part) -> None:
    with pytest.raises(UserError) as caught:
        gpt.generate(prompt, **options)
    assert one_line(caught.value, part)


def test_gaps_are_those_of_the_command(bert_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["the [MASK] sat.", "a cat [MASK] on the [MASK]."]
    expected = command(capsys, str(bert_checkpoint), "--prompt", texts[0], "--prompt", texts[1], "--top-k", "3")
    model = hornbook.load(bert_checkpoint, device="cpu", compute="fp32")
    assert [filled.as_json() for filled in model.fill(texts, top_k=3)] == expected
    (gap,) = model.fill(texts[0]).gaps
    assert len(gap) == 5 and gap[0].probability >= gap[4].probability


def test_each_kind_of_model_names_what_it_can(gpt: hornbook.Model, bert_checkpoint: Path) -> None:
    bert = hornbook.load(bert_checkpoint, device="cpu")
    for call, part in (
        (lambda: gpt.fill("a [MASK]"), "is a decoder, which does not fill masks"),
        (lambda: bert.generate("a"), "is an encoder, which does not generate text"),
        (lambda: bert.fill("no gap"), "has no mask: write [MASK]"),
        (lambda: bert.fill([1, 2]), "fill takes texts"),
        (lambda: bert.fill("a [MASK]", top_k=0), "top_k is 0"),
        (lambda: gpt.loss(PROMPT, labels=[1]), "labels are for encoders"),
        (lambda: gpt.loss([7]), "no token is scored"),
    ):
        with pytest.raises(UserError) as caught:
            call()
        assert one_line(caught.value, part)
