"""Token ids in, hidden states in the compute dtype out."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from hornbook.config.shapes import padded_rows
from hornbook.model.initialize import Draw
from hornbook.model.layers import Dropout
from hornbook.ops.layers import look_up, sinusoidal

Positions = Literal["learned", "sinusoidal", "none"]


class Embedding(nn.Module):
    """Token, position and segment embeddings, added, then perhaps a norm, then dropout.

    GPT has learned positions and no norm (Radford et al. 2018), BERT also segments and a norm (Devlin et al. 2019).

    Args:
        vocab_size: tokens that exist; the table in memory is padded with zero rows, files never hold them.
        max_positions: longest sequence.
        hidden_size: D.
        positions: a learned table, fixed sines and cosines (Vaswani et al. 2017), or none.
        first_position: row of the position table in which sequences begin: 2 in RoBERTa, whose tables have 2 more rows.
        num_segments: rows of the segment table; 0: no table, 1: one row, added to every token.
        norm: of the sum, before the dropout.
        dropout: probability.
        std: standard deviation of the initial tables.
        compute_dtype: dtype of the output, which every later layer follows.
    """

    def __init__(
        self,
        vocab_size: int,
        max_positions: int,
        hidden_size: int,
        *,
        positions: Positions = "learned",
        first_position: int = 0,
        num_segments: int = 0,
        norm: nn.Module | None = None,
        dropout: float,
        std: float,
        compute_dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.vocab_size, self.std, self.compute_dtype = vocab_size, std, compute_dtype
        self.position_kind, self.first_position = positions, first_position
        self.tokens = nn.Parameter(torch.empty(padded_rows(vocab_size), hidden_size))
        num_rows = max_positions + first_position
        self.positions = nn.Parameter(torch.empty(num_rows, hidden_size)) if positions == "learned" else None
        self.segments = nn.Parameter(torch.empty(num_segments, hidden_size)) if num_segments else None
        self.norm = norm
        self.dropout = Dropout(dropout, site=0)

    def draw(self, draw: Draw) -> None:
        """Fill the tables; the padding rows of the token table become zero."""
        draw.normal(self.tokens, "tokens", self.std, num_rows=self.vocab_size)
        for name, table in (("positions", self.positions), ("segments", self.segments)):
            if table is not None:
                draw.normal(table, name, self.std)

    def forward(
        self, tokens_BT: Tensor, positions_BT: Tensor, keys_BT: Tensor, segments_BT: Tensor | None = None
    ) -> Tensor:
        """Return ``[B, T, D]`` in the compute dtype.

        Args:
            tokens_BT: int64.
            positions_BT: int64, from 0.
            keys_BT: int64, the dropout keys.
            segments_BT: int64; None: all tokens are of segment 0.
        """
        x_BTD = look_up(tokens_BT, self.tokens)
        if self.positions is not None:
            x_BTD = x_BTD + functional.embedding(positions_BT + self.first_position, self.positions)
        elif self.position_kind == "sinusoidal":
            x_BTD = x_BTD + sinusoidal(positions_BT, x_BTD.shape[-1])
        if self.segments is not None:
            if segments_BT is None or len(self.segments) == 1:
                x_BTD = x_BTD + self.segments[0]
            else:
                x_BTD = x_BTD + functional.embedding(segments_BT, self.segments)
        x_BTD = x_BTD.to(self.compute_dtype)
        result: Tensor = self.dropout(x_BTD if self.norm is None else self.norm(x_BTD), keys_BT)
        return result
