"""Heads compute losses or logits from hidden states, with an output table ``[V, D]``.

A tied head shares the embedding's table but has its own gradient. So runs that keep the two uses in different places
(pipeline stages, phased execution) add the same two sums as a run on one device, bit for bit::

    embedding.tokens  --same storage--  head.table
          .grad  (look-ups)                .grad  (logits)          fold_tied_gradients() adds them once a step
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hornbook.config.shapes import padded_rows
from hornbook.model.initialize import Draw
from hornbook.model.layers import LayerNorm, Linear, activated
from hornbook.ops.cross_entropy import linear_cross_entropy, token_losses
from hornbook.ops.tensor_parallel import enter, gather_columns
from hornbook.ops.vocabulary_parts import Columns
from hornbook.parallel.device import copied_to
from hornbook.parallel.ranks import cut_of, is_cut, local
from hornbook.samples.batches import Batch
from hornbook.samples.windows import NOT_SCORED


class OutputHead(nn.Module):
    """The base of heads: the output table, an optional bias and norm, and logits.

    Args:
        hidden_size: D.
        vocab_size: size of the vocabulary, without padding.
        bias: whether each token of the vocabulary has a bias.
        norm: final norm (pre-norm models), which maps each token separately.
        is_tied: whether the output table is the embedding's.
        std: standard deviation of the initial weights, including an untied table.
        cap: soft limit of the logits, if any.
    """

    table: nn.Parameter
    """``[V padded, D]``."""
    vocabulary_chunks = 1
    """Number of chunks of the vocabulary in which losses are computed (``memory.vocabulary_chunks``)."""

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        *,
        bias: bool = False,
        norm: nn.Module | None = None,
        is_tied: bool = True,
        std: float = 0.02,
        cap: float | None = None,
    ) -> None:
        super().__init__()
        self.vocab_size, self.is_tied, self.std, self.cap = vocab_size, is_tied, std, cap
        self._holds_copy = False
        self._known: tuple[Tensor, Tensor] | None = None
        self.bias = nn.Parameter(torch.empty(vocab_size)) if bias else None
        if not is_tied:
            self.table = nn.Parameter(torch.empty(padded_rows(vocab_size), hidden_size))
        self.norm = norm or nn.Identity()

    def forward(self, use: Callable[[Any, Tensor, Batch], Any], x_BTD: Tensor, batch: Batch) -> Any:
        """Return ``use(self, x_BTD, batch)``; calling the head rather than ``use`` runs the module's hooks."""
        return use(self, x_BTD, batch)

    def forward_normed(
        self, use: Callable[[Any, Tensor, Batch], Any], x_BTD: Tensor, normed_BTD: Tensor, batch: Batch
    ) -> Any:
        """Return ``use(self, x_BTD, batch)``, for which ``prepare`` takes the norm of ``x_BTD`` as given."""
        self._known = x_BTD, normed_BTD
        try:
            return use(self, x_BTD, batch)
        finally:
            self._known = None

    def draw(self, draw: Draw) -> None:
        """Initialize the bias and an untied table, whose padding rows become zero."""
        draw.constant(self.bias, 0.0)
        if not self.is_tied:
            draw.normal(self.table, "table", self.std, num_rows=self.vocab_size)
        elif self._holds_copy:
            draw.constant(self.table, 0.0)

    def tie(self, table: nn.Parameter) -> tuple[Tensor, ...]:
        """Share the storage of the embedding's ``table`` ``[V padded, D]``, with a separate gradient, if tied.

        After ``hold_copy``, copy its values instead, unless another rank holds the table. Return what shares it.
        """
        if not self._holds_copy and self.is_tied:
            self.table = nn.Parameter(table.detach())
            return (self.table,)
        if self._holds_copy and not table.is_meta:
            with torch.no_grad():
                local(self.table).copy_(local(table))
        return ()

    def hold_copy(self) -> None:
        """Allocate separate memory for the table of a tied head, into which ``tie`` copies from now on."""
        if self.is_tied:
            self.table = nn.Parameter(torch.empty_like(self.table))
            self._holds_copy = True

    def first_tokens(self, x_BTD: Tensor, firsts_S: Tensor) -> Tensor:
        """Return the normalized hidden states of the sequences' first tokens, ``[S, D]``."""
        first_SD: Tensor = self.norm(tokens_at(x_BTD, firsts_S))
        return first_SD

    def last_tokens(self, x_BTD: Tensor, batch: Batch) -> Tensor:
        """Return the normalized hidden states of the sequences' last tokens, ``[S, D]``."""
        last_SD: Tensor = self.norm(tokens_at(x_BTD, batch["firsts"] + batch["lengths"] - 1))
        return last_SD

    def prepare(self, x: Tensor) -> Tensor:
        """Return the input of the output projection ``[..., D]`` for hidden states ``[..., D]``."""
        if self._known is not None and self._known[0] is x:
            return self._known[1]
        prepared: Tensor = self.norm(x)
        return prepared

    @property
    def columns(self) -> Columns:
        """This rank's columns of the output projection."""
        if not is_cut(self.table):
            return Columns(self.table, self.bias, self.vocab_size, cap=self.cap, table=self.table)
        cut, weight = cut_of(self.table), local(self.table)
        first = cut.rank * len(weight)
        num_real = min(max(self.vocab_size - first, 0), len(weight))
        bias = None if self.bias is None else enter(self.bias, cut)[first : first + num_real]
        return Columns(weight, bias, num_real, first, cut, self.cap, self.table)

    def logits(self, x_ND: Tensor) -> Tensor:
        """Return the logits ``[..., V]`` in fp32, without padding, for hidden states; without gradients if split."""
        x_ND, table, size = self.prepare(x_ND), self.table, self.vocab_size
        bias = None if self.bias is None else self.bias.to(x_ND.dtype)
        if not is_cut(table):
            logits = functional.linear(x_ND, table[:size].to(x_ND.dtype), bias).float()
        else:
            own = functional.linear(x_ND, local(table).to(x_ND.dtype))
            dtype = torch.float32 if bias is None else x_ND.dtype  # in which the bias is added
            logits = gather_columns(own, cut_of(table), dtype)[..., :size]
            logits = (logits if bias is None else logits + bias).float()
        return logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)


