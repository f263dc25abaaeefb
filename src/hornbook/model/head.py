"""Heads: hidden states become losses or logits, through an output table ``[V, D]``.

A tied table is the embedding's, and keeps *two* gradient accumulators, so that runs that hold the two uses apart
(pipeline stages, phased execution) add the same two sums as a run in one piece, bit for bit::

    embedding.tokens  --same storage--  head.table
          .grad  (look-ups)                .grad  (logits)          fold_tied_gradients() adds them once a step
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hornbook.config.shapes import padded_rows
from hornbook.model.incremental import token_form
from hornbook.model.initialize import Draw
from hornbook.model.layers import LayerNorm
from hornbook.ops.cross_entropy import (
    linear_cross_entropy,
    token_losses,
    vocabulary_logits,
    weighted_cross_entropy,
)
from hornbook.ops.layers import for_few_rows
from hornbook.ops.native.choice import form_for_tokens
from hornbook.ops.native.token_block import TokenHead, TokenModel
from hornbook.parallel.ranks import local
from hornbook.samples.batches import Batch


class OutputHead(nn.Module):
    """The parts of every head: the output table, perhaps a bias and a norm, and logits of chosen tokens.

    Args:
        hidden_size: D.
        vocab_size: tokens that exist, without padding.
        bias: whether each of them has a bias, which is kept without padding.
        norm: final norm (pre-norm models), which maps each token alone.
        is_tied: whether the output table is the embedding's; False: the head has a table of its own.
        std: standard deviation of the initial weights, those of a table of its own included.
    """

    table: nn.Parameter
    """``[V padded, D]``."""
    vocabulary_chunks = 1
    """Parts of the vocabulary that a loss takes one after the other (``memory.vocabulary_chunks``)."""

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        *,
        bias: bool = False,
        norm: nn.Module | None = None,
        is_tied: bool = True,
        std: float = 0.02,
    ) -> None:
        super().__init__()
        self.vocab_size, self.is_tied, self.std = vocab_size, is_tied, std
        self._holds_copy = False
        self.bias = nn.Parameter(torch.empty(vocab_size)) if bias else None
        if not is_tied:
            self.table = nn.Parameter(torch.empty(padded_rows(vocab_size), hidden_size))
        self.norm = norm or nn.Identity()

    def forward(self, use: Callable[[Any, Tensor, Batch], Any], x_BTD: Tensor, batch: Batch) -> Any:
        """Return ``use(self, x_BTD, batch)``: whoever uses a head calls it, so that hooks of the module run."""
        return use(self, x_BTD, batch)

    def draw(self, draw: Draw) -> None:
        """Set the bias to zero, and fill a table of the head's own, whose padding rows become zero."""
        draw.constant(self.bias, 0.0)
        if not self.is_tied:
            draw.normal(self.table, "table", self.std, num_rows=self.vocab_size)
        elif self._holds_copy:
            draw.constant(self.table, 0.0)

    def tie(self, table: nn.Parameter) -> None:
        """Share the storage of the embedding's ``table`` ``[V padded, D]``, with a separate gradient, if tied.

        A head that holds a copy copies the table's values, unless another rank holds the table.
        """
        if self._holds_copy and table.is_meta:
            return
        if self._holds_copy:
            with torch.no_grad():
                local(self.table).copy_(local(table))
        elif self.is_tied:
            self.table = nn.Parameter(table.detach())

    def hold_copy(self) -> None:
        """Give a tied head memory of its own for the table: ``tie`` copies from then on."""
        if self.is_tied:
            self.table = nn.Parameter(torch.empty_like(self.table))
            self._holds_copy = True

    def first_tokens(self, x_BTD: Tensor, firsts_S: Tensor) -> Tensor:
        """Return the normed hidden states of sequences' first tokens, ``[S, D]``."""
        first_SD: Tensor = self.norm(at_places(x_BTD, firsts_S))
        return first_SD

    def last_tokens(self, x_BTD: Tensor, batch: Batch) -> Tensor:
        """Return the normed hidden states of sequences' last tokens, ``[S, D]``."""
        last_SD: Tensor = self.norm(at_places(x_BTD, batch["firsts"] + batch["lengths"] - 1))
        return last_SD

    def prepare(self, x: Tensor) -> Tensor:
        """Return the input of the output projection, ``[..., D]``, of hidden states ``[..., D]``."""
        prepared: Tensor = self.norm(x)
        return prepared

    def logits(self, x_ND: Tensor) -> Tensor:
        """Return logits ``[..., V]`` in fp32 for hidden states ``[..., D]`` of chosen tokens, without padding."""
        return vocabulary_logits(self.prepare(x_ND), self.table, self.vocab_size, self.bias)


