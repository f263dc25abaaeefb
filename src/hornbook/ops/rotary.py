"""The rotation of queries and keys by their positions, after an optional norm.

Column i of a head pairs with column i + R/2 (``rotate_half`` in transformers).
"""

import torch
from torch import Tensor


def rotate(x_BTHK: Tensor, cos_BTR: Tensor, sin_BTR: Tensor) -> Tensor:
    """Rotate the first R columns of each head by the angles of its token, computed in fp32.

    Args:
        x_BTHK: queries or keys, of any floating dtype, which is that of the result; or of flat tokens, ``[N, H, K]``.
        cos_BTR: fp32 ``[B, T, R/2]``, or ``[N, R/2]``.
        sin_BTR: likewise.
    """
    num_pairs = cos_BTR.shape[-1]
    first, second, rest = x_BTHK.float().tensor_split((num_pairs, 2 * num_pairs), -1)
    cos, sin = cos_BTR.unsqueeze(-2), sin_BTR.unsqueeze(-2)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1).to(x_BTHK.dtype)
