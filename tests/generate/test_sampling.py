"""Every option acts as its formula says: on fixed logits, against transformers, and by the frequencies of draws."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from hornbook.config.generation import Sampling
from hornbook.errors import HornbookError, UserError
from hornbook.generate.sampling import Chooser, candidates, draw, draws_of, penalize

LOGITS = torch.tensor([[0.3, -1.0, 1.2, 0.0, -2.0, 0.9]])
NUM_DRAWS = 4000


def probabilities(logits: torch.Tensor, sampling: Sampling) -> dict[int, float]:
    """What one row of logits can give, and how likely."""
    values, ids = candidates(logits, sampling)
    ids = torch.arange(logits.shape[1])[None] if ids is None else ids
    values = values / values.sum()
    return {int(key): float(value) for key, value in zip(ids[0], values[0], strict=True) if value > 0}


def frequencies(sampling: Sampling, seed: int = 0) -> Counter:
    draws = [draws_of(seed, [1], sample) for sample in range(NUM_DRAWS)]
    chooser = Chooser(sampling, [[1]] * NUM_DRAWS, draws, vocab_size=LOGITS.shape[1])
    return Counter(chooser.choose(LOGITS.expand(NUM_DRAWS, -1)))


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(temperature=1.0, top_k=None), (0, 1, 2, 3, 4, 5)),
        (Sampling(temperature=0.5, top_k=3), (0, 2, 5)),
        (Sampling(temperature=2.0, top_k=3), (0, 2, 5)),
        (Sampling(temperature=1.0, top_k=100), (0, 1, 2, 3, 4, 5)),
        (Sampling(temperature=1.0, top_k=None, top_p=0.6), (2, 5)),
        (Sampling(temperature=1.0, top_k=3, top_p=0.9), (0, 2, 5)),
        (Sampling(temperature=1.0, top_k=1), (2,)),
    ],
    ids=str,
)
def test_draws_follow_the_softmax_of_what_is_kept(sampling, kept):
    """The chi-square of 4,000 draws stays below its value at 1 in 10,000; what is left out is never drawn."""
    weights = {index: math.exp(float(LOGITS[0, index]) / sampling.temperature) for index in kept}
    expected = {index: NUM_DRAWS * weight / sum(weights.values()) for index, weight in weights.items()}
    counts = frequencies(sampling)
    assert set(counts) == set(kept)
    statistic = sum((counts[index] - expected[index]) ** 2 / expected[index] for index in kept)
    assert statistic < {1: 1e-9, 2: 15.14, 3: 18.42, 6: 25.74}[len(kept)]


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=12, unique=True),
    top_k=st.one_of(st.none(), st.integers(1, 15)),
    top_p=st.one_of(st.none(), st.floats(0.05, 1.0)),
    temperature=st.floats(0.1, 10),
)
def test_candidates_are_those_of_transformers(values, top_k, top_p, temperature):
    logits = torch.tensor([values])
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    warpers = [TemperatureLogitsWarper(temperature)]
    warpers += [TopKLogitsWarper(top_k)] if top_k else []
    warpers += [TopPLogitsWarper(top_p)] if top_p and top_p < 1 else []
    theirs = torch.softmax(LogitsProcessorList(warpers)(None, logits.double()), -1)[0]
    ours = probabilities(logits, sampling)
    close = [theirs[index] > 0 for index in range(len(values))] == [index in ours for index in range(len(values))]
    # Sums near top_p itself may round to either side; then one more candidate, or one fewer, is right.
    if close or top_p is None:
        for index, probability in ours.items():
            assert probability == pytest.approx(float(theirs[index]), rel=1e-5)
    else:
        ranked = logits.double().div(temperature).softmax(-1).sort(descending=True).values.cumsum(-1)
        assert top_k is not None or (ranked - top_p).abs().min() < 1e-6


@pytest.mark.parametrize("top_k", range(1, 7))
def test_top_k_keeps_exactly_k(top_k):
    """Also among equals; the system that this replaces drew from k - 1."""
    assert len(probabilities(LOGITS, Sampling(top_k=top_k))) == top_k
    assert len(probabilities(torch.zeros(1, 6), Sampling(top_k=top_k))) == top_k


@pytest.mark.parametrize(
    ("top_p", "num_kept"), [(1e-9, 1), (0.39, 1), (0.41, 2), (0.7, 2), (0.71, 3), (0.91, 4), (1, 4)]
)
def test_top_p_keeps_the_fewest_that_make_it_up(top_p, num_kept):
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()
    kept = probabilities(logits, Sampling(temperature=1.0, top_k=None, top_p=top_p))
    assert sorted(kept) == sorted([1, 3, 2, 0][:num_kept])
    assert sum(kept.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("penalty", [1.3, 2.0, 0.5])
def test_the_repetition_penalty_is_its_formula(penalty):
    """Positive logits are divided, negative ones multiplied; transformers agrees."""
    logits, seen = torch.tensor([[2.0, -2.0, 3.0, -1.0, 0.0]]), torch.tensor([[True, True, False, False, True]])
    expected = torch.tensor([[2.0 / penalty, -2.0 * penalty, 3.0, -1.0, 0.0]])
    assert torch.equal(penalize(logits, seen, penalty), expected)
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([[0, 1, 1, 4]]), logits.clone())
    assert torch.equal(theirs, expected)


def test_the_repetition_penalty_counts_the_prompt_and_what_was_chosen():
    logits = torch.tensor([[2.0, 1.9, 1.8, 1.7]]).expand(2, -1)
    sampling = Sampling(temperature=0.0, repetition_penalty=1.5)
    chooser = Chooser(sampling, [[0], [3]], [draws_of(0, [])] * 2, vocab_size=4)
    assert [chooser.choose(logits) for _ in range(4)] == [[1, 0], [2, 1], [3, 2], [0, 0]]
    chooser.keep([1])
    assert chooser.choose(logits[:1]) == [0], "all were seen, so the likeliest again"


def test_a_stop_token_in_the_prompt_is_penalized_as_in_transformers():
    """Prompts begin with the end-of-text token, which is also the stop token."""
    logits = torch.tensor([[2.0, 1.9, 1.8]])
    sampling = Sampling(temperature=0.0, repetition_penalty=1.5)
    chooser = Chooser(sampling, [[0, 1]], [draws_of(0, [])], vocab_size=3)
    theirs = RepetitionPenaltyLogitsProcessor(1.5)(torch.tensor([[0, 1]]), logits.clone())
    assert chooser.choose(logits) == [int(theirs.argmax())] == [2]


def test_only_the_vocabulary_is_chosen():
    logits = torch.tensor([[1.0, 2.0, 3.0]])
    for sampling in (Sampling(temperature=0.0), Sampling(temperature=1e-6), Sampling(repetition_penalty=9.0, top_k=1)):
        assert Chooser(sampling, [[2]], [draws_of(0, [])], vocab_size=2).choose(logits) == [1]


@pytest.mark.parametrize("number", [0.0, 0.25, 0.5, 1.0 - 2.0**-53])
@pytest.mark.parametrize("total", [1.0, 1.5, 1e-300, 1e300, 1.0 - 2.0**-53, 1.0 + 2.0**-52])
def test_a_draw_never_falls_on_a_candidate_without_a_share(number, total):
    weights = torch.tensor([[0.0, total / 2, 0.0, total / 2, 0.0]], dtype=torch.float64)
    assert draw(weights, None, [number]) == [1 if number < 0.5 else 3]


def test_draws_are_a_function_of_seed_prompt_and_sample():
    def numbers(*key):
        stream = draws_of(*key)
        return [stream.random() for _ in range(3)]

    keys = [(0, [1, 2]), (1, [1, 2]), (0, [12]), (0, [1, 2], 1), (0, [2, 1]), (1, [1], 2)]
    assert len({tuple(numbers(*key)) for key in keys}) == len(keys)
    assert numbers(0, (1, 2), 0) == numbers(0, [1, 2])
    assert numbers(0, [1, 2]) == [0.1812453457489166, 0.517133973611671, 0.5208448261384446], "never to change"


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.0), Sampling(top_k=None)], ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_an_error(sampling, value):
    chooser = Chooser(sampling, [[0]], [draws_of(0, [0])], vocab_size=3)
    with pytest.raises(HornbookError, match="not finite"):
        chooser.choose(torch.tensor([[0.0, value, 1.0]]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1; expected 0, or at least 1e-06"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": 1e-9}, "temperature is 1e-09"),
        ({"top_k": 0}, "top_k is 0; expected 1 or more"),
        ({"top_p": 0.0}, "top_p is 0.0; expected more than 0 and at most 1"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0; expected more than 0"),
        ({"top_k": -1, "top_p": 2.0}, "top_k is -1; expected 1 or more; top_p is 2.0"),
    ],
)
def test_values_out_of_range_are_named_all_at_once(options, message):
    with pytest.raises(UserError) as caught:
        Sampling(**options)
    assert str(caught.value).startswith(message)
