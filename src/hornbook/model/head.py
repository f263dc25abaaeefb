"""The tied head: final norm, then the token table as output weights.

The table is used twice, for look-up and for logits, and keeps *two* gradient accumulators, so that runs that hold the
two uses apart (pipeline stages, phased execution) add the same two sums as a run in one piece, bit for bit::

    embedding.tokens  --same storage--  head.table
          .grad  (look-ups)                .grad  (logits)          fold_tied_gradients() adds them once a step
"""

import torch
from torch import Tensor, nn

from hornbook.model.layers import LayerNorm
from hornbook.model.linear_cross_entropy import linear_cross_entropy, token_losses


class TiedHead(nn.Module):
    """Hidden states and targets in, sums of losses out; a second entry gives logits at chosen places.

    Args:
        hidden_size: D.
        vocab_size: tokens that exist, without padding.
        epsilon: of the final norm.
    """

    table: nn.Parameter

    def __init__(self, hidden_size: int, vocab_size: int, *, epsilon: float) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.norm = LayerNorm(hidden_size, epsilon=epsilon)

    def tie(self, table: nn.Parameter) -> None:
        """Share the storage of the embedding's ``table`` ``[V padded, D]``, with a gradient of its own."""
        self.table = nn.Parameter(table.detach())

    def forward(self, x_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the summed cross-entropy, an fp32 scalar in nats; targets of -100 are not scored."""
        x_ND = self.norm(x_BTD).flatten(0, 1)
        return linear_cross_entropy(x_ND, self.table, targets_BT.flatten(), self.vocab_size)

    @torch.no_grad()
    def token_losses(self, x_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """Return each token's cross-entropy ``[B, T]``, fp32, in nats; zero where the target is -100."""
        x_ND = self.norm(x_BTD).flatten(0, 1)
        return token_losses(x_ND, self.table, targets_BT.flatten(), self.vocab_size).view_as(targets_BT)

    def logits(self, x_ND: Tensor) -> Tensor:
        """Return logits ``[..., V]`` in fp32 for hidden states ``[..., D]`` at chosen places, without padding."""
        normed = self.norm(x_ND)
        logits: Tensor = (normed @ self.table[: self.vocab_size].to(normed.dtype).t()).float()
        return logits
