"""Stateless randomness: draws are hashes of their purpose and indices, and orders are computed permutations.

    mix64(seed, Purpose.KEYS, sample, position)      ->  64 bits, the same on every machine and in every order
    permute(np.arange(5), size=5, seed=0, epoch=0)   ->  [4, 1, 2, 0, 3]      (each window once an epoch)

A generator's state must be saved, restored and kept separate for each rank and worker; a hash has none. A draw costs
one finalizer for each hashed value, about 3 ns per element on one core. The mixer is the finalizer of SplitMix64
(Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, with Stafford's constants), so
``mix64(s)`` is the first output of that generator seeded with ``s``.

A shuffled list of a billion windows takes 8 GB, minutes to compute and a file to store; a Feistel network computes any
entry of such a list from (seed, epoch, index), as in levanter. The index is written as (high, low) on a nearly square
grid, and each coordinate in turn is shifted by a hash of the other. Every round is invertible, so no two indices
collide. The grid has a few cells too many, and an index that ends in one of them goes through the network again ("cycle
walking"): Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, methods 3 and 2. It costs 0.1 us per
sample in bulk (0.1 ms for a single one). Do not use it for cryptography.
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
    """The purpose of a draw, hashed as the second value, so that no two uses of a seed share random numbers.

    Never change a number: that would change the samples of every run that resumes.
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

    Integers of any size and sign are taken modulo 2**64; the order of the values matters. Pass the values with the
    fewest elements first: each is mixed at the shape broadcast so far, so a prefix of plain integers costs nothing.

    Returns:
        uint64 of the values' broadcast shape (0-dimensional for plain integers; convert it by ``int()``).
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
    """Return entry ``index`` of the random order of 0..size-1 for this seed and epoch.

    For each (size, seed, epoch) this is a bijection of 0..size-1 onto itself; elements are independent of each other.

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
    assert indices.size == 0 or (indices.min() >= 0 and indices.max() < size), f"an index is outside 0..{size - 1}"
    key = np.broadcast_to(mix64(seed, Purpose.ORDER, epoch), indices.shape).reshape(-1)
    values = indices.reshape(-1).astype(np.uint64)
    num_rows = math.isqrt(size - 1) + 1  # the smallest grid of about sqrt(size) by sqrt(size) that has enough cells
    rows, columns = np.uint64(num_rows), np.uint64(-(-size // num_rows))
    outside = np.arange(values.size)
    while outside.size:  # repeats for a share of at most 1 / sqrt(size)
        (high, low), keys = np.divmod(values[outside], columns), key[outside]
        for _ in range(NUM_ROUNDS // 2):
            # 63 bits of the hash, so that the sum with the other half does not wrap around
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
    """Map samples of a run over ``size`` of ``whole`` samples to samples of a run over all of them.

    A run over a subset repeats the first samples of a run over all: a random subset, contained in every larger one.
    Each epoch has its own order.

    Args:
        samples: int64[B], each >= 0.
        size: samples in the subset; nothing changes if it is ``whole``.
        whole: samples per epoch of the full run.
        seed: see ``permute``.
    """
    if size >= whole:
        return samples
    epochs, indices = np.divmod(samples, size)
    return permute(indices, size=size, seed=seed, epoch=epochs)
