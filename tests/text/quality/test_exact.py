import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hornbook.text.quality import words
from hornbook.text.quality.duplicates import text_hash


def test_white_space_alone_makes_no_difference():
    texts = ["Call me\nIshmael.", " Call  me Ishmael.\r\n", "call me Ishmael.", "Call me Ishmael", "Callme Ishmael."]
    hashes = [text_hash(text) for text in texts]
    assert hashes[0] == hashes[1] and len(set(hashes)) == 4


@given(st.text("ab \n", max_size=60), st.integers(0, 8))
@settings(deadline=None)
def test_blocks_do_not_change_the_hash(text, size):
    whole = text_hash(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "BLOCK_CHARACTERS", size)
        assert text_hash(text) == whole == text_hash(" ".join(text.split()))
