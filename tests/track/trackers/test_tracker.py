import sys

import pytest
from recording_tracker import Recording
from tiny_text import one_line

from hornbook.errors import UserError
from hornbook.track.trackers.tracker import Histogram, open_function, register_tracker


def test_a_tracker_is_found_by_its_name() -> None:
    assert open_function("recording") is Recording


def test_an_unknown_tracker_is_one_line() -> None:
    with pytest.raises(UserError) as caught:
        open_function("tensorbord")
    assert one_line(caught.value, "no tracker 'tensorbord'", 'did you mean "tensorboard"?', "wandb")


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow", "trackio"])
def test_a_missing_library_is_one_line_that_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError) as caught:
        open_function(name)
    assert one_line(caught.value, f"tracker {name} needs {name}: ", f"pip install 'hornbook[{name}]'")


def test_a_built_in_name_cannot_be_taken() -> None:
    with pytest.raises(UserError, match="hornbook already has a tracker 'wandb'"):
        register_tracker("wandb")


def test_the_centers_of_a_histogram() -> None:
    assert Histogram(edges=[0.0, 1.0, 3.0], counts=[4, 2]).centers == [0.5, 2.0]
