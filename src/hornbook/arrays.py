"""The types of arrays that data are made of, one name each; shapes stand where the arrays do."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.integer[Any]]
"""Of any width and sign, as a file has them."""

Int64s: TypeAlias = NDArray[np.int64]
"""What is computed with: tokens in batches, lengths, places, numbers of samples."""

Hashes: TypeAlias = NDArray[np.uint64]
"""64 random bits each, by `hornbook.samples.hashing`."""

Bools: TypeAlias = NDArray[np.bool_]
