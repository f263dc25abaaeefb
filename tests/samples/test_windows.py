from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory import InMemoryTokens, numbered, window_of

from hornbook.corpora.store import open_store
from hornbook.errors import DataError, UserError
from hornbook.samples.windows import NOT_SCORED, EvaluationWindows, Piece, Stream, Windows

MEGATRON = Path(__file__).parents[3] / "shared/data/megatron/meg-gpt2-openwebtext_text_document"
SOURCES = [
    pytest.param(numbered(end_of_text="inserted"), id="inserted"),
    pytest.param(InMemoryTokens([[5, 6, 0], [7, 0], [], [8, 9, 10, 11, 0], [0]], "stored"), id="stored"),
    pytest.param(numbered(end_of_text="absent", end_of_text_id=None), id="absent"),
    pytest.param(InMemoryTokens([[], [5], [], [6, 7, 8], []], "inserted"), id="empty documents"),
]


def expected_window(source, start, count):
    """Place by place: an end-of-text token counts to the document that follows it, round the corner too."""
    stream = source.stream()
    present = sorted({document for _, document, _ in stream})
    tokens, numbers = [], []
    for place in range(start, start + count):
        turn, at = divmod(place, len(stream))
        token, document, _ = stream[at]
        is_last = at + 1 == len(stream) or stream[at + 1][1] != document
        tokens.append(token)
        numbers.append(turn * len(present) + present.index(document) + (is_last and source.end_of_text != "absent"))
    return tokens, [number - numbers[0] for number in numbers]


def test_the_example_of_the_module():
    source = InMemoryTokens([[5, 6, 7], [8, 9]])
    assert Windows(source, 3, seed=0).num_items == 2
    found = Stream(source).read(np.array([0, 3, 6]), 4)
    assert found.tokens.tolist() == [[5, 6, 7, 0], [0, 8, 9, 0], [0, 5, 6, 7]]
    assert found.documents.tolist() == [[0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 0]]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_a_stream_goes_round_and_round(source, count):
    length = len(source.stream())
    window = Stream(source).read(np.arange(length), count)
    assert window.tokens.dtype == window.documents.dtype == np.int64
    for start in range(length):
        tokens, documents = expected_window(source, start, count)
        assert window.tokens[start].tolist() == tokens
        assert window.documents[start].tolist() == documents


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(lambda lengths: sum(lengths) > 3),
    kind=st.sampled_from(["inserted", "absent"]),
    seed=st.integers(0, 2**64),
    data=st.data(),
)
def test_shuffled_windows_are_slices_of_the_circle(lengths, kind, seed, data):
    starts = np.cumsum([1, *lengths])
    source = InMemoryTokens([range(a, a + n) for a, n in zip(starts, lengths, strict=False)], kind)
    stream = [token for token, _, _ in source.stream()]
    sequence_length = data.draw(st.integers(1, len(stream) - 1))
    windows = Windows(source, sequence_length, seed=seed)
    slices = {tuple((stream + stream)[start : start + sequence_length + 1]) for start in range(len(stream))}
    for sample in range(2 * windows.num_items):
        assert tuple(window_of(windows, sample).tokens.tolist()) in slices


@pytest.mark.parametrize("sequence_length", [1, 4, 16, 50, 213, 214])
def test_the_targets_of_an_epoch_are_distinct_and_nearly_all(sequence_length):
    source = numbered(end_of_text="absent")
    windows = Windows(source, sequence_length, seed=5)
    length = int(source.document_lengths.sum())
    assert length - sequence_length < windows.num_items * sequence_length <= length
    for epoch in range(3):
        samples = range(epoch * windows.num_items, (epoch + 1) * windows.num_items)
        targets = [token for sample in samples for token in window_of(windows, sample).tokens[1:].tolist()]
        assert len(targets) == len(set(targets)) == windows.num_items * sequence_length


def test_starts_shift_and_order_changes_from_epoch_to_epoch():
    windows = Windows(numbered(end_of_text="absent"), 16, seed=5)
    per_epoch = [
        [int(window_of(windows, epoch * windows.num_items + place).tokens[0]) for place in range(windows.num_items)]
        for epoch in range(20)
    ]
    assert len({min(start % 16 for start in starts) for starts in per_epoch}) > 5
    assert len({tuple(starts) for starts in per_epoch}) == 20
    assert per_epoch[0] != sorted(per_epoch[0])


