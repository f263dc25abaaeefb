"""Generation as its definition has it, one whole forward pass a token, and a model to try it on."""

from collections.abc import Sequence

import torch
from tiny import hidden_states, randomize, tiny_model

from hornbook.model import LanguageModel


def lively_model(**changes) -> LanguageModel:
    """A tiny model in evaluation mode; its padding rows would win every draw if they took part.

    Its blocks and positions count for more than its tokens, or else greedy texts would repeat one token.
    """
    model = tiny_model(residual_dropout=0.5, attention_dropout=0.5, **changes)
    randomize(model)
    vocab_size = model.vocab_size
    with torch.no_grad():
        model.embedding.positions *= 4.0
        for block in model.blocks:
            block.attention.out.weight *= 4.0
            block.feed_forward.down.weight *= 4.0
        padding = model.embedding.tokens[vocab_size:]
        padding.copy_(100.0 * model.embedding.tokens[: len(padding)].sign())
    return model.eval()


@torch.no_grad()
def logits_after(model: LanguageModel, ids: Sequence[int]) -> torch.Tensor:
    """The logits ``[V]`` of the token after a window."""
    batch = {"tokens": torch.tensor([list(ids)]), "positions": torch.arange(len(ids))[None]}
    return model.head.logits(hidden_states(model, {**batch, "keys": torch.zeros_like(batch["tokens"])}))[0, -1]


def greedy(model: LanguageModel, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """The likeliest ids; a window that outgrows the positions is cut to its last half."""
    window, ids = list(prompt[-model.max_positions :]), []
    for _ in range(num_tokens):
        ids.append(int(logits_after(model, window).argmax()))
        window.append(ids[-1])
        if len(window) > model.max_positions:
            window = window[-max(1, model.max_positions // 2) :]
    return ids
