"""Greedy texts beside transformers' ``generate``, on the same weights."""

import pytest
import torch
from test_gpt2 import hf_model

from hornbook.generate import Sampling, draws_of, generate_batch, make_decoder
from hornbook.model import build_model, initialize
from tiny import randomize, tiny_config

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
