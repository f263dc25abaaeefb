"""Batched by length against one sequence at a time, in float64."""

import numpy as np
import pytest
import torch
from tiny import randomize, tiny_model
from tiny_tasks import log_probabilities

from hornbook.evaluate.spans import Span, batches, score
from hornbook.parallel.ranks import Ranks
from hornbook.samples.windows import NOT_SCORED

LENGTHS = [2, 9, 25, 3, 9, 14, 24, 5, 2, 17]


@pytest.fixture(scope="module")
def model():
    model = tiny_model(num_layers=1)
    randomize(model)
    return model.eval()


@pytest.fixture(scope="module")
def spans():
    draws = np.random.default_rng(5)
    return [
        Span(tokens=draws.integers(70, size=length), num_scored=int(draws.integers(1, length))) for length in LENGTHS
    ]


@pytest.mark.parametrize("micro_batch_size", [1, 3, 100])
def test_equals_one_at_a_time_in_the_order_of_the_spans(model, spans, micro_batch_size):
    banned = torch.zeros(70, dtype=torch.bool)
    banned[:35] = True
    scores = score(model, spans, ranks=Ranks(), micro_batch_size=micro_batch_size, banned_V=banned)
    assert len(scores) == len(spans)
    hits = [0, 0]
    for span, found in zip(spans, scores, strict=True):
        rows = log_probabilities(model, span.tokens[:-1])[-span.num_scored :]
        targets = torch.from_numpy(span.tokens[-span.num_scored :])
        expected = -rows.gather(1, targets[:, None])[:, 0].numpy()
        assert found.nats == pytest.approx(expected, rel=1e-6, abs=1e-6)
        assert found.likeliest.tolist() == (rows.argmax(-1) == targets).tolist()
        allowed = rows.masked_fill(banned, -torch.inf).argmax(-1)
        assert found.likeliest_allowed.tolist() == (allowed == targets).tolist()
        hits = [hits[0] + found.likeliest.sum(), hits[1] + found.likeliest_allowed.sum()]
    assert hits[0] != hits[1], "the ban changes something"


def test_without_a_ban_both_are_the_same(model, spans):
    for found in score(model, spans, ranks=Ranks(), micro_batch_size=4):
        assert found.likeliest.tolist() == found.likeliest_allowed.tolist()


class Share(Ranks):
    """One of several ranks that keeps its own sums."""

    def sum_floats(self, values):
        return list(values)


@pytest.mark.parametrize("size", [2, 3, 7])
def test_ranks_share_the_spans_and_compute_in_step(model, spans, size):
    whole = score(model, spans, ranks=Ranks(), micro_batch_size=2)
    parts = [score(model, spans, ranks=Share(rank, size), micro_batch_size=2) for rank in range(size)]
    for index, expected in enumerate(whole):
        assert sum(part[index].nats for part in parts) == pytest.approx(expected.nats, rel=1e-6)
        assert sum(part[index].likeliest.astype(int) for part in parts).tolist() == expected.likeliest.tolist()
    own = [list(batches(spans, micro_batch_size=2, rank=rank, world_size=size)) for rank in range(size)]
    assert len({len(share) for share in own}) == 1
    assert sorted(number for share in own for numbers, _ in share for number in numbers) == list(range(len(spans)))


def test_batches_are_sorted_and_padded_on_the_right(spans):
    found = list(batches(spans, micro_batch_size=4))
    shapes = [tuple(batch["tokens"].shape) for _, batch in found]
    assert shapes == [(4, 24), (4, 8), (2, 1)]
    numbers, batch = found[0]
    for row, number in enumerate(numbers):
        span = spans[number]
        assert batch["tokens"][row, : span.num_inputs].tolist() == span.tokens[:-1].tolist()
        targets = batch["targets"][row]
        assert targets[targets != NOT_SCORED].tolist() == span.tokens[-span.num_scored :].tolist()
        assert targets[span.num_inputs - 1] != NOT_SCORED


def test_a_cut_keeps_the_end():
    span = Span(tokens=np.arange(10), num_scored=3)
    assert span.cut(4).tokens.tolist() == [5, 6, 7, 8, 9]
    assert span.cut(9).tokens.tolist() == span.cut(99).tokens.tolist() == list(range(10))
    assert span.cut(4).num_scored == 3
