"""The generation loop: ids in, ids out, for many texts at a time, and the decoders, which compute logits.

    prompts -> decoder.start -> logits -> chooser -> ids -> decoder.advance -> logits -> ...
                                             |
                                             +--> on_token(row, id), which may end a row

A row that ends leaves the batch, so that the others become faster. A decoder computes one token of each text per call:

    start([[5, 9], [7]])   reads all prompts at once     -> logits [2, V]
    advance([3, 8])        adds a token to each text                  -> logits [2, V]
    keep([1])              drops the texts that have ended

When a text outgrows the model's position table, its oldest half is dropped: the last ``max_positions // 2`` tokens are
read again, from position 0, and generation continues, so that the cost per token hardly depends on the length of the
text. The price: the model then sees between half a window and a whole one. (Shifting the window by one token would
always show it a whole one, but read all of it for every token.) Both decoders do this alike: `CachedDecoder` caches
keys and values; `PlainDecoder` recomputes everything for every token, works for any model, and is the reference in the
tests of the first.
"""

import functools
import logging
import random
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from hornbook.config.generation import Sampling
from hornbook.generate.incremental_model import Cache, Columns, IncrementalModel, incremental_model
from hornbook.generate.sampling import Chooser, draws_of
from hornbook.model import LanguageModel
from hornbook.model.head import tokens_at
from hornbook.model.language_model import Forward, evaluation_mode, forward_resident
from hornbook.ops.attention import document_mask
from hornbook.samples.given import decoder_batch

_logger = logging.getLogger("hornbook.generate")
OnToken = Callable[[int, int], bool]
"""Called with (row, id) for every chosen id, including stop ids; returning True ends that text."""