def test_samples_depend_on_the_seed_alone():
    source = numbered()
    samples = np.arange(40)
    first = Windows(source, 16, seed=5).batch(samples)
    assert np.array_equal(Windows(source, 16, seed=5).batch(samples).tokens, first.tokens)
    assert not np.array_equal(Windows(source, 16, seed=6).batch(samples).tokens, first.tokens)


def test_a_batch_stacks_the_windows_across_epochs():
    windows = Windows(numbered(), 16, seed=5)
    samples = np.array([0, 3, windows.num_items, 7 * windows.num_items + 2])
    batch = windows.batch(samples)
    assert batch.tokens.shape == batch.documents.shape == (4, 17)
    for row, sample in enumerate(samples.tolist()):
        assert np.array_equal(batch.tokens[row], window_of(windows, sample).tokens)
        assert np.array_equal(batch.documents[row], window_of(windows, sample).documents)


@pytest.mark.parametrize("source", SOURCES)
def test_provenance_names_what_was_read(source):
    windows = Windows(source, 4, seed=9)
    for sample in range(30):
        pieces = windows.provenance(sample)
        read = [
            token for document, start, count in pieces for token in source.documents[document][start : start + count]
        ]
        tokens = window_of(windows, sample).tokens.tolist()
        inserted = source.end_of_text == "inserted"
        assert read == [token for token in tokens if not (inserted and token == source.end_of_text_id)]
        assert all(piece.num_tokens > 0 for piece in pieces)


def test_pieces_of_the_example():
    stream = Stream(InMemoryTokens([[5, 6, 7], [8, 9]]))
    assert stream.pieces(3, 4) == [Piece(1, 0, 2)]
    assert stream.pieces(6, 4) == [Piece(0, 0, 3)]


def test_places_beyond_four_billion_tokens():
    class Huge:
        num_documents, end_of_text, end_of_text_id, fingerprint = 3, "inserted", 0, "huge"
        document_lengths = np.full(3, 2**40, dtype=np.int64)

        def read(self, document, start, count):
            return document * 2**40 + np.arange(start, start + count)

    windows = Windows(Huge(), 1024, seed=1)
    assert windows.num_items == (3 * 2**40 + 3) // 1024
    for sample in [0, 1, 10**9, windows.num_items * 5 + 17]:
        ((document, start, count), *rest) = windows.provenance(sample)
        assert not rest and count == 1025
        assert window_of(windows, sample).tokens.tolist() == list(
            range(document * 2**40 + start, document * 2**40 + start + 1025)
        )


@pytest.mark.parametrize(("documents", "count"), [([[1, 2, 3]], 4), ([], 0), ([[], []], 2)])
def test_a_store_shorter_than_a_sample_is_refused(documents, count):
    with pytest.raises(UserError, match=rf"^the store has {count} tokens .* one sample needs 6: .*shorten [^\n]*$"):
        Windows(InMemoryTokens(documents), 5, seed=0)


def test_the_shortest_store_that_is_long_enough():
    windows = Windows(InMemoryTokens([[1, 2, 3, 4, 5]]), 5, seed=0)
    assert windows.num_items == 1
    assert sorted(window_of(windows, 0).tokens.tolist()) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", ["stored", "inserted"])
def test_an_unknown_end_of_text_id_is_refused(kind):
    with pytest.raises(DataError, match=f"end-of-text tokens are {kind}, but it does not state their id"):
        Windows(InMemoryTokens([[1, 2, 3]], kind, end_of_text_id=None), 2, seed=0)


def scored(windows):
    """(input, target) of every scored place, in order."""
    parts = [windows.window(index) for index in range(windows.num_items)]
    pairs = [pair for part in parts for pair in zip(part.tokens.tolist(), part.targets.tolist(), strict=True)]
    return [pair for pair in pairs if pair[1] != NOT_SCORED]


def test_evaluation_of_the_example():
    windows = EvaluationWindows(InMemoryTokens([[5, 6, 7], [8, 9]]), 3, score_end_of_text=True)
    parts = [windows.window(index) for index in range(4)]
    assert windows.num_items == 3
    assert [part.tokens.tolist() for part in parts] == [[0, 5, 6], [7, 0, 8], [9, 0, 0], [0, 0, 0]]
    assert [part.targets.tolist() for part in parts] == [[5, 6, 7], [0, 8, 9], [0, -100, -100], [-100, -100, -100]]
    assert [part.documents.tolist() for part in parts[:3]] == [[0, 0, 0], [0, 1, 1], [0, 2, 2]]