class CausalHead(OutputHead):
    """GPT's head: a norm and the output table.

    Args:
        hidden_size: D.
        vocab_size: size of the vocabulary, without padding.
        epsilon: of the final layer norm.
        norm: another final norm instead, which maps each token separately.
        options: see ``OutputHead``.
    """

    def __init__(
        self, hidden_size: int, vocab_size: int, *, epsilon: float = 1e-5, norm: nn.Module | None = None, **options: Any
    ) -> None:
        super().__init__(hidden_size, vocab_size, norm=norm or LayerNorm(hidden_size, epsilon=epsilon), **options)

    def cross_entropy(self, x_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the summed cross-entropy, an fp32 scalar in nats; targets of -100 are ignored."""
        x_ND = self.prepare(x_BTD).flatten(0, 1)
        return linear_cross_entropy(x_ND, targets_BT.flatten(), self.columns, self.vocabulary_chunks)[0]

    def regularized_cross_entropy(
        self, x_BTD: Tensor, targets_BT: Tensor, *, weights_BT: Tensor | None = None, z_weight: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Return the weighted and the unweighted sum of the tokens' cross-entropies, or, with a z-loss, another sum.

        Both are fp32 scalars, the second without a gradient; targets of -100 are ignored.

        Args:
            x_BTD: hidden states.
            targets_BT: int64.
            weights_BT: fp32; None: all 1.
            z_weight: if not 0, the second sum is that of the squared log-sums of exponentials, and the gradient of the
                first is that of both, the second times this.
        """
        x_ND, weights_N = self.prepare(x_BTD).flatten(0, 1), None if weights_BT is None else weights_BT.flatten()
        given = (x_ND, targets_BT.flatten(), self.columns, self.vocabulary_chunks)
        return linear_cross_entropy(*given, weights_N=weights_N, z_weight=z_weight)

    @torch.no_grad()
    def token_losses(self, x_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """Return each token's cross-entropy ``[B, T]``, fp32, in nats; 0 where the target is -100."""
        x_ND = self.prepare(x_BTD).flatten(0, 1)
        return token_losses(x_ND, targets_BT.flatten(), self.columns, self.vocabulary_chunks).view_as(targets_BT)


def tokens_at(x_BT: Tensor, indices_P: Tensor) -> Tensor:
    """Return the entries of ``[B, T, ...]`` at flat indices, ``[P, ...]``.

    Args:
        x_BT: of any dtype.
        indices_P: int64, flat indices of the B·T tokens, on the device of ``x_BT`` or in host memory.
    """
    if indices_P.device != x_BT.device:
        indices_P = copied_to(x_BT.device, indices_P)
    return x_BT.flatten(0, 1).index_select(0, indices_P)


def sequence_indices(batch: Batch, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the flat indices of the tokens of a batch's sequences, one sequence per row.

    Returns:
        int64 ``[S, T]``, T being the length of the longest: flat indices of the tokens, 0 beyond a sequence's end;
        and bool ``[S, T]``, True beyond a sequence's end. Both on ``device``.
    """
    firsts_S, lengths_S = batch["firsts"], batch["lengths"]
    positions_T = torch.arange(int(lengths_S.max()), device=lengths_S.device)
    outside_ST = positions_T >= lengths_S[:, None]
    flat_ST = (firsts_S[:, None] + positions_T).masked_fill(outside_ST, 0)
    if flat_ST.device == device:
        return flat_ST, outside_ST
    return copied_to(device, flat_ST), copied_to(device, outside_ST)


class Transform(nn.Module):
    """Dense layer, activation and norm before the table (Devlin et al. 2019)."""

    def __init__(self, hidden_size: int, *, activation: str, epsilon: float, std: float, bias: bool = True) -> None:
        super().__init__()
        self.dense = Linear(hidden_size, hidden_size, std=std, bias=bias)
        self.activation = activation
        self.norm = LayerNorm(hidden_size, epsilon=epsilon, has_bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., D]`` to ``[..., D]``."""
        y: Tensor = self.norm(activated(self.dense, x, self.activation))
        return y


class EncoderHead(OutputHead):
    """BERT's heads (Devlin et al. 2019). Index tensors are int64 and hold flat indices of the B·T tokens.

    ::

        x_BTD --predictions_P--> x_PD -> dense, activation, norm -> tied table, bias -> loss, number correct
        x_BTD --firsts_S-------> x_SD -> pooler: dense, tanh     -> dense, 2 logits  -> loss, number correct

    Only the tokens to predict, about a seventh, are gathered and multiplied by the table.

    Args:
        hidden_size: D.
        vocab_size: size of the vocabulary, without padding.
        transform: the layers before the table, if any.
        bias: whether each token of the vocabulary has a bias.
        relates: whether to add a pooler and a classifier of pairs.
        std: standard deviation of the initial weights of those two.
        norm: final layer norm (pre-norm models).
    """

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        *,
        transform: Transform | None,
        bias: bool,
        relates: bool,
        std: float,
        norm: LayerNorm | None = None,
    ) -> None:
        super().__init__(hidden_size, vocab_size, bias=bias, norm=norm, std=std)
        self.transform = transform or nn.Identity()
        self.pooler = Linear(hidden_size, hidden_size, std=std) if relates else None
        self.classifier = Linear(hidden_size, 2, std=std) if relates else None

    def prepare(self, x: Tensor) -> Tensor:
        """Return the input of the output projection ``[..., D]`` for hidden states ``[..., D]``."""
        prepared: Tensor = self.transform(self.norm(x))
        return prepared

    def predict(self, x_BTD: Tensor, predictions_P: Tensor, targets_P: Tensor) -> tuple[Tensor, Tensor]:
        """Score the tokens at ``predictions``; targets of -100 are ignored.

        Returns:
            The summed cross-entropy in nats and the number of targets that have the largest logit, the first of ties;
            fp32 scalars, the second without a gradient.
        """
        x_PD = self.prepare(tokens_at(x_BTD, predictions_P))
        return linear_cross_entropy(x_PD, targets_P, self.columns, self.vocabulary_chunks, with_count=True)

    @torch.no_grad()
    def token_losses(self, x_BTD: Tensor, predictions_P: Tensor, targets_P: Tensor) -> Tensor:
        """Return the cross-entropy at each of ``predictions``, ``[P]`` fp32, in nats; 0 where the target is -100."""
        x_PD = self.prepare(tokens_at(x_BTD, predictions_P))
        return token_losses(x_PD, targets_P, self.columns, self.vocabulary_chunks)

    def pooled(self, x_BTD: Tensor, firsts_S: Tensor) -> Tensor:
        """Return the pooled first token of each sequence, ``[S, D]``."""
        assert self.pooler is not None, "the model has no pooler"
        return torch.tanh(self.pooler(self.first_tokens(x_BTD, firsts_S)))

    def relate(self, x_BTD: Tensor, firsts_S: Tensor, labels_S: Tensor) -> tuple[Tensor, Tensor]:
        """Score pairs of texts: label 0 if the second follows the first, 1 if not; labels of -100 are ignored.

        Returns:
            The summed cross-entropy in nats and the number of correct predictions; fp32 scalars, the second without a
            gradient.
        """
        assert self.classifier is not None, "the model has no classifier of pairs"
        logits_S2 = self.classifier(self.pooled(x_BTD, firsts_S)).float()
        loss = functional.cross_entropy(logits_S2, labels_S, ignore_index=NOT_SCORED, reduction="sum")
        return loss, (logits_S2.argmax(1) == labels_S).sum().float()
