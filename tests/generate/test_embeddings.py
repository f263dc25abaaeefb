"""Vectors of texts: pooled as said, of length 1 where asked for, and refused where a model has no such token."""

import numpy as np
import pytest
import torch
from tiny import hidden_states, randomize, tiny_model
from tiny_encoder_runs import encoder_tokenizer
from tiny_encoders import tiny_encoder
from tiny_text import tiny_tokenizer

from hornbook.errors import HornbookError, UserError
from hornbook.generate.embeddings import embed_ids, ids_of_texts

IDS = ([2, 9, 3], [2, 5, 6, 7, 8, 3], [4])


def decoder():
    model = tiny_model()
    randomize(model)
    return model.eval()


def states_of(model, ids):
    """The normed hidden states of one sequence, ``[T, D]``, with the model called by hand."""
    tokens = torch.tensor([ids])
    batch = {"tokens": tokens, "positions": torch.arange(len(ids))[None], "keys": torch.zeros_like(tokens)}
    batch |= {"firsts": torch.tensor([0]), "lengths": torch.tensor([len(ids)])}
    with torch.no_grad():
        return model.head.norm(hidden_states(model, batch))[0].numpy()


POOLED = {
    "mean": lambda states: states.mean(0),
    "max": lambda states: states.max(0),
    "cls": lambda states: states[0],
    "last": lambda states: states[-1],
}
KINDS = {"encoder": tiny_encoder, "groupbert": lambda: tiny_encoder("groupbert"), "decoder": decoder}


@pytest.mark.parametrize(
    ("kind", "pooling"),
    [(kind, pooling) for kind in KINDS for pooling in ("mean", "max", "last" if kind == "decoder" else "cls")],
)
def test_pooling(kind, pooling):
    model = KINDS[kind]()
    expected = np.stack([POOLED[pooling](states_of(model, ids)) for ids in IDS])
    for batch_size in (1, 3):
        found = embed_ids(model, IDS, pooling=pooling, batch_size=batch_size)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=2e-6)
    normalized = embed_ids(model, IDS, pooling=pooling, normalize=True)
    np.testing.assert_allclose(normalized, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-6)


def test_no_sequences_have_no_vectors():
    assert embed_ids(tiny_encoder(), []).shape == (0, 32)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (decoder, {"pooling": "cls"}, "`pooling='cls'` is not for a decoder; expected one of mean, max, last"),
        (tiny_encoder, {"pooling": "last"}, "`pooling='last'` is not for an encoder; expected one of mean, cls, max"),
        (tiny_encoder, {"sequences": [[4], []]}, "sequence 2 has 0 tokens; expected 1 to 24"),
        (tiny_encoder, {"sequences": [range(25)]}, "sequence 1 has 25 tokens"),
        (tiny_encoder, {"sequences": [[70]]}, "sequence 1 has id 70, but the model's vocabulary is 0 to 69"),
        (tiny_encoder, {"sequences": [[-1]]}, "sequence 1 has id -1"),
    ],
)
def test_what_a_model_cannot_read_is_refused(make, options, message):
    with pytest.raises(UserError, match=message):
        embed_ids(make(), **{"sequences": IDS, **options})


def test_hidden_states_that_are_not_finite_are_reported():
    model = tiny_encoder()
    with torch.no_grad():
        model.embedding.positions[0] = torch.nan
    with pytest.raises(HornbookError, match="not finite"):
        embed_ids(model, IDS)


def test_texts_are_framed_for_an_encoder_and_truncated_at_their_end():
    tokenizer = encoder_tokenizer()
    special, ids = tokenizer.require_masking(), tokenizer.encode("the cat sat on the mat")
    model = tiny_encoder(vocab_size=tokenizer.vocab_size)
    text = "the cat sat on the mat"
    whole, short, exact = (ids_of_texts(model, tokenizer, [text, "the"], n) for n in (24, 5, len(ids) + 2))
    assert whole.ids[0].tolist() == exact.ids[0].tolist() == [special.cls, *ids, special.sep]
    assert short.ids[0].tolist() == [special.cls, *ids[:3], special.sep]
    assert [each.num_truncated for each in (whole, short, exact)] == [0, 1, 0]
    with pytest.raises(UserError, match="2 tokens are too few"):
        ids_of_texts(model, tokenizer, ["the"], 2)
    plain = tiny_tokenizer()
    (found,), num_truncated = ids_of_texts(decoder(), plain, ["the cat sat"], 2)
    assert found.tolist() == plain.encode("the cat sat")[:2] and num_truncated == 1