class CausalHead(OutputHead):
    """GPT's head, a norm and the output table: hidden states and targets in, sums of losses out.

    Args:
        hidden_size: D.
        vocab_size: tokens that exist, without padding.
        epsilon: of the final layer norm.
        norm: another final norm, which maps each token alone.
        is_tied: see ``OutputHead``.
        std: standard deviation of an untied table's initial weights.
    """

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        *,
        epsilon: float = 1e-5,
        norm: nn.Module | None = None,
        is_tied: bool = True,
        std: float = 0.02,
    ) -> None:
        norm = norm or LayerNorm(hidden_size, epsilon=epsilon)
        super().__init__(hidden_size, vocab_size, norm=norm, is_tied=is_tied, std=std)

    def incremental(self, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
        """Return ``logits`` with weights cast once to ``dtype``."""
        table = self.table[: self.vocab_size]
        final = self.norm
        form = form_for_tokens(table.new_empty(0, dtype=dtype))
        if form is not None and type(final) is LayerNorm:
            gain_D, bias_D = final.weight.detach(), final.bias.detach()
            table = table.detach().to(dtype).contiguous()
            return TokenModel(form, [], TokenHead(gain_D, bias_D, table, final.epsilon))
        norm, table = token_form(self.norm, dtype), for_few_rows(table.detach().to(dtype))
        return lambda x_ND: functional.linear(norm(x_ND), table).float()

    def cross_entropy(self, x_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the summed cross-entropy, an fp32 scalar in nats; targets of -100 are not scored."""
        x_ND = self.prepare(x_BTD).flatten(0, 1)
        return linear_cross_entropy(x_ND, self.table, targets_BT.flatten(), self.vocab_size, self.vocabulary_chunks)

    def weighted_cross_entropy(self, x_BTD: Tensor, targets_BT: Tensor, weights_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of each token's cross-entropy times its weight, and the sum without weights.

        Two fp32 scalars in nats, the second without a gradient; targets of -100 are not scored. ``weights_BT`` is fp32.
        """
        x_ND = self.prepare(x_BTD).flatten(0, 1)
        targets_N, weights_N = targets_BT.flatten(), weights_BT.flatten()
        return weighted_cross_entropy(x_ND, self.table, targets_N, weights_N, self.vocab_size, self.vocabulary_chunks)

    @torch.no_grad()
    def token_losses(self, x_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """Return each token's cross-entropy ``[B, T]``, fp32, in nats; zero where the target is -100."""
        x_ND = self.prepare(x_BTD).flatten(0, 1)
        losses_N = token_losses(x_ND, self.table, targets_BT.flatten(), self.vocab_size, chunks=self.vocabulary_chunks)
        return losses_N.view_as(targets_BT)


def at_places(x_BT: Tensor, places_P: Tensor) -> Tensor:
    """Return the entries of ``[B, T, ...]`` at flat indices, ``[P, ...]``.

    Args:
        x_BT: of any dtype.
        places_P: int64, indices into the B·T tokens, on the device of ``x`` or in the host's memory.
    """
    return x_BT.flatten(0, 1).index_select(0, places_P.to(x_BT.device, non_blocking=True))


def sequence_places(batch: Batch, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return where the tokens of a batch's sequences lie, a sequence a row.

    Returns:
        int64 ``[S, T]``, T being the length of the longest: flat indices into the tokens, 0 beyond a sequence's end;
        and bool ``[S, T]``, whether a place is beyond it. Both on ``device``.
    """
    firsts_S, lengths_S = batch["firsts"], batch["lengths"]
    places = torch.arange(int(lengths_S.max()), device=lengths_S.device)
    outside_ST = places >= lengths_S[:, None]
    flat_ST = (firsts_S[:, None] + places).masked_fill(outside_ST, 0)
    return flat_ST.to(device, non_blocking=True), outside_ST.to(device, non_blocking=True)
