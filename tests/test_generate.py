"""Generated ids: greedy against an argmax loop, draws as a function of the seed, and what options do."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hornbook.generate import choose, generate
from hornbook.model.initialize import generator
from tiny import randomize, tiny_model


@pytest.fixture(scope="module")
def model():
    """Its padding rows are large: they would win every draw if they took part."""
    model = tiny_model(residual_dropout=0.5, attention_dropout=0.5)
    randomize(model)
    with torch.no_grad():
        model.embedding.tokens[70:] = 100.0 * model.embedding.tokens[:58].sign()
    return model


def logits_after(model, ids):
    model.eval()
    batch = {"tokens": torch.tensor([ids]), "positions": torch.arange(len(ids))[None]}
    logits = model.head.logits(model.trunk({**batch, "keys": torch.zeros_like(batch["tokens"])}))[0, -1]
    model.train()
    return logits.detach()


def greedy(model, prompt, num_tokens):
    ids = list(prompt)
    for _ in range(num_tokens):
        ids.append(int(logits_after(model, ids[-model.max_positions :]).argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("prompt", [[3], [3, 1, 4, 1, 5], list(range(24)), list(range(60))])
def test_greedy_equals_an_argmax_loop(model, prompt):
    """Also when the prompt, or what grows from it, is longer than the position table of 24."""
    expected = greedy(model, prompt, 30)
    assert generate(model, prompt, num_tokens=30, seed=0, temperature=0.0) == expected
    assert generate(model, prompt, num_tokens=30, seed=5, temperature=1.3, top_k=1) == expected


def test_a_long_prompt_is_cut_from_the_left(model):
    prompt = [index % 70 for index in range(100)]
    options = {"num_tokens": 5, "seed": 1}
    assert generate(model, prompt, **options) == generate(model, prompt[-24:], **options)
    assert generate(model, prompt, **options) == generate(model, [9] * 50 + prompt[-24:], **options)


def test_ids_are_a_function_of_the_seed(model):
    options = {"num_tokens": 20, "temperature": 1.0, "top_k": None}
    first = generate(model, [1, 2], seed=1, **options)
    torch.manual_seed(99)
    assert generate(model, [1, 2], seed=1, **options) == first
    assert generate(model, [1, 2], seed=2, **options) != first


def test_fewer_tokens_are_the_beginning_of_more(model):
    texts = [generate(model, [1], num_tokens=count, seed=3) for count in (0, 1, 7, 20)]
    assert [len(text) for text in texts] == [0, 1, 7, 20]
    assert all(texts[-1][: len(text)] == text for text in texts)


@pytest.mark.parametrize("temperature", [0.0, 1.0, 1e6])
def test_padding_is_never_drawn(model, temperature):
    assert max(generate(model, [1], num_tokens=60, seed=0, temperature=temperature, top_k=None)) < 70


def test_stop_id_ends_the_text_and_is_not_in_it(model):
    ids = generate(model, [1], num_tokens=40, seed=3)
    stop = ids[10]
    assert generate(model, [1], num_tokens=40, seed=3, stop_id=stop) == ids[: ids.index(stop)]


@pytest.mark.parametrize("training", [True, False])
def test_model_keeps_its_mode(model, training):
    model.train(training)
    generate(model, [1], num_tokens=2, seed=0)
    assert model.training is training


@settings(max_examples=50, deadline=None)
@given(
    values=st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=12, unique=True),
    top_k=st.one_of(st.none(), st.integers(1, 15)),
    temperature=st.floats(0.1, 10),
    seed=st.integers(0, 1000),
)
def test_choices_are_among_the_likeliest(values, top_k, temperature, seed):
    logits = torch.tensor(values)
    chosen = choose(logits, temperature=temperature, top_k=top_k, draws=generator(seed, "x"))
    assert chosen in logits.argsort(descending=True)[: top_k or len(values)].tolist()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_softmax(temperature):
    """Over 4,000 draws, within 4.5 standard deviations; the three that top_k leaves out are never drawn."""
    logits = torch.tensor([0.3, -1.0, 1.2, 0.0, -2.0, 0.9])
    expected = torch.softmax(torch.tensor([0.3, 1.2, 0.9]).double() / temperature, 0).tolist()
    draws = generator(0, "draws")
    counts = Counter(choose(logits, temperature=temperature, top_k=3, draws=draws) for _ in range(4000))
    assert set(counts) == {0, 2, 5}
    for index, probability in zip((0, 2, 5), expected, strict=True):
        assert abs(counts[index] / 4000 - probability) < 4.5 * (probability * (1 - probability) / 4000) ** 0.5