@pytest.mark.parametrize("kind", ["stored", "inserted"])
@pytest.mark.parametrize("sequence_length", [1, 2, 3, 5, 8, 100])
@settings(max_examples=25)
@given(lengths=st.lists(st.integers(0, 7), min_size=1, max_size=8))
def test_every_token_is_scored_once_after_its_predecessor(kind, sequence_length, lengths):
    starts = np.cumsum([1, *lengths])
    bodies = [list(range(a, a + n)) for a, n in zip(starts, lengths, strict=False)]
    source = InMemoryTokens([[*body, 0] if kind == "stored" else body for body in bodies], kind)
    stream = [0, *(token for body in bodies for token in [*body, 0])]
    both = list(pairwise(stream))
    assert scored(EvaluationWindows(source, sequence_length, score_end_of_text=True)) == both
    own = [(before, token) for before, token in both if token != 0]
    assert scored(EvaluationWindows(source, sequence_length, score_end_of_text=False)) == own


@pytest.mark.parametrize("score_end_of_text", [True, False])
def test_without_end_of_text_the_first_token_is_context_only(score_end_of_text):
    source = InMemoryTokens([[5, 6], [7], [8, 9]], "absent", end_of_text_id=None)
    windows = EvaluationWindows(source, 3, score_end_of_text=score_end_of_text)
    assert scored(windows) == [(5, 6), (6, 7), (7, 8), (8, 9)]
    assert windows.window(1).tokens.tolist() == [8, 0, 0]


@pytest.mark.parametrize(
    ("documents", "kind"), [([], "inserted"), ([[]], "stored"), ([[]], "absent"), ([[1]], "absent")]
)
def test_nothing_to_score_is_refused(documents, kind):
    with pytest.raises(UserError, match=r"^the store has no token to score: [^\n]+$"):
        EvaluationWindows(InMemoryTokens(documents, kind), 4, score_end_of_text=True)


@pytest.mark.skipif(not MEGATRON.with_suffix(".idx").exists(), reason="the shared data folder is not there")
def test_a_real_megatron_store():
    store = open_store(MEGATRON)
    length = store.num_tokens + (store.num_documents if store.end_of_text == "inserted" else 0)
    windows = Windows(store, 256, seed=1)
    assert windows.num_items == length // 256
    for sample in (0, 5_000, 12_345):
        pieces = windows.provenance(sample)
        read = np.concatenate([store.document(document)[start : start + count] for document, start, count in pieces])
        tokens = window_of(windows, sample).tokens
        end = store.end_of_text_id
        assert read[read != end].tolist() == tokens[tokens != end].tolist()
    evaluation = EvaluationWindows(store, 1024, score_end_of_text=True)
    targets = np.concatenate([evaluation.window(index).targets for index in range(evaluation.num_items)])
    assert (targets != NOT_SCORED).sum() == length - (store.end_of_text == "absent")


@pytest.mark.parametrize("end_of_text", ["stored", "inserted", "absent"])
@pytest.mark.parametrize(("length", "overlap"), [(4, 0), (4, 1), (4, 3), (7, 3), (100, 50)])
def test_overlapping_windows_score_every_token_once_with_its_own_context(
    end_of_text: str, length: int, overlap: int
) -> None:
    documents = [[5, 6, 7], [8, 9], [10], [11, 12, 13, 14]]
    closed = [[*document, 0] for document in documents] if end_of_text == "stored" else documents
    source = InMemoryTokens(closed, end_of_text=end_of_text)
    plain = EvaluationWindows(source, 1000, score_end_of_text=True).window(0)
    stream = [int(plain.tokens[0]), *plain.targets[plain.targets != NOT_SCORED].tolist()]
    windows = EvaluationWindows(source, length, score_end_of_text=True, overlap=overlap)
    scored: list[int] = []
    for index in range(windows.num_items):
        window = windows.window(index)
        places = np.flatnonzero(window.targets != NOT_SCORED)
        for place in places.tolist():
            scored.append(index * (length - overlap) + place + 1)
            context = window.tokens[: place + 1].tolist()
            assert stream[scored[-1] - len(context) : scored[-1]] == context
            assert window.targets[place] == stream[scored[-1]]
            assert len(context) > min(overlap, scored[-1] - 1)
    assert scored == list(range(1, len(stream)))
    assert (windows.window(windows.num_items).targets == NOT_SCORED).all()
