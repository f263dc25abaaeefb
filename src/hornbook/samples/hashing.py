"""Randomness without a state: every draw is a hash of what it is for, and an order is a permutation that is computed.

    mix64(seed, Purpose.KEYS, sample, position)      ->  64 bits, the same on every machine and in every order
    permute(np.arange(5), size=5, seed=0, epoch=0)   ->  [4, 1, 2, 0, 3]      (each window once an epoch)

A generator has a state that must be saved, restored and kept apart for each rank and worker; a hash has none. A draw
costs one finalizer for each value that goes in, some 3 ns an element on one core. The mixer is the finalizer of
SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, with Stafford's
constants), so ``mix64(s)`` is the first output of that generator seeded with ``s``.

A shuffled list of a billion windows takes 8 GB, minutes to make and a file to keep; a Feistel network gives any entry
of such a list from (seed, epoch, index) alone, as levanter does. The index is written as (high, low) on a grid that is
nearly a square, and each of the two in turn is shifted by a hash of the other. Every round can be undone, so no two
indices meet. The grid has a few cells too many, and an index that lands in one of them goes through the network again
("cycle walking"): Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, methods 3 and 2. It costs
0.1 us a sample in bulk (0.1 ms for a single one). Nothing here is fit for cryptography.
"""

import math
from enum import IntEnum
from typing import overload

import numpy as np

from hornbook.arrays import Hashes, Int64s, Integers

GAMMA = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio
NUM_ROUNDS = 8
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
_WORD = (1 << 64) - 1


class Purpose(IntEnum):
    """What a draw is for; the second value of every hash, so that no two uses of a seed share their numbers.

    A number, once used, keeps its meaning: changing one changes the samples of every run that resumes.
    """

    ORDER = 1
    SHIFT = 2
    KEYS = 3
    SYNTHETIC_TOKENS = 4
    SYNTHETIC_LENGTHS = 5
    BLEND = 6
    SOURCE_SEED = 7
    PAIRS = 8
    MASKING = 9


def mix64(*values: int | Integers) -> Hashes:
    """Hash one or more integers into 64 well-mixed bits, elementwise over arrays.

    Integers of any size and sign count modulo 2**64; the order of the values matters. Put the values with the fewest
    elements first: each is mixed at the shape reached so far, so a prefix of plain integers costs nothing.

    Returns:
        uint64 of the values' broadcast shape (0-dimensional for plain integers; ``int()`` takes it).
    """
    state = np.zeros(1, dtype=np.uint64)  # one-dimensional: numpy lets arrays wrap around, but warns for scalars
    for value in values:
        word = value.astype(np.uint64) if isinstance(value, np.ndarray) else np.uint64(int(value) & _WORD)
        state = state + word + GAMMA
        state = (state ^ (state >> np.uint64(30))) * _MULTIPLIER_1
        state = (state ^ (state >> np.uint64(27))) * _MULTIPLIER_2
        state = state ^ (state >> np.uint64(31))
    return state.reshape(()) if all(np.ndim(value) == 0 for value in values) else state


@overload
def permute(index: int, *, size: int, seed: int, epoch: int) -> int: ...
@overload
def permute(index: Integers, *, size: int, seed: int, epoch: int | Integers) -> Int64s: ...
def permute(index: int | Integers, *, size: int, seed: int, epoch: int | Integers) -> int | Int64s:
    """Where entry ``index`` of 0..size-1 stands in the order of this seed and epoch.

    For each (size, seed, epoch) a bijection of 0..size-1 onto itself; no element depends on the others in the array.

    Args:
        index: one index or an array of them, each in [0, size).
        size: length of the permutation, 1 to 2**62.
        seed: any integer.
        epoch: one number, or an array of ``index``'s shape.

    Returns:
        An int for an int, int64 of the same shape for an array.
    """
    indices = np.asarray(index)
    assert 1 <= size <= 1 << 62, f"size {size} is outside 1..2**62"
    assert indices.size == 0 or (indices.min() >= 0 and indices.max() < size), f"an index lies outside 0..{size - 1}"
    key = np.broadcast_to(mix64(seed, Purpose.ORDER, epoch), indices.shape).reshape(-1)
    values = indices.reshape(-1).astype(np.uint64)
    num_rows = math.isqrt(size - 1) + 1  # the smallest grid of about sqrt(size) by sqrt(size) that has enough cells
    rows, columns = np.uint64(num_rows), np.uint64(-(-size // num_rows))
    outside = np.arange(values.size)
    while outside.size:  # once, but for a share of at most 1 / sqrt(size)
        (high, low), keys = np.divmod(values[outside], columns), key[outside]
        for _ in range(NUM_ROUNDS // 2):
            # a hash has a bit less here, so that its sum with the other half does not wrap around
            high = (high + (mix64(keys + low) >> np.uint64(1))) % rows
            keys = keys + GAMMA
            low = (low + (mix64(keys + high) >> np.uint64(1))) % columns
            keys = keys + GAMMA
        values[outside] = high * columns + low
        outside = outside[values[outside] >= size]
    if isinstance(index, np.ndarray):
        return values.astype(np.int64).reshape(indices.shape)
    return int(values[0])


def repeat_first(samples: Int64s, *, size: int, whole: int, seed: int) -> Int64s:
    """Turn samples of a run over ``size`` of ``whole`` samples into those of a run over all of them.

    A run over a part repeats the first samples of a run over all: a random part, and the smaller of two is contained in
    the larger one. Each epoch has an order of its own.

    Args:
        samples: int64[B], each >= 0.
        size: samples of the part; with ``whole`` nothing changes.
        whole: samples of an epoch of all.
        seed: as for ``permute``.
    """
    if size >= whole:
        return samples
    epochs, places = np.divmod(samples, size)
    return permute(places, size=size, seed=seed, epoch=epochs)
