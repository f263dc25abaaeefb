import numpy as np
import pytest
from in_memory import InMemoryTokens

from hornbook.errors import UserError
from hornbook.samples.batches import HeldOutWindows, WindowBatches
from hornbook.samples.mixture import Mixture
from hornbook.samples.windows import NOT_SCORED, DocumentWindows, EvaluationDocumentWindows, Piece

DOCUMENTS = [[5, 6, 7, 8, 9], [3, 4], [1, 2, 7, 7], [], [11, 12, 13, 14, 15, 16]]
BEGINNINGS = {(5, 6, 7, 8), (1, 2, 7, 7), (11, 12, 13, 14)}


def test_an_epoch_has_the_beginning_of_each_long_document_once():
    windows = DocumentWindows(InMemoryTokens(DOCUMENTS), 3, seed=5)
    assert windows.num_items == 3
    tokens = windows.batch(np.arange(9)).tokens
    epochs = [[tuple(row) for row in tokens[first : first + 3].tolist()] for first in (0, 3, 6)]
    assert all(set(epoch) == BEGINNINGS for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1, "each epoch has an order of its own"


def test_a_stored_end_of_text_belongs_to_no_window():
    stored = InMemoryTokens([[1, 2, 3, 0], [4, 5, 6, 7, 0]], "stored")
    assert DocumentWindows(stored, 3, seed=0).batch(np.array([0])).tokens.tolist() == [[4, 5, 6, 7]]


def test_a_sample_knows_where_it_is_from():
    source = InMemoryTokens(DOCUMENTS)
    windows = DocumentWindows(source, 3, seed=5)
    for sample in range(4):
        (piece,) = windows.provenance(sample)
        assert windows.batch(np.array([sample])).tokens[0].tolist() == source.read(*piece).tolist()
        assert windows.provenance(sample, with_target=False) == [Piece(piece.document, 0, 3)]


def test_evaluation_takes_them_in_order_and_pads_with_nothing_to_score():
    held_out = HeldOutWindows(EvaluationDocumentWindows(InMemoryTokens(DOCUMENTS), 3), num_unscored=1)
    batch = held_out.batch(np.arange(4))
    assert held_out.num_items == 3
    assert batch["tokens"][:3].tolist() == [[5, 6, 7], [1, 2, 7], [11, 12, 13]]
    assert batch["targets"][:3].tolist() == [[NOT_SCORED, 7, 8], [NOT_SCORED, 7, 7], [NOT_SCORED, 13, 14]]
    assert bool((batch["targets"][3] == NOT_SCORED).all())


def test_no_long_document_is_refused():
    with pytest.raises(UserError, match=r"needs 8 tokens per document, but the longest has 6"):
        DocumentWindows(InMemoryTokens(DOCUMENTS), 7, seed=0)


def test_stores_are_blended():
    others = InMemoryTokens([[21, 22, 23, 24, 25]])
    mixture = Mixture([InMemoryTokens(DOCUMENTS), others], 3, 5, kind=DocumentWindows)
    assert {tuple(row) for row in mixture.batch(np.arange(4)).tokens.tolist()} == BEGINNINGS | {(21, 22, 23, 24)}


def test_the_first_targets_of_training_windows_may_go_unscored():
    windows = DocumentWindows(InMemoryTokens(DOCUMENTS), 3, seed=5)
    for batch in WindowBatches(windows, seed=5, document_mask=False, num_unscored=2).batches(
        np.arange(4).reshape(2, 2)
    ):
        assert bool((batch["targets"][:, :2] == NOT_SCORED).all()) and bool((batch["targets"][:, 2] > 0).all())
