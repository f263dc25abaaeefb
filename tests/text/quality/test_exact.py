import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_documents import decisions_in_parts, document, kept

from hornbook.text.quality import words
from hornbook.text.quality.duplicates import ExactDuplicates, SeenPairs, text_hash

TEXTS = st.lists(st.text("aB \n\u3000é", max_size=4), max_size=30)
PAIRS = st.tuples(st.integers(0, 2**64 - 1), st.integers(1, 2**64 - 1))


def reference(texts):
    """What is to stay: the first of the texts that are one when split at white space."""
    seen, decisions = set(), []
    for text in texts:
        decisions.append(tuple(text.split()) not in seen)
        seen.add(tuple(text.split()))
    return decisions


def test_white_space_alone_makes_no_difference():
    texts = ["Call me\nIshmael.", " Call  me Ishmael.\r\n", "call me Ishmael.", "Call me Ishmael", "Callme Ishmael."]
    assert kept(ExactDuplicates(), texts) == [texts[0], *texts[2:]]


@given(TEXTS, st.sets(st.integers(0, 30), max_size=4))
@settings(deadline=None)
def test_the_first_stays_however_often_the_build_was_stopped(texts, cuts):
    cuts = [cut for cut in cuts if cut <= len(texts)]
    assert decisions_in_parts(ExactDuplicates, texts, cuts) == reference(texts)


@given(st.text("ab \n", max_size=60), st.integers(0, 8))
@settings(deadline=None)
def test_blocks_do_not_change_the_hash(text, size):
    whole = text_hash(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "BLOCK_CHARACTERS", size)
        assert text_hash(text) == whole == text_hash(" ".join(text.split()))


def test_memory_is_what_is_new():
    given_filter = ExactDuplicates()
    for text in ("a", "b", "a"):
        given_filter.keeps(document(text))
    assert given_filter.new_memory().tolist() == [list(text_hash("a")), list(text_hash("b"))]
    assert given_filter.new_memory().shape == (0, 2)
    given_filter.keeps(document("c"))
    assert given_filter.new_memory().tolist() == [list(text_hash("c"))]


@given(st.lists(PAIRS))
def test_the_set_is_a_set(pairs):
    found, expected = SeenPairs(), set()
    for low, high in pairs * 2:
        assert found.add(low, high) == ((low, high) not in expected)
        expected.add((low, high))
    assert len(found) == len(expected)


def test_the_set_grows_and_takes_what_collides():
    found = SeenPairs()
    pairs = [(number << 40, number) for number in range(1, 400)] + [(number, 1) for number in range(3000)]
    assert all(found.add(*pair) for pair in pairs)
    assert not any(found.add(*pair) for pair in pairs)
    assert len(found) == len(pairs)