class Decoder(Protocol):
    """A map from texts, as ids, to logits; it holds one batch at a time."""

    def start(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Tensor:
        """Return the logits ``[B, V]``, fp32, of the tokens after the prompts.

        Args:
            prompts: at least one id each; only the last ``max_positions`` count.
            num_tokens: the most tokens to be added.
        """
        ...

    def advance(self, ids: Sequence[int]) -> Tensor:
        """Add an id to each text and return the logits ``[B, V]``, fp32, of the tokens after them."""
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        ...


def make_decoder(model: LanguageModel, forward: Forward = forward_resident) -> Decoder:
    """Return the fastest decoder that the model allows.

    Args:
        model: in evaluation mode. If a block does not promise that new tokens and a cache suffice (see
            `hornbook.model.incremental`), every token recomputes the whole window, and a warning is logged once.
        forward: runs the model on a batch. Only a resident model has all weights in memory, which a cache needs.
    """
    quick = incremental_model(model) if forward is forward_resident else "a model that is not whole in memory"
    if isinstance(quick, IncrementalModel):
        return CachedDecoder(quick)
    _warn_once(f"generation computes the whole window for every token: {quick} keeps no keys and values")
    return PlainDecoder(model, forward)


@functools.cache
def _warn_once(message: str) -> None:
    _logger.warning(message)


class CachedDecoder:
    """A decoder that keeps the keys and values of earlier tokens in one `Cache` per batch."""

    def __init__(self, model: IncrementalModel) -> None:
        self._model, self._device = model, model.device
        self._windows: list[list[int]] = []

    def start(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Tensor:
        model = self._model
        self._windows = [list(prompt[-model.max_positions :]) for prompt in prompts]
        lengths = [len(window) for window in self._windows]
        longest = max(lengths)
        self.cache = Cache(
            lengths,
            capacity=min(longest + num_tokens, model.max_positions + model.max_positions // 2 + 1),
            dtype=model.cache_dtype,
            device=self._device,
        )
        padded = [[0] * (longest - len(window)) + window for window in self._windows]
        tokens_BT, starts_B = (torch.tensor(ids, device=self._device) for ids in (padded, self.cache.starts))
        places_BT = torch.arange(longest, device=self._device) - starts_B.unsqueeze(1)
        # padding attends to padding, since the softmax of a row of only -inf would be NaN
        mask = document_mask(places_BT >= 0) if min(lengths) < longest else None
        return model.logits(tokens_BT, places_BT.clamp(min=0), Columns(self.cache, self.cache.first, mask))

    def advance(self, ids: Sequence[int]) -> Tensor:
        restarts = {}
        for row, (window, token) in enumerate(zip(self._windows, ids, strict=True)):
            window.append(token)
            if forget_half(window, self._model.max_positions):
                restarts[row] = len(window)
        cache = self.cache
        cache.append(restarts)
        tokens_B1 = torch.tensor(ids, device=self._device).unsqueeze(1)
        logits_BV = self._model.logits(tokens_B1, cache.positions_B1, Columns(cache, cache.first, cache.mask()))
        for row in restarts:
            tokens_1T = torch.tensor([self._windows[row]], device=self._device)
            positions_1T = torch.arange(tokens_1T.shape[1], device=self._device).unsqueeze(0)
            read_again_1V = self._model.logits(tokens_1T, positions_1T, Columns(cache, cache.starts[row], row=row))
            logits_BV = logits_BV.index_copy(0, torch.tensor([row], device=self._device), read_again_1V)
        return logits_BV

    def keep(self, rows: Sequence[int]) -> None:
        self._windows = [self._windows[row] for row in rows]
        self.cache.keep(rows)


class PlainDecoder:
    """A decoder that recomputes the whole window for every token: slow, but correct for any causal model.

    Rows are padded on the right, to which a causal model does not attend.
    """

    def __init__(self, model: LanguageModel, forward: Forward = forward_resident) -> None:
        self._model, self._forward = model, forward
        self._windows: list[list[int]] = []

    def start(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Tensor:
        self._windows = [list(prompt[-self._model.max_positions :]) for prompt in prompts]
        return self._logits()

    def advance(self, ids: Sequence[int]) -> Tensor:
        for window, token in zip(self._windows, ids, strict=True):
            window.append(token)
            forget_half(window, self._model.max_positions)
        return self._logits()

    def keep(self, rows: Sequence[int]) -> None:
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
    """Cut a window that is longer than the position table to its last half; return whether it was."""
    if len(window) <= max_positions:
        return False
    del window[: -max(1, max_positions // 2)]
    return True


def generate(
    model: LanguageModel,
    prompt: Sequence[int],
    *,
    num_tokens: int,
    seed: int,
    vocab_size: int | None = None,
    sampling: Sampling | None = None,
    stop_id: int | None = None,
    forward: Forward = forward_resident,
) -> list[int]:
    """Return up to ``num_tokens`` ids that continue ``prompt``.

    Args:
        model: left in its current mode.
        prompt: at least one id; only the last ``max_positions`` count.
        num_tokens: number of ids to add.
        seed: seed of the draws.
        vocab_size: only smaller ids are chosen, for a tokenizer with fewer than the model; None for the model's.
        sampling: how to choose ids.
        stop_id: id that ends the text; it is not returned.
        forward: runs the model on a batch.
    """
    with evaluation_mode(model):
        (ids,) = generate_batch(
            make_decoder(model, forward),
            [prompt],
            num_tokens=num_tokens,
            vocab_size=min(model.vocab_size, vocab_size or model.vocab_size),
            draws=[draws_of(seed, prompt)],
            sampling=sampling,
            stop_id=stop_id,
        )
    return ids


def generate_batch(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    *,
    num_tokens: int,
    vocab_size: int,
    draws: Sequence[random.Random],
    sampling: Sampling | None = None,
    stop_id: int | None = None,
    on_token: OnToken | None = None,
) -> list[list[int]]:
    """Return up to ``num_tokens`` ids for each prompt; in fp32, the same ids as for each prompt alone.

    (The last bits of sums depend on the number of rows, so ids may differ if two candidates are equally likely to six
    digits.)

    Args:
        decoder: decoder of a model in evaluation mode.
        prompts: at least one id each.
        num_tokens: number of ids to add.
        vocab_size: only smaller ids are chosen.
        draws: the numbers of each row, see ``draws_of``.
        sampling: how to choose ids.
        stop_id: id that ends a text; it is not returned.
        on_token: called for every chosen id; may end a text.

    Raises:
        NotFiniteError: the model's logits are not finite.
    """
    assert all(prompts), "a prompt needs at least one id"
    ids: list[list[int]] = [[] for _ in prompts]
    active = list(range(len(prompts))) if num_tokens > 0 else []
    if not active:
        return ids
    chooser = Chooser(sampling or Sampling(), prompts, draws, vocab_size=vocab_size)
    logits_BV = decoder.start(prompts, num_tokens)
    for number in range(1, num_tokens + 1):
        chosen = chooser.choose(logits_BV)
        going = []
        for slot, (row, token) in enumerate(zip(active, chosen, strict=True)):
            has_ended = on_token is not None and on_token(row, token)
            if token == stop_id:
                continue
            ids[row].append(token)
            if not has_ended:
                going.append(slot)
        if not going or number == num_tokens:
            break
        if len(going) < len(active):
            decoder.keep(going)
            chooser.keep(going)
            active, chosen = [active[slot] for slot in going], [chosen[slot] for slot in going]
        logits_BV = decoder.advance(chosen)
    return ids
