"""Dropout is off for a while, and on again whatever happens meanwhile."""

import pytest
from tiny import tiny_model

from hornbook.model.language_model import evaluation_mode


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_comes_back_after_an_error_too(training):
    model = tiny_model().train(training)
    with evaluation_mode(model):
        assert not model.training
    assert model.training is training
    with pytest.raises(KeyError), evaluation_mode(model):
        raise KeyError
    assert model.training is training
