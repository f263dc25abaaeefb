"""Text from a model, one token at a time.

Each token is drawn from ``softmax(logits / temperature)`` over the ``top_k`` likeliest, with a generator seeded by
(seed, number of the token), so that a text is a function of model, prompt and seed. The whole context is computed again
for every token; prompts longer than the position table are cut from the left.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from hornbook.model import LanguageModel
from hornbook.model.initialize import generator


@torch.no_grad()
def generate(
    model: LanguageModel,
    prompt: Sequence[int],
    *,
    num_tokens: int,
    seed: int,
    temperature: float = 0.8,
    top_k: int | None = 50,
    stop_id: int | None = None,
) -> list[int]:
    """Return up to ``num_tokens`` ids that continue ``prompt``.

    Args:
        model: left in the mode in which it came.
        prompt: at least one id.
        num_tokens: how many ids to add.
        seed: of the draws.
        temperature: divides the logits; 0 takes the likeliest token each time.
        top_k: how many of the likeliest tokens to draw from; None for all.
        stop_id: end when this id is drawn; it is not returned.
    """
    was_training = model.training
    model.eval()
    ids = list(prompt)
    for index in range(num_tokens):
        logits_V = _next_logits(model, ids[-model.max_positions :])
        drawn = choose(logits_V, temperature=temperature, top_k=top_k, draws=generator(seed, f"generate.{index}"))
        if drawn == stop_id:
            break
        ids.append(drawn)
    model.train(was_training)
    return ids[len(prompt) :]


def choose(logits_V: Tensor, *, temperature: float, top_k: int | None, draws: torch.Generator) -> int:
    """Draw one id from ``softmax(logits / temperature)`` over the ``top_k`` likeliest ids."""
    if temperature == 0.0:
        return int(logits_V.argmax())
    kept = torch.topk(logits_V, min(top_k or len(logits_V), len(logits_V)))
    probabilities = torch.softmax(kept.values.double() / temperature, 0)
    return int(kept.indices[torch.multinomial(probabilities, 1, generator=draws)])


def _next_logits(model: LanguageModel, ids: Sequence[int]) -> Tensor:
    device = model.embedding.tokens.device
    tokens_BT = torch.tensor([ids], device=device)
    positions_BT = torch.arange(len(ids), device=device).unsqueeze(0)
    batch = {"tokens": tokens_BT, "positions": positions_BT, "keys": torch.zeros_like(tokens_BT)}
    x_BTD = model.trunk(batch)
    return model.head.logits(x_BTD[0, -1]).cpu()
