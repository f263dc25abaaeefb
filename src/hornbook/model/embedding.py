"""Tokens and positions in, hidden states in the compute dtype out."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from hornbook.model.dropout import Dropout
from hornbook.model.initialize import Draw

_ROW_MULTIPLE = 64


def padded_rows(vocab_size: int) -> int:
    """Return the rows of the token table in memory: a multiple of 64, which matrix products like better."""
    return -(-vocab_size // _ROW_MULTIPLE) * _ROW_MULTIPLE


class TokenAndPositionEmbedding(nn.Module):
    """Learned token and position tables, added (Radford et al. 2018).

    Args:
        vocab_size: tokens that exist; the table in memory is padded with zero rows, files never see them.
        max_positions: rows of the position table; sequences may be shorter.
        hidden_size: D.
        dropout: probability after the sum.
        std: standard deviation of both initial tables.
        compute_dtype: dtype of the output, which every later layer follows.
    """

    def __init__(
        self,
        vocab_size: int,
        max_positions: int,
        hidden_size: int,
        *,
        dropout: float,
        std: float,
        compute_dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.vocab_size, self.std, self.compute_dtype = vocab_size, std, compute_dtype
        self.tokens = nn.Parameter(torch.empty(padded_rows(vocab_size), hidden_size))
        self.positions = nn.Parameter(torch.empty(max_positions, hidden_size))
        self.dropout = Dropout(dropout, site=0)

    def draw(self, draw: Draw) -> None:
        """Fill both tables; the padding rows of the token table become zero."""
        draw.normal(self.tokens, "tokens", self.std, num_rows=self.vocab_size)
        draw.normal(self.positions, "positions", self.std)

    def forward(self, tokens_BT: Tensor, positions_BT: Tensor, keys_BT: Tensor) -> Tensor:
        """Map int64 ``[B, T]`` tokens and positions to ``[B, T, D]`` in the compute dtype."""
        x_BTD = functional.embedding(tokens_BT, self.tokens) + functional.embedding(positions_BT, self.positions)
        result: Tensor = self.dropout(x_BTD.to(self.compute_dtype), keys_BT)
        return result
