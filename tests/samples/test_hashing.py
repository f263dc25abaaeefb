from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hornbook.samples.hashing import GAMMA, Purpose, mix64, permute, repeat_first

SEEDS = st.integers(-(2**63), 2**64)
EPOCHS = st.integers(0, 2**40)

# The first five outputs of SplitMix64 seeded with 1234567, as Rosetta Code publishes them.
SPLITMIX_1234567 = [
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
]


def test_it_is_splitmix64():
    assert [int(mix64(1234567 + step * int(GAMMA))) for step in range(5)] == SPLITMIX_1234567


@given(st.lists(st.integers(-(2**70), 2**70), min_size=1, max_size=4))
def test_arrays_hash_as_plain_integers_do(values):
    words = [np.array([value % 2**64], dtype=np.uint64) for value in values]
    assert mix64(*words).tolist() == [int(mix64(*values))]


def test_negative_arrays_hash_as_negative_integers_do():
    assert mix64(np.array([-1, 2])).tolist() == [int(mix64(-1)), int(mix64(2))]


def test_shapes_broadcast():
    grid = mix64(7, np.arange(3)[:, None], np.arange(4))
    assert grid.shape == (3, 4) and grid.dtype == np.uint64
    assert int(grid[2, 3]) == int(mix64(7, 2, 3))
    assert mix64(7).shape == ()


def test_the_order_and_the_number_of_values_matter():
    assert (
        len({int(mix64(*values)) for values in [(1, 2), (2, 1), (1,), (2,), (1, 2, 0), (0, 1, 2), (0,), (0, 0)]}) == 8
    )


def test_one_flipped_input_bit_flips_half_of_the_output_bits():
    inputs = np.arange(2000, dtype=np.uint64)
    for bit in range(64):
        changed = mix64(3, inputs) ^ mix64(3, inputs ^ np.uint64(1 << bit))
        flipped = np.unpackbits(changed.view(np.uint8)).mean()
        assert abs(flipped - 0.5) < 0.01


def test_purposes_are_distinguished():
    assert len({purpose.value for purpose in Purpose}) == len(Purpose)


@pytest.mark.parametrize("size", [*range(1, 70), 127, 128, 129, 1000, 1023, 1025, 4096, 10007])
def test_every_index_comes_once(size):
    order = permute(np.arange(size), size=size, seed=3, epoch=1)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(size))


@given(size=st.integers(1, 3000), seed=SEEDS, epoch=EPOCHS)
def test_every_index_comes_once_whatever_the_seed(size, seed, epoch):
    assert np.array_equal(np.sort(permute(np.arange(size), size=size, seed=seed, epoch=epoch)), np.arange(size))


@given(size=st.integers(2**31, 2**62), start=st.integers(0, 2**31 - 1000), seed=SEEDS)
def test_huge_sizes_stay_inside_and_apart(size, start, seed):
    order = permute(np.arange(start, start + 1000), size=size, seed=seed, epoch=0)
    assert order.min() >= 0 and order.max() < size
    assert len(set(order.tolist())) == 1000


@given(size=st.integers(1, 500), seed=SEEDS, epoch=EPOCHS, cuts=st.lists(st.integers(0, 500), max_size=5))
def test_chunks_make_no_difference(size, seed, epoch, cuts):
    whole = permute(np.arange(size), size=size, seed=seed, epoch=epoch)
    edges = sorted({0, size, *(cut for cut in cuts if cut < size)})
    parts = [permute(np.arange(first, last), size=size, seed=seed, epoch=epoch) for first, last in pairwise(edges)]
    assert np.array_equal(np.concatenate(parts), whole)
    assert permute(size - 1, size=size, seed=seed, epoch=epoch) == whole[-1]


def test_an_array_of_epochs_is_that_of_each():
    index, epochs = np.array([[0, 5], [9, 5]]), np.array([[0, 0], [1, 2]])
    order = permute(index, size=10, seed=4, epoch=epochs)
    assert order.shape == (2, 2)
    each = [permute(int(i), size=10, seed=4, epoch=int(e)) for i, e in zip(index.flat, epochs.flat, strict=True)]
    assert order.reshape(-1).tolist() == each


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = [permute(np.arange(1000), size=1000, seed=seed, epoch=epoch) for seed in range(5) for epoch in range(5)]
    for number, order in enumerate(orders):
        for other in orders[:number]:
            assert (order == other).sum() < 12  # two random orders agree in about one place


def test_neighbors_do_not_stay_neighbors():
    order = permute(np.arange(10_000), size=10_000, seed=1, epoch=0)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.05
    assert abs(np.corrcoef(order, np.arange(10_000))[0, 1]) < 0.05
    assert (np.abs(np.diff(order)) == 1).sum() < 12


@pytest.mark.parametrize("size", [5, 12, 100])
def test_an_index_lands_everywhere_equally_often(size):
    epochs = np.arange(200 * size)
    for index in (0, size // 2, size - 1):
        counts = np.bincount(permute(np.full(len(epochs), index), size=size, seed=8, epoch=epochs), minlength=size)
        chi_square = ((counts - 200) ** 2 / 200).sum()
        assert chi_square < size - 1 + 5 * np.sqrt(2 * (size - 1))


def test_the_order_is_what_it_was():
    """Runs resume across versions: a change of these numbers changes what they read."""
    assert permute(np.arange(5), size=5, seed=0, epoch=0).tolist() == [4, 1, 2, 0, 3]
    assert permute(np.arange(12), size=12, seed=1234, epoch=0).tolist() == [9, 7, 0, 11, 6, 4, 3, 8, 2, 10, 1, 5]
    assert permute(10**9, size=10**9 + 7, seed=1234, epoch=3) == 110971323


@given(size=st.integers(1, 60), more=st.integers(1, 60), seed=SEEDS)
def test_a_part_is_repeated_each_epoch_in_another_order(size, more, seed):
    samples = np.arange(5 * size)
    epochs = repeat_first(samples, size=size, whole=size + more, seed=seed).reshape(5, size)
    assert all(np.array_equal(np.sort(epoch), np.arange(size)) for epoch in epochs)
    assert size < 8 or len({tuple(epoch) for epoch in epochs.tolist()}) > 1
    assert np.array_equal(repeat_first(samples, size=size + more, whole=size + more, seed=seed), samples)
