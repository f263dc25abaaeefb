"""Bits per byte against the plainest computation of them, and what they say of themselves."""

import math
from dataclasses import replace

import pytest
from tiny_tasks import log_probabilities, tiny_input, values
from tiny_text import build_tiny

from hornbook.evaluate import bits_per_byte
from hornbook.evaluate.bits_per_byte import read
from hornbook.evaluate.tasks import run_task


def test_every_token_of_text_is_scored_and_no_end_of_text(tmp_path):
    """One window holds the whole stream, so one look of the model at it is enough."""
    build_tiny(tmp_path / "corpus")
    given = tiny_input(data=str(tmp_path / "corpus"), sequence_length=4096)
    store = read(given)
    end, documents = store.end_of_text_id, [store.document(number).tolist() for number in range(store.num_documents)]
    stream = [end, *(token for document in documents for token in document)]
    assert stream.count(end) == store.num_documents + 1
    assert len(stream) <= 4096
    rows = log_probabilities(given.loaded.model, stream[:-1])
    targets = [(place, token) for place, token in enumerate(stream[1:]) if token != end]
    nats = -sum(float(rows[place, token]) for place, token in targets)
    found = run_task("bits_per_byte", given)
    assert values(found)["bits_per_byte"] == pytest.approx(nats / math.log(2) / store.num_bytes, rel=1e-6)
    assert values(found)["nats_per_token"] == pytest.approx(nats / len(targets), rel=1e-6)
    assert f"mean over {len(targets):,} tokens" in found[1].convention


@pytest.mark.parametrize(
    ("document_mask", "reach"),
    [(False, "the context runs across documents"), (True, "no context from other documents")],
)
def test_the_convention_says_whether_context_crosses_documents(tmp_path, document_mask, reach):
    build_tiny(tmp_path / "corpus")
    given = tiny_input(data=str(tmp_path / "corpus"))
    recipe = given.loaded.recipe
    masked = replace(recipe, data=replace(recipe.data, document_mask=document_mask))
    given = replace(given, loaded=replace(given.loaded, recipe=masked))
    bits, nats, *_ = run_task("bits_per_byte", given)
    assert bits.convention.endswith(f"windows of 24 tokens that overlap by 12; {reach}")
    assert reach in nats.convention


@pytest.mark.parametrize("end_of_text", ["stored", "absent"])
def test_the_convention_is_that_of_the_store(tmp_path, monkeypatch, end_of_text):
    build_tiny(tmp_path / "corpus")
    given = tiny_input(data=str(tmp_path / "corpus"))
    store = replace(read(given), end_of_text=end_of_text)
    monkeypatch.setattr(bits_per_byte, "read", lambda given: store)
    first, *_ = bits_per_byte.bits_per_byte(given)
    whole = f"{store.num_bytes:,} bytes of {store.num_documents} documents"
    expected = {
        "stored": f"every byte scored: {whole}, each after an end-of-text token; ",
        "absent": f"every byte scored but those of the first token: {whole}, with no end-of-text token between them; ",
    }
    assert first.convention.startswith(expected[end_of_text])
