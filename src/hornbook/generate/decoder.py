"""The next token's logits for a batch of texts that grow, one token a call.

    start([[5, 9], [7]])   reads the prompts, all of them at once     -> logits [2, V]
    advance([3, 8])        adds a token to each text                  -> logits [2, V]
    keep([1])              forgets the texts that ended

A text that outgrows the model's position table forgets its oldest half: the last ``max_positions // 2`` tokens are
read again, from position 0, and on it goes, so that a token costs much the same however long the text is. The price:
the model then sees between half a window and a whole one. (Shifting the window by one token would always show it a
whole one, and read all of it for every token.) Both decoders do so alike: `CachedDecoder` keeps keys and values;
`PlainDecoder` computes everything again for every token, which any model can, and is what the first is tested
against.
"""

import functools
import logging
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from hornbook.generate.cache import Cache
from hornbook.generate.incremental_model import IncrementalModel, incremental
from hornbook.model import LanguageModel
from hornbook.model.forward import Forward, forward_resident
from hornbook.model.head import tokens_at
from hornbook.ops.attention import document_mask
from hornbook.samples.given import decoder_batch

_logger = logging.getLogger("hornbook.generate")


class Decoder(Protocol):
    """What turns texts, as ids, into logits; it holds one batch at a time."""

    def start(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Tensor:
        """Return the logits ``[B, V]``, fp32, of the tokens after the prompts.

        Args:
            prompts: at least one id each; ids before the last ``max_positions`` do not count.
            num_tokens: at most so many will be added.
        """
        ...

    def advance(self, ids: Sequence[int]) -> Tensor:
        """Add an id to each text and return the logits ``[B, V]``, fp32, of the tokens after them."""
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with these rows alone, in their order."""
        ...


def make_decoder(model: LanguageModel, forward: Forward = forward_resident) -> Decoder:
    """Return the fastest decoder that the model allows.

    Args:
        model: in evaluation mode. If a block keeps no keys and values (see `hornbook.model.incremental`), every token
            computes the whole window, and a warning says so once.
        forward: takes a batch through the model. Only a resident model has all weights at hand, which a cache needs.
    """
    quick = incremental(model) if forward is forward_resident else "a model that is not whole in memory"
    if isinstance(quick, IncrementalModel):
        return CachedDecoder(quick)
    _warn_once(f"generation computes the whole window for every token: {quick} keeps no keys and values")
    return PlainDecoder(model, forward)


@functools.cache
def _warn_once(message: str) -> None:
    _logger.warning(message)


class CachedDecoder:
    """Keeps the keys and values of earlier tokens in one `Cache` a batch."""

    def __init__(self, model: IncrementalModel) -> None:
        self._model, self._device = model, model.device
        self._windows: list[list[int]] = []

    def start(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Tensor:
        """See ``Decoder``."""
        model = self._model
        self._windows = [list(prompt[-model.max_positions :]) for prompt in prompts]
        lengths = [len(window) for window in self._windows]
        longest = max(lengths)
        self.cache = Cache(
            model.cache_shapes,
            lengths,
            capacity=min(longest + num_tokens, model.max_positions + model.max_positions // 2 + 1),
            dtype=model.cache_dtype,
            device=self._device,
        )
        tokens_BT = self._tensor([[0] * (longest - len(window)) + window for window in self._windows])
        places_BT = torch.arange(longest, device=self._device) - self._tensor(self.cache.starts).unsqueeze(1)
        mask = padding_mask(places_BT >= 0) if min(lengths) < longest else None
        return model.logits(tokens_BT, places_BT.clamp(min=0), self.cache.columns(), mask)

    def advance(self, ids: Sequence[int]) -> Tensor:
        """See ``Decoder``."""
        restarts = {}
        for row, (window, token) in enumerate(zip(self._windows, ids, strict=True)):
            window.append(token)
            if forget_half(window, self._model.max_positions):
                restarts[row] = len(window)
        cache = self.cache
        cache.append(restarts)
        tokens_B1 = self._tensor(ids).unsqueeze(1)
        logits_BV = self._model.logits(tokens_B1, cache.positions_B1, cache.columns(), cache.mask())
        for row in restarts:
            logits_BV = logits_BV.index_copy(0, self._tensor([row]), self._read_again(row))
        return logits_BV

    def keep(self, rows: Sequence[int]) -> None:
        """See ``Decoder``."""
        self._windows = [self._windows[row] for row in rows]
        self.cache.keep(rows)

    def _read_again(self, row: int) -> Tensor:
        tokens_1T = self._tensor([self._windows[row]])
        positions_1T = torch.arange(tokens_1T.shape[1], device=self._device).unsqueeze(0)
        return self._model.logits(tokens_1T, positions_1T, self.cache.columns_of(row))

    def _tensor(self, ids: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(ids, device=self._device)


class PlainDecoder:
    """Computes the whole window for every token: slow, and right for any causal model.

    Rows are padded on the right, where a causal model does not look.
    """

    def __init__(self, model: LanguageModel, forward: Forward = forward_resident) -> None:
        self._model, self._forward = model, forward
        self._windows: list[list[int]] = []

    def start(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Tensor:
        """See ``Decoder``."""
        self._windows = [list(prompt[-self._model.max_positions :]) for prompt in prompts]
        return self._logits()

    def advance(self, ids: Sequence[int]) -> Tensor:
        """See ``Decoder``."""
        for window, token in zip(self._windows, ids, strict=True):
            window.append(token)
            forget_half(window, self._model.max_positions)
        return self._logits()

    def keep(self, rows: Sequence[int]) -> None:
        """See ``Decoder``."""
        self._windows = [self._windows[row] for row in rows]

    def _logits(self) -> Tensor:
        batch = decoder_batch(self._windows)
        longest = batch["tokens"].shape[1]
        lasts_B = torch.tensor([row * longest + len(window) - 1 for row, window in enumerate(self._windows)])
        logits_BV: Tensor = self._forward(
            self._model, batch, lambda head, x_BTD, _: head.logits(tokens_at(x_BTD, lasts_B))
        )
        return logits_BV


def forget_half(window: list[int], max_positions: int) -> bool:
    """Cut a window that is longer than the position table to its last half; tell whether it was."""
    if len(window) <= max_positions:
        return False
    del window[: -max(1, max_positions // 2)]
    return True


def padding_mask(is_token_BT: Tensor) -> Tensor:
    """Return ``[B, 1, T, T]`` bool: causal, and from tokens (True in ``is_token_BT``) to tokens only.

    Padding looks at padding: it has to look at something, since a row of nothing but -inf would become NaN.
    """
    return document_mask(is_token_BT)
