"""Inputs of evaluation tasks: a random model, a tokenizer of 300 tokens, and the plainest way to score a sequence."""

import torch
from tiny import hidden_states, randomize, tiny_config, tiny_model
from tiny_text import SHARED, tiny_tokenizer

from hornbook.config import DataConfig, Recipe
from hornbook.evaluate.tasks import TaskInput
from hornbook.exchange.restore import LoadedModel

WIKITEXT_103 = SHARED / "wikitext" / "wikitext-103" / "wiki.test.tokens"
WIKITEXT_2_RAW = SHARED / "wikitext" / "wikitext-2-raw" / "wiki.test.raw"
LAMBADA = SHARED / "lambada" / "lambada_test.jsonl"
GPT2 = SHARED / "tokenizers" / "gpt2"


def tiny_input(tokenizer=None, *, sequence_length=24, seed=3, vocab_size=None, **options) -> TaskInput:
    """A task's input with a random model of one layer, whose vocabulary is larger than the tokenizer's."""
    tokenizer = tokenizer or tiny_tokenizer()
    changes = {"num_layers": 1, "vocab_size": vocab_size or tokenizer.vocab_size + 5, "max_positions": sequence_length}
    model = tiny_model(seed, **changes)
    randomize(model, seed)
    recipe = Recipe(model=tiny_config(**changes), data=DataConfig(sequence_length=sequence_length))
    loaded = LoadedModel(model=model.eval(), recipe=recipe, tokenizer=tokenizer, step=7, path=SHARED)
    return TaskInput(loaded=loaded, **options)


@torch.no_grad()
def log_probabilities(model, ids) -> torch.Tensor:
    """float64[len(ids), V]: what may come after each token, from all logits of the one sequence at once."""
    tokens = torch.tensor([list(ids)])
    positions = torch.arange(tokens.shape[1])[None]
    batch = {"tokens": tokens, "positions": positions, "keys": torch.zeros_like(tokens)}
    return model.head.logits(hidden_states(model, batch))[0].double().log_softmax(-1)


def values(rows) -> dict[str, float]:
    """Values by metric; a metric occurs once."""
    assert len({row.metric for row in rows}) == len(rows)
    return {row.metric: row.value for row in rows}
