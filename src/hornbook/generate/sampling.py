"""Choose the next id from logits: repetition penalty, temperature, top-k, top-p, and one draw per row.

    logits       2.0   1.0   0.5  -1.0        ÷ temperature 0.5
                 4.0   2.0   1.0  -2.0        the 3 most likely, softmax
                 0.84  0.11  0.04   .         the fewest with a sum of at least 0.9
                 0.84  0.11   .     .         u = 0.93 of [0, 0.95)  ->  the second

The order is that of transformers. A row's draws are a function of (seed, prompt, sample number), so that its text does
not depend on its batch: one number in [0, 1) per token, looked up in the cumulative probabilities. The price: Python's
Mersenne Twister draws the numbers one at a time, where a GPU could draw a whole batch.
"""

import hashlib
import math
import random
from collections.abc import Sequence

import torch
from torch import Tensor

from hornbook.config.generation import Sampling
from hornbook.errors import NotFiniteError


class Chooser:
    """The choice of the next ids of a batch of texts.

    Args:
        sampling: how to choose.
        prompts: the initial ids of each text, to which the repetition penalty applies.
        draws: each text's random numbers, see ``draws_of``.
        vocab_size: only smaller ids are chosen.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompts: Sequence[Sequence[int]],
        draws: Sequence[random.Random],
        *,
        vocab_size: int,
    ) -> None:
        self.sampling, self.vocab_size = sampling, vocab_size
        self._draws = list(draws)
        self._seen_BV: Tensor | None = None
        if sampling.repetition_penalty != 1.0:
            self._seen_BV = torch.zeros(len(prompts), vocab_size, dtype=torch.bool)
            for row, prompt in enumerate(prompts):
                self._mark(self._seen_BV, [row] * len(prompt), prompt)

    def choose(self, logits_BV: Tensor) -> list[int]:
        """Return the next id of each row of ``logits_BV``, fp32.

        Raises:
            NotFiniteError: logits are not finite.
        """
        if logits_BV.shape[1] > self.vocab_size:
            logits_BV = logits_BV[:, : self.vocab_size]
        if self._seen_BV is not None:
            self._seen_BV = self._seen_BV.to(logits_BV.device)  # moved once
            logits_BV = penalize(logits_BV, self._seen_BV, self.sampling.repetition_penalty)
        if self.sampling.temperature == 0.0:
            largest_B, ids_B = logits_BV.max(-1)
            _refuse_not_finite(sum(largest_B.tolist()))
            chosen: list[int] = ids_B.tolist()
        else:
            chosen = draw(*candidates(logits_BV, self.sampling), [numbers.random() for numbers in self._draws])
        if self._seen_BV is not None:
            self._mark(self._seen_BV, range(len(chosen)), chosen)
        return chosen

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        self._draws = [self._draws[row] for row in rows]
        if self._seen_BV is not None:
            self._seen_BV = self._seen_BV[list(rows)]

    def _mark(self, seen_BV: Tensor, rows: Sequence[int], ids: Sequence[int]) -> None:
        for row, token in zip(rows, ids, strict=True):
            if token < self.vocab_size:
                seen_BV[row, token] = True


def draws_of(seed: int, prompt: Sequence[int], sample: int = 0) -> random.Random:
    """Return the random numbers for continuation number ``sample`` of ``prompt``."""
    digest = hashlib.sha256(f"generate/{seed}/{sample}/{','.join(map(str, prompt))}".encode()).digest()
    return random.Random(int.from_bytes(digest, "little"))


def penalize(logits_BV: Tensor, seen_BV: Tensor, penalty: float) -> Tensor:
    """Divide the logits of seen tokens by ``penalty`` (Keskar et al. 2019, "CTRL", section 4.1).

    Negative logits are multiplied instead, as in transformers: dividing them, as in the paper, would raise them and so
    favor the token.

    Args:
        logits_BV: ``[B, V]``.
        seen_BV: ``[B, V]`` bool, the tokens of the prompt and the text so far.
        penalty: above 1 discourages repetition, below 1 encourages it.
    """
    return torch.where(seen_BV, torch.where(logits_BV > 0, logits_BV / penalty, logits_BV * penalty), logits_BV)


def candidates(logits_BV: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor | None]:
    """Return the candidates of a draw and their probabilities.

    Returns:
        ``[B, C]`` fp64 on the CPU: probabilities, up to a factor per row; 0 for those that ``top_p`` excludes.
        ``[B, C]`` int64: their ids, most likely first; None if all ids are candidates, in order.
    """
    num_ids, ids_BC = logits_BV.shape[1], None
    top_p = 1.0 if sampling.top_p is None else sampling.top_p
    top_k = min(sampling.top_k or num_ids, num_ids)
    if top_k < num_ids or top_p < 1.0:
        logits_BV, ids_BC = torch.topk(logits_BV, top_k)
        ids_BC = ids_BC.cpu()
    probabilities_BC = torch.softmax(logits_BV.cpu().double() / sampling.temperature, -1)
    if top_p < 1.0:
        likelier_BC = probabilities_BC.cumsum(-1) - probabilities_BC
        probabilities_BC = probabilities_BC.masked_fill(likelier_BC >= top_p, 0.0)
    return probabilities_BC, ids_BC


def draw(probabilities_BC: Tensor, ids_BC: Tensor | None, numbers: Sequence[float]) -> list[int]:
    """Return, for each row, the id whose interval of the cumulative probabilities contains its number in [0, 1).

    Raises:
        NotFiniteError: probabilities are not finite.
    """
    summed_BC = probabilities_BC.cumsum(-1)
    totals_B1 = summed_BC[:, -1:]
    _refuse_not_finite(sum(totals_B1.flatten().tolist()))
    # The first cumulative sum *above* number · total has a positive share, and exists since number < 1.
    targets_B1 = torch.tensor(numbers, dtype=torch.float64).unsqueeze(1) * totals_B1
    columns_B1 = torch.searchsorted(summed_BC, targets_B1, right=True)
    chosen_B1 = columns_B1 if ids_BC is None else ids_BC.gather(1, columns_B1)
    chosen: list[int] = chosen_B1.squeeze(1).tolist()
    return chosen


def _refuse_not_finite(value: float) -> None:
    if not math.isfinite(value):
        raise NotFiniteError("the model's logits are not finite, so no token can be chosen; use an older checkpoint")
