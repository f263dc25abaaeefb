"""Tokens and positions in, and segments for encoders; hidden states in the compute dtype out."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from hornbook.model.initialize import Draw
from hornbook.model.layers import Dropout, LayerNorm

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
        result: Tensor = self.dropout(self.look_up(tokens_BT, positions_BT).to(self.compute_dtype), keys_BT)
        return result

    def look_up(self, tokens_BT: Tensor, positions_BT: Tensor) -> Tensor:
        """Return the sum of the rows of both tables, ``[B, T, D]`` fp32."""
        return functional.embedding(tokens_BT, self.tokens) + functional.embedding(positions_BT, self.positions)


class EncoderEmbedding(TokenAndPositionEmbedding):
    """Token, position and segment tables, added, then a layer norm (Devlin et al. 2019).

    Args:
        vocab_size: as above, like all that is not explained here.
        max_positions: longest sequence.
        hidden_size: D.
        num_segments: rows of the segment table; of a single one all tokens have a part, whatever their segment.
        first_position: row of the position table in which sequences begin: 2 in RoBERTa, whose tables have 2 more rows.
        dropout: probability after the norm.
        epsilon: of the norm.
        std: standard deviation of the initial tables.
        compute_dtype: dtype of the output.
    """

    def __init__(
        self,
        vocab_size: int,
        max_positions: int,
        hidden_size: int,
        *,
        num_segments: int,
        first_position: int,
        dropout: float,
        epsilon: float,
        std: float,
        compute_dtype: torch.dtype,
    ) -> None:
        num_positions = max_positions + first_position
        super().__init__(vocab_size, num_positions, hidden_size, dropout=dropout, std=std, compute_dtype=compute_dtype)
        self.first_position = first_position
        self.segments = nn.Parameter(torch.empty(num_segments, hidden_size))
        self.norm = LayerNorm(hidden_size, epsilon=epsilon)

    def draw(self, draw: Draw) -> None:
        """Fill the three tables."""
        super().draw(draw)
        draw.normal(self.segments, "segments", self.std)

    def forward(
        self, tokens_BT: Tensor, positions_BT: Tensor, keys_BT: Tensor, segments_BT: Tensor | None = None
    ) -> Tensor:
        """Map int64 ``[B, T]`` tokens, positions and segments to ``[B, T, D]`` in the compute dtype."""
        x_BTD = self.look_up(tokens_BT, positions_BT + self.first_position)
        if segments_BT is None or len(self.segments) == 1:
            x_BTD = x_BTD + self.segments[0]
        else:
            x_BTD = x_BTD + functional.embedding(segments_BT, self.segments)
        result: Tensor = self.dropout(self.norm(x_BTD.to(self.compute_dtype)), keys_BT)
        return result
