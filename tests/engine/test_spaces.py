"""Tensors outside of the device, and the threads that move them."""

import threading

import pytest
import torch

from hornbook.engine.spaces import FileSpace, Lane
from hornbook.storage.scratch import ScratchFile


@pytest.fixture
def space(tmp_path):
    space = FileSpace(ScratchFile(tmp_path), torch.device("cpu"))
    space.reserve(1 << 16)
    return space


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 4, 5)])
def test_a_tensor_comes_back_and_shows_in_its_place(space, dtype, shape):
    tensor = torch.randn(shape).to(dtype)
    at_rest = space.at_rest(4096, shape, dtype)
    space.save(4096, tensor)
    assert torch.equal(space.load(4096, shape, dtype), tensor)
    assert torch.equal(at_rest, tensor)
    at_rest.fill_(2.0)
    assert torch.equal(space.load(4096, shape, dtype), torch.full(shape, 2.0, dtype=dtype))
    assert (space.num_written, space.num_read) == (tensor.nbytes, 2 * tensor.nbytes)


def test_a_tensor_that_is_not_contiguous_is_written_as_it_looks(space):
    tensor = torch.arange(12.0).view(3, 4).t()
    space.save(64, tensor)
    assert torch.equal(space.load(64, (4, 3), torch.float32), tensor)


def test_what_was_not_written_is_zero(space):
    assert not space.load(0, (1 << 14,), torch.float32).any()


def test_the_next_call_runs_while_the_caller_has_the_last_result():
    begun = [threading.Event() for _ in range(4)]

    def call(number):
        begun[number].set()
        return number

    seen = []
    for result in Lane("test").ahead([lambda n=n: call(n) for n in range(4)]):
        assert begun[min(result + 1, 3)].wait(10)
        assert not any(event.is_set() for event in begun[result + 2 :])
        seen.append(result)
    assert seen == [0, 1, 2, 3]


def test_an_error_reaches_who_waits():
    def fail():
        raise ValueError("lost")

    lane = Lane("test")
    with pytest.raises(ValueError, match="lost"):
        list(lane.ahead([lambda: 1, fail]))
    for collect in (lane.settle, lambda: lane.behind(lambda: None)):
        lane.behind(fail)
        with pytest.raises(ValueError, match="lost"):
            collect()
    lane.settle()


def test_calls_are_made_one_after_the_other():
    lane, done = Lane("test"), []
    for number in range(100):
        lane.behind(lambda number=number: done.append(number))
    lane.settle()
    assert done == list(range(100))


def test_who_stops_early_waits_for_what_was_begun():
    finished = threading.Event()
    release = threading.Event()

    def slow():
        release.wait(10)
        finished.set()

    results = Lane("test").ahead([lambda: 1, slow, slow])
    assert next(results) == 1
    release.set()
    results.close()
    assert finished.is_set()
