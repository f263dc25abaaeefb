"""The tape finds the peak and what is live at it."""

import pytest

from hornbook.plan.tape import Tape


def test_the_peak_is_found_and_reported():
    tape = Tape()
    tape.hold("activations", "a", 4)
    tape.use(6, "scratch")
    tape.hold("gradients", "g", 3)
    tape.free("a", "never there")
    tape.use(2)
    assert (tape.peak, tape.live) == (10, 3)
    assert tape.at_peak() == {("activations", "a"): 4, ("workspace", "scratch"): 6}
    assert tape.names() == ["g"]


def test_a_tensor_is_replaced_once_the_new_one_is_there():
    tape = Tape()
    tape.hold("activations", "x", 4)
    tape.hold("workspace", "x", 1)
    assert (tape.peak, tape.live, tape.size("x")) == (5, 1, 1)
    assert tape.at_peak() == {("activations", "x"): 4, ("workspace", "x"): 1}


def test_nothing_is_live_that_was_freed():
    tape = Tape()
    for size in (3, 5):
        tape.hold("activations", "x", size)
        tape.free("x")
    assert tape.live == 0
    assert not tape.holds("x")
    with pytest.raises(KeyError):
        tape.size("x")
