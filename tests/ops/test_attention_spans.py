"""The sequence of each token, against the definition."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from hornbook.ops.spans import spans_of_sequences, spans_of_windows

CPU = torch.device("cpu")


def test_padding_is_in_no_sequence():
    spans, longest = spans_of_sequences(torch.tensor([5, 1]), torch.tensor([2, 3]), 8, CPU)
    assert longest == 3
    assert spans.dtype == torch.int32
    bounds, columns = [[0, 1, 1, 1, 4, 5, 5, 7], [0, 4, 4, 4, 4, 7, 7, 7]], [0, 0, 1, 2, 0, 0, 1, 0]
    assert spans.tolist() == [*bounds, columns, [0, 1, 1, 1, 0, 1, 1, 0]]


def test_empty_sequences_and_batches():
    none = torch.empty(0, dtype=torch.int64)
    assert spans_of_sequences(none, none, 2, CPU).tokens.tolist() == [[0, 1], [0, 1], [0, 0], [0, 0]]
    assert spans_of_sequences(torch.tensor([0]), torch.tensor([0]), 1, CPU).tokens.tolist() == [[0], [0], [0], [0]]


@given(st.integers(1, 3), st.integers(1, 9), st.data())
def test_documents_begin_and_end_where_they_occur_first_and_last(batch, length, data):
    number = st.integers(0, 3)
    rows = data.draw(st.lists(st.lists(number, min_size=length, max_size=length), min_size=batch, max_size=batch))
    positions = torch.arange(length).expand(batch, length)
    spans, longest = spans_of_windows(positions, torch.tensor(rows))
    whole, _ = spans_of_windows(positions, None)
    assert longest == length
    for token in range(batch * length):
        row, position = divmod(token, length)
        found = [place for place, document in enumerate(rows[row]) if document == rows[row][position]]
        is_whole = len(found) == found[-1] + 1 - found[0]
        assert spans[:, token].tolist() == [row * length + found[0], row * length + found[-1] + 1, position, is_whole]
        assert whole[:, token].tolist() == [row * length, (row + 1) * length, position, 1]
