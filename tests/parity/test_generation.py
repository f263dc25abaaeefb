"""Greedy texts beside transformers' ``generate``, on the same weights."""

import json

import pytest
import torch
from test_gpt2 import hf_model
from tiny import randomize, tiny_config
from tiny_huggingface import tiny_folder
from transformers import AutoModelForCausalLM, AutoTokenizer

from hornbook.__main__ import main
from hornbook.generate import Sampling, draws_of, generate_batch, make_decoder
from hornbook.model import build_model, initialize

SHAPES = {
    "two layers": {},
    "wider": {"hidden_size": 64, "num_heads": 4, "vocab_size": 1000, "max_positions": 64},
    "relu, one head": {"num_heads": 1, "activation": "relu", "num_layers": 3},
}


@pytest.fixture(params=SHAPES.values(), ids=SHAPES)
def pair(request: pytest.FixtureRequest):
    """A model whose positions count for more than its tokens, so that greedy texts wander, and its twin."""
    config = tiny_config(**{"max_positions": 48, **request.param})
    model = build_model(config, torch.float32)
    initialize(model, 3)
    randomize(model)
    with torch.no_grad():
        model.embedding.positions *= 4.0
    return model.eval(), hf_model(model, config).eval()


@pytest.mark.parametrize("penalty", [1.0, 1.4])
def test_a_batch_of_unequal_prompts_as_transformers_has_it(pair, penalty):
    model, peer = pair
    prompts = [[1, 2, 3, 4, 5, 6, 7], [9], [11, 12, 13], [20] * 7]
    longest = max(map(len, prompts))
    padded = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    mask = (torch.arange(longest) >= longest - lengths[:, None]).long()
    # transformers counts padding as text when it penalizes, so its prompts go alone then.
    if penalty == 1.0:
        theirs = peer.generate(padded, attention_mask=mask, max_new_tokens=40, do_sample=False, pad_token_id=0)
        expected = theirs[:, longest:].tolist()
    else:
        options = {"max_new_tokens": 40, "do_sample": False, "pad_token_id": 0, "repetition_penalty": penalty}
        alone = [torch.tensor([prompt]) for prompt in prompts]
        expected = [
            peer.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, ids.shape[1] :].tolist()
            for ids in alone
        ]
    ours = generate_batch(
        make_decoder(model),
        prompts,
        num_tokens=40,
        vocab_size=model.vocab_size,
        draws=[draws_of(0, prompt) for prompt in prompts],
        sampling=Sampling(temperature=0.0, repetition_penalty=penalty),
    )
    assert ours == expected
    assert len(set(ours[0])) > 3


@pytest.mark.parametrize("source", ["exported", "imported"])
@pytest.mark.parametrize(("words", "has_start"), [([], True), (["--no-start-token"], False), (["--start-token"], True)])
def test_a_command_writes_what_transformers_writes(tmp_path, capsys, source, words, has_start):
    """The folder's own weights and tokenizer on both sides, which adds the start token of the exported run."""
    folder = tiny_folder(tmp_path / "exported", max_positions=64)
    peer, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    if source == "imported":
        assert main(["checkpoint", "import", str(folder), "--output", str(tmp_path / "imported")]) == 0
    capsys.readouterr()
    prompt = "the cat sat on"
    greedy = ["--temperature", "0", "--stop-token", "none", "--output-length", "30", "--compute", "fp32"]
    given = ["generate", str(tmp_path / source), "--prompt", prompt, "--json-lines", "--threads", "1"]
    assert main([*given, *greedy, *words]) == 0
    text = json.loads(capsys.readouterr().out)["text"]
    ids = torch.tensor([tokenizer(prompt, add_special_tokens=has_start)["input_ids"]])
    options = {"do_sample": False, "max_new_tokens": 30, "eos_token_id": None, "pad_token_id": 0}
    theirs = peer.generate(ids, attention_mask=torch.ones_like(ids), **options)
    assert text == tokenizer.decode(theirs[0, ids.shape[1] :])
