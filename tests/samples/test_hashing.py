import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hornbook.samples.hashing import GAMMA, Purpose, mix64

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


def test_purposes_are_told_apart():
    assert len({purpose.value for purpose in Purpose}) == len(Purpose)
