"""A copy of a text for each of its tokens."""

import numpy as np
import pytest
from tiny_encoder_runs import LAYOUTS

from hornbook.samples.given import MaskedCopies
from hornbook.samples.sequences import framed
from hornbook.samples.windows import NOT_SCORED
from hornbook.text.special_tokens import MaskingTokens

PAD, UNKNOWN, CLS, SEP, MASK = range(5)
SPECIAL = MaskingTokens(cls=CLS, sep=SEP, mask=MASK, pad=PAD, vocab_size=50, special_ids=frozenset(range(5)))
TEXTS = [[10, 11, 12], [], [13], [14, UNKNOWN, 14, 15]]


def copies(layout="unpadded"):
    return MaskedCopies([framed(text, SPECIAL) for text in TEXTS], SPECIAL, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [1, 3, 8])
def test_each_token_is_hidden_once(layout, size):
    found, made = [], copies(layout)
    assert made.num_items == 8
    for first in range(0, made.num_items, size):
        batch = made.batch(np.arange(first, min(first + size, made.num_items)))
        flat = batch["tokens"].flatten().tolist()
        for start, length, place, target in zip(
            *(batch[name].tolist() for name in ("firsts", "lengths", "predictions", "targets")), strict=True
        ):
            tokens = flat[start : start + length]
            assert tokens.count(MASK) == 1 and tokens[place - start] == MASK
            found.append((tokens[1:-1], place - start - 1, target))
    expected = [
        ([*text[:place], MASK, *text[place + 1 :]], place, text[place]) for text in TEXTS for place in range(len(text))
    ]
    assert found == expected


def test_past_the_end_nothing_is_scored():
    batch = copies("padded").batch(np.array([7, 8, 99]))
    assert batch["targets"].tolist() == [15]
    assert len(batch["lengths"]) == 3
    assert NOT_SCORED not in batch["targets"].tolist()
