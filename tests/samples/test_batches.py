"""A token that a model does not have is refused before the model sees it."""

import pytest
import torch

from hornbook.errors import DataError
from hornbook.samples.batches import refuse_unknown_tokens
from hornbook.samples.windows import NOT_SCORED


def batch_of(tokens, targets):
    return {"tokens": torch.tensor(tokens, dtype=torch.int64), "targets": torch.tensor(targets, dtype=torch.int64)}


@pytest.mark.parametrize(
    ("tokens", "targets", "unknown"),
    [([3, 70], [4, 5], 70), ([3, -5], [4, 5], -5), ([3, 4], [4, 70], 70), ([3, 4], [4, -5], -5), ([-100], [], -100)],
)
def test_a_token_outside_the_vocabulary_is_refused(tokens, targets, unknown):
    with pytest.raises(DataError, match=rf"the data hold token {unknown}, but model\.vocab_size is 70"):
        refuse_unknown_tokens(batch_of(tokens, targets), 70)


@pytest.mark.parametrize(("tokens", "targets"), [([0, 69], [69, NOT_SCORED]), ([0], []), ([], []), ([0], [NOT_SCORED])])
def test_a_batch_of_known_tokens_is_taken_with_or_without_targets(tokens, targets):
    refuse_unknown_tokens(batch_of(tokens, targets), 70)
