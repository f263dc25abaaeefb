"""Sequences in rows: nothing lost, nothing mixed, whatever the layout."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hornbook.samples.layout import choose_layout, lay_out, place_sequences
from hornbook.samples.sequences import TokenSequence

LAYOUTS = ("padded", "packed", "unpadded")
WIDTH = 12


@st.composite
def masked_sequences(draw):
    sequences = []
    for length in draw(st.lists(st.integers(2, WIDTH), min_size=1, max_size=12)):
        tokens = np.array(draw(st.lists(st.integers(5, 99), min_size=length, max_size=length)), dtype=np.int64)
        positions = np.array(sorted(draw(st.sets(st.integers(0, length - 1), max_size=3))), dtype=np.int64)
        segments = (np.arange(length) >= length // 2).astype(np.int64)
        sequences.append(
            TokenSequence(tokens, segments, draw(st.sampled_from((0, 1, -100))), positions, positions + 100)
        )
    return sequences


@settings(max_examples=80, deadline=None)
@given(sequences=masked_sequences(), layout=st.sampled_from(LAYOUTS))
def test_every_sequence_can_be_read_back(sequences, layout):
    keys = np.arange(len(sequences))[:, None] * 1000 + np.arange(WIDTH)
    batch = lay_out(sequences, width=WIDTH, layout=layout, pad_id=3, keys=keys, has_pairs=True)
    flat = {name: batch[name].flatten().numpy() for name in ("tokens", "positions", "segments", "keys")}
    taken = np.zeros(len(flat["tokens"]), dtype=bool)
    predicted = {int(place): int(target) for place, target in zip(batch["predictions"], batch["targets"], strict=True)}
    for number, (sequence, first, length) in enumerate(
        zip(sequences, batch["firsts"].tolist(), batch["lengths"].tolist(), strict=True)
    ):
        own = slice(first, first + length)
        assert not taken[own].any()
        taken[own] = True
        assert flat["tokens"][own].tolist() == sequence.tokens.tolist()
        assert flat["segments"][own].tolist() == sequence.segments.tolist()
        assert flat["positions"][own].tolist() == list(range(length))
        assert flat["keys"][own].tolist() == keys[number, :length].tolist()
        assert [predicted.pop(first + place) for place in sequence.positions.tolist()] == sequence.labels.tolist()
    assert not predicted
    assert batch["pair_labels"].tolist() == [sequence.pair_label for sequence in sequences]
    assert set(flat["tokens"][~taken]) <= {3}


@settings(max_examples=80, deadline=None)
@given(lengths=st.lists(st.integers(1, WIDTH), min_size=1, max_size=30))
def test_rows_hold_what_fits(lengths):
    sizes = np.array(lengths, dtype=np.int64)
    padded, packed, unpadded = (place_sequences(sizes, WIDTH, layout) for layout in LAYOUTS)
    assert padded.num_rows == len(lengths)
    assert unpadded[1:] == (1, sum(lengths))
    assert -(-sum(lengths) // WIDTH) <= packed.num_rows <= len(lengths)
    ends = packed.firsts % WIDTH + sizes
    assert ends.max() <= WIDTH
    halves = sum(1 for row in range(packed.num_rows) if sizes[packed.firsts // WIDTH == row].sum() * 2 <= WIDTH)
    assert halves <= 1  # else two such rows would be one


def test_the_drawn_example():
    sequences = [
        TokenSequence(np.full(n, n), np.zeros(n, dtype=np.int64), -100, *[np.zeros(0, dtype=int)] * 2)
        for n in (5, 2, 4)
    ]
    shown = {
        layout: [
            "".join(map(str, row)) for row in lay_out(sequences, width=8, layout=layout, pad_id=0)["tokens"].tolist()
        ]
        for layout in LAYOUTS
    }
    assert shown == {
        "padded": ["55555000", "22000000", "44440000"],
        "packed": ["55555220", "44440000"],
        "unpadded": ["55555224444"],
    }


def test_predictions_are_filled_up_to_a_fixed_number():
    sequence = TokenSequence(np.arange(6), np.zeros(6, dtype=np.int64), -100, np.array([1, 4]), np.array([11, 14]))
    batch = lay_out([sequence, sequence], width=8, layout="packed", pad_id=0, num_predictions=6)
    assert batch["targets"].tolist() == [11, 14, 11, 14, -100, -100]
    assert batch["predictions"].tolist() == [1, 4, 9, 12, 0, 0]
    assert "pair_labels" not in batch


@pytest.mark.parametrize(
    ("mean", "on_cpu", "expected"),
    [(127.0, True, "padded"), (127.0, False, "padded"), (80.0, True, "unpadded"), (80.0, False, "packed")],
)
def test_the_lengths_decide(mean, on_cpu, expected):
    assert choose_layout(mean, 128, on_cpu=on_cpu) == expected
