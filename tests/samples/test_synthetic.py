import numpy as np
import pytest
from in_memory import window_of

from hornbook.errors import UserError
from hornbook.samples.synthetic import SyntheticTokens
from hornbook.samples.windows import EvaluationWindows, Windows


def test_any_part_of_a_document_is_the_same_each_time():
    source = SyntheticTokens(vocab_size=1000, seed=3, num_documents=20, document_length=50)
    for document, length in enumerate(source.document_lengths.tolist()):
        whole = source.read(document, 0, length)
        assert whole.dtype == np.int64 and whole.shape == (length,)
        middle = length // 2
        assert np.array_equal(source.read(document, middle, length - middle), whole[middle:])


def test_ids_are_uniform_from_one_up():
    source = SyntheticTokens(vocab_size=11, seed=3, num_documents=10, document_length=10_000)
    tokens = np.concatenate([source.read(index, 0, length) for index, length in enumerate(source.document_lengths)])
    counts = np.bincount(tokens, minlength=11)
    expected = source.num_tokens / 10
    assert counts[0] == 0 and len(counts) == 11
    assert ((counts[1:] - expected) ** 2 / expected).sum() < 9 + 5 * np.sqrt(18)


def test_lengths_are_spread_about_their_mean():
    source = SyntheticTokens(vocab_size=11, seed=3, num_documents=4000, document_length=100)
    assert len(source.document_lengths) == source.num_documents == 4000
    assert source.document_lengths.min() >= 1 and source.document_lengths.max() <= 199
    assert abs(source.document_lengths.mean() - 100) < 5
    assert source.num_tokens == source.document_lengths.sum()


def test_documents_of_one_token():
    source = SyntheticTokens(vocab_size=2, seed=0, num_documents=3, document_length=1)
    assert source.document_lengths.tolist() == [1, 1, 1]
    assert source.read(2, 0, 1).tolist() == [1]


def test_seeds_and_arguments_make_other_tokens_and_fingerprints():
    variants = [
        SyntheticTokens(vocab_size=vocab_size, seed=seed, num_documents=8, document_length=length)
        for vocab_size in (100, 101)
        for seed in (0, 1)
        for length in (10, 11)
    ]
    assert len({source.fingerprint for source in variants}) == 8
    again = SyntheticTokens(vocab_size=100, seed=0, num_documents=8, document_length=10)
    assert again.fingerprint == variants[0].fingerprint
    long = [SyntheticTokens(vocab_size=100, seed=seed, document_length=500) for seed in (0, 1)]
    assert not np.array_equal(long[0].document_lengths, long[1].document_lengths)
    assert not np.array_equal(long[0].read(0, 0, 1), long[1].read(0, 0, 1)) or not np.array_equal(
        long[0].read(1, 0, 1), long[1].read(1, 0, 1)
    )


def test_it_serves_windows_with_id_zero_between_documents():
    source = SyntheticTokens(vocab_size=50, seed=1, num_documents=30, document_length=20)
    window = window_of(Windows(source, 200, seed=1), 0)
    ends = np.flatnonzero(window.tokens == 0)
    assert len(ends) > 3
    assert np.array_equal(np.diff(window.documents), (window.tokens[1:] == 0).astype(np.int64))
    evaluation = EvaluationWindows(source, 64, score_end_of_text=False)
    counts = [(evaluation.window(index).targets > 0).sum() for index in range(evaluation.num_items)]
    assert sum(counts) == source.num_tokens


def test_a_vocabulary_that_is_too_small_is_an_error():
    with pytest.raises(UserError, match=r"^synthetic data needs a vocabulary of at least 2 tokens, not 1: [^\n]+$"):
        SyntheticTokens(vocab_size=1, seed=0)


def test_a_read_past_the_end_is_a_programming_error():
    source = SyntheticTokens(vocab_size=50, seed=1, num_documents=3, document_length=20)
    with pytest.raises(AssertionError):
        source.read(1, 0, int(source.document_lengths[1]) + 1)
