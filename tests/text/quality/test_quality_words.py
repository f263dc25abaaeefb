import re
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hornbook.text.quality import words as module
from hornbook.text.quality.words import ngrams, scramble, text_blocks, word_blocks

TEXTS = st.text(st.sampled_from("aBßéΣ_ \n.-'漢かก7"), max_size=80)


def numbers(*words):
    return [crc32(word.encode()) for word in words]


def all_words(text):
    (block,) = word_blocks(text, 0)
    return block.tolist()


def test_case_punctuation_and_line_ends_do_not_count():
    expected = numbers("don", "t", "stop", "well", "known", "straße".casefold())
    assert all_words("Don't STOP -- well-known Straße") == expected
    assert all_words("_don 't_\r\nstop well @-@ known\tSTRASSE!") == expected
    assert all_words(" ... _ -- \n") == []


def test_without_blanks_each_character_is_a_word():
    assert all_words("漢字とABC") == numbers("漢", "字", "と", "abc")


def test_sequences_have_their_own_hashes():
    words = np.array(numbers(*["a", "b", "c", "a", "b", "b", "a"]), dtype=np.uint64)
    pairs = ngrams(words, 2).tolist()
    assert len(pairs) == 6 and pairs[0] == pairs[3] and len(set(pairs)) == 5  # ab twice; ba is another
    assert len(ngrams(words, 7)) == 1 and len(ngrams(words, 8)) == 0


def test_scrambled_values_differ_in_half_of_their_bits():
    values = np.arange(4096, dtype=np.uint64)
    flipped = scramble(values) ^ scramble(values ^ np.uint64(1))
    shares = [np.mean(flipped >> np.uint64(bit) & np.uint64(1)) for bit in range(64)]
    assert min(shares) > 0.45 and max(shares) < 0.55
    assert len(np.unique(scramble(values))) == len(values)


@given(TEXTS, st.integers(1, 6), st.integers(0, 10))
@settings(deadline=None)
def test_blocks_do_not_change_the_sequences(text, length, size):
    whole = ngrams(np.array(all_words(text), dtype=np.uint64), length)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_CHARACTERS", size)
        blocks = list(word_blocks(text, length - 1))
    assert np.concatenate([ngrams(block, length) for block in blocks]).tolist() == whole.tolist()
    if len(all_words(text)) < length:
        assert blocks[-1].tolist() == all_words(text)


@given(TEXTS, st.integers(0, 10))
@settings(deadline=None)
def test_blocks_are_the_text(text, size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_CHARACTERS", size)
        blocks = list(text_blocks(text, re.compile(r"\s")))
    assert "".join(blocks) == text
    assert all(block[-1].isspace() and len(block) > size for block in blocks[:-1])
