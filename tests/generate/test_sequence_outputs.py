"""Sequences of any length through a model: each gets its own output, in its place, whatever the batch."""

import numpy as np
import pytest
import torch
from tiny import tiny_model
from tiny_encoders import FAMILIES, tiny_encoder

from hornbook.generate.sequence_outputs import outputs_of
from hornbook.samples.sequences import TokenSequence

LENGTHS = (3, 20, 1, 7, 20, 5)


def sequences_of(lengths=LENGTHS):
    draws = np.random.default_rng(0)
    tokens = [draws.integers(70, size=length) for length in lengths]
    return [TokenSequence(ids, np.zeros_like(ids)).unscored() for ids in tokens]


def last_states(head, x_BTD, batch):
    return x_BTD.flatten(0, 1)[batch["firsts"] + batch["lengths"] - 1]


@pytest.mark.parametrize("make", [*(lambda family=family: tiny_encoder(family) for family in FAMILIES), tiny_model])
def test_the_batch_changes_nothing(make):
    model, sequences = make(), sequences_of()
    alone = [outputs_of(model, [sequence], last_states, batch_size=1)[0] for sequence in sequences]
    for batch_size in (2, 4, 100):
        together = outputs_of(model, sequences, last_states, batch_size=batch_size)
        torch.testing.assert_close(together, alone, atol=2e-6, rtol=1e-5)


def test_a_batch_holds_like_lengths_the_longest_first():
    widths = []

    def note(head, x_BTD, batch):
        widths.append(batch["lengths"].tolist())
        return batch["lengths"].float()

    rows = outputs_of(tiny_encoder(), sequences_of(), note, batch_size=2)
    assert [int(row) for row in rows] == list(LENGTHS)
    assert widths == [[20, 20], [7, 5], [3, 1]]


def test_dropout_is_off_and_the_mode_comes_back():
    model = tiny_encoder(residual_dropout=0.5).train()
    first, second = (torch.stack(outputs_of(model, sequences_of(), last_states, batch_size=3)) for _ in range(2))
    assert torch.equal(first, second) and model.training and not first.requires_grad
