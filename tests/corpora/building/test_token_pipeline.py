import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_documents import comparing
from tiny_text import TEXTS, tiny_tokenizer

from hornbook.corpora.building.batches import read_batches
from hornbook.corpora.building.token_pipeline import (
    TokenPlan,
    ahead,
    divide_tail,
    falls_to_validation,
    hold_out,
    tokenize_batches,
)
from hornbook.text.documents import Document, Tally


def documents(texts=TEXTS):
    return [Document(text, "source", number, len(text.encode())) for number, text in enumerate(texts)]


def batches_of(some):
    return read_batches(some, Tally(), comparing(), {"source": 0})


def plan(**options):
    return TokenPlan(
        **{"encode": tiny_tokenizer().encode_batch, "source_numbers": {"source": 0}, "dtype": np.dtype("u2")} | options
    )


@pytest.mark.parametrize("end", [None, 299])
def test_tokens_of_documents(end):
    [batch] = tokenize_batches(batches_of(documents()), plan(validation=0.3, end_of_text_id=end))
    tail = [] if end is None else [end]
    for split, tokens in batch.splits.items():
        expected = [text for text in TEXTS if falls_to_validation(text, 0.3) == (split == "validation")]
        found = np.split(tokens.tokens, np.cumsum(tokens.sizes)[:-1])
        assert [ids.tolist() for ids in found] == [tiny_tokenizer().encode(text) + tail for text in expected]
        assert tokens.sequences.tolist() == [1] * len(expected)
        assert tokens.rows["offset"].tolist() == [TEXTS.index(text) for text in expected]


def test_tokens_of_sentences():
    texts = ["one|two|three", "", "four"]
    split = {"split_text": lambda text: text.split("|") if text else []}
    [batch] = tokenize_batches(batches_of(documents(texts)), plan(**split))
    tokens = batch.splits["train"]
    assert tokens.sequences.tolist() == [3, 0, 1]
    found = np.split(tokens.tokens, np.cumsum(tokens.sizes)[:-1])
    assert [tiny_tokenizer().decode(ids) for ids in found] == ["one", "two", "three", "four"]
    only = tokens.only(np.array([False, True, True]))
    assert (only.sequences.tolist(), only.sizes.tolist()) == ([0, 1], [len(found[3])])
    assert only.tokens.tolist() == found[3].tolist()


def test_the_split_is_a_function_of_the_text():
    texts = [f"text {number}" for number in range(20_000)]
    held_out = [text for text in texts if falls_to_validation(text, 0.02)]
    assert 300 < len(held_out) < 500
    assert set(held_out) < {text for text in texts if falls_to_validation(text, 0.03)}
    assert not any(falls_to_validation(text, 0.0) for text in texts)
    assert all(falls_to_validation(text, 1.0) for text in texts[:100])
    assert held_out[:3] == ["text 62", "text 102", "text 130"], "older corpora would have other splits"


def test_ahead_keeps_the_order_and_is_one_item_ahead():
    made = []

    def make():
        for number in range(1, 6):
            made.append((number, threading.current_thread().name))
            yield number

    seen = []
    for number in ahead(make()):
        time.sleep(0.01)
        seen.append(number)
        assert len(made) <= number + 1
    assert seen == [1, 2, 3, 4, 5] == [number for number, _ in made]
    assert all(name.startswith("hornbook-ahead") for _, name in made)


def test_ahead_raises_an_error_in_its_place():
    def make():
        yield 1
        raise ValueError("broken")

    items = ahead(make())
    assert next(items) == 1
    with pytest.raises(ValueError, match="broken"):
        next(items)


def test_ahead_stopped_half_way_closes_what_makes_the_items():
    closed = []

    def make():
        try:
            yield from range(1, 1000)
        finally:
            closed.append(True)

    before = threading.active_count()
    items = ahead(make())
    assert next(items) == 1
    items.close()
    assert closed == [True] and threading.active_count() == before


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from(["word ", "é", "\n", "\n\n", "\r\n", "\r\n \r\n", " \n"]), min_size=1, max_size=30),
    st.integers(1, 1500),
    st.floats(0.001, 0.25),
)
def test_head_and_tail_are_the_text(pieces, copies, share):
    text = "".join(pieces) * copies
    (document,) = documents([text])
    parts = divide_tail(document, share)
    assert "".join(part.text for part in parts) == text
    assert [part.num_bytes for part in parts] == [len(part.text.encode()) for part in parts]
    assert all((part.source, part.offset) == (document.source, document.offset) for part in parts)
    if len(parts) == 2:
        assert len(text) >= 10_000 and all(part.text.strip() for part in parts)
        assert int(share * len(text)) <= len(parts[1].text) <= int(2 * share * len(text))
        assert parts[0].text.endswith("\n")


def test_a_tail_begins_with_a_paragraph_or_else_with_a_line():
    lines = [f"line {number:06d}\n" for number in range(1000)]
    text = "".join(lines)
    (document,) = documents([text])
    assert divide_tail(document, 0.05)[1].text == "".join(lines[950:])
    lines[920] = "\n"
    (document,) = documents(["".join(lines)])
    assert divide_tail(document, 0.05)[1].text == "".join(lines[921:]), "at most twice the share"
    assert divide_tail(document, 0.02)[1].text == "".join(lines[980:]), "the paragraph ends too early"
    for whole in (text[:9_999], text.replace("\n", " "), "x" * 9_990 + "\n" * 500):
        (document,) = documents([whole])
        assert divide_tail(document, 0.05) == [document]


def test_tails_are_held_out_in_place_of_documents():
    long = "".join(f"line {number}\n" for number in range(2000))
    some = documents(["short", long, *TEXTS])
    parts, held_out, numbers = hold_out(some, validation_tail=0.1)
    assert held_out.tolist() == [False, False, True] + [False] * len(TEXTS)
    assert parts[1].text + parts[2].text == long
    assert numbers.tolist() == [0, 1, 1, *range(2, 2 + len(TEXTS))]
    (batch,) = tokenize_batches(batches_of(some), plan(validation_tail=0.1))
    sizes = {split: tokens.rows["num_bytes"].tolist() for split, tokens in batch.splits.items()}
    assert sizes["validation"] == [len(parts[2].text)]
    assert sum(sizes["train"]) + sum(sizes["validation"]) == sum(each.num_bytes for each in some)
    assert tiny_tokenizer().decode(batch.splits["validation"].tokens) == parts[2].text
    everything, held_out, numbers = hold_out(some)
    assert everything == some and not held_out.any() and numbers.tolist() == list(range(len(some)))
