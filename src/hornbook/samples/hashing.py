"""Randomness without a state: every draw is a hash of what it is for.

    mix64(seed, Purpose.KEYS, sample, position)  ->  64 bits, the same on every machine and in every order

A generator has a state that must be saved, restored and kept apart for each rank and worker, and a run that loses it
draws its batches anew. A hash has none. The price: a draw costs one finalizer (two multiplications, three shifts) for
each value that goes in, some 3 ns an element on one core, and nothing here is fit for cryptography.

The mixer is the finalizer of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
OOPSLA 2014, with Stafford's constants), so ``mix64(s)`` is the first output of that generator seeded with ``s``.
"""

from enum import IntEnum

import numpy as np

from hornbook.arrays import Hashes, Integers

GAMMA = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio
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
        state = _finalize(state + _as_words(value) + GAMMA)
    return state.reshape(()) if all(np.ndim(value) == 0 for value in values) else state


def _as_words(value: int | Integers) -> Hashes:
    if isinstance(value, np.ndarray):
        return value.astype(np.uint64)
    return np.array(int(value) & _WORD, dtype=np.uint64)


def _finalize(state: Hashes) -> Hashes:
    state = (state ^ (state >> np.uint64(30))) * _MULTIPLIER_1
    state = (state ^ (state >> np.uint64(27))) * _MULTIPLIER_2
    return state ^ (state >> np.uint64(31))
