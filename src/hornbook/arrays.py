"""Type aliases of NumPy arrays."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.integer[Any]]
"""Integers of any width and sign, as stored in files."""

Int64s: TypeAlias = NDArray[np.int64]
"""Integers in computations: tokens of batches, lengths, positions, sample numbers."""

Hashes: TypeAlias = NDArray[np.uint64]
"""64-bit hashes from `hornbook.samples.hashing`."""

Bools: TypeAlias = NDArray[np.bool_]
