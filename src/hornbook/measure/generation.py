"""Time greedy generation with random weights, alone or compared with a peer.

    first token   |prompts|                     one call for one token
    a token                |t|t|t|t|t|t|        (a call for N - a call for one) / (N - 1)

Contenders alternate in every round, so that other load affects all of them; results are medians. No files are written.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from hornbook.config import EncoderConfig, Recipe
from hornbook.errors import UserError
from hornbook.generate import Sampling, draws_of, generate_batch, make_decoder
from hornbook.measure.throughput import timed
from hornbook.model import initialize, model_of
from hornbook.model.initialize import generator
from hornbook.parallel.device import compute_dtype

Generate = Callable[[int], object]
"""Generates the given number of tokens for the same prompts."""


@dataclass(frozen=True, kw_only=True)
class GenerationSpeed:
    """The speed of generation, medians over the rounds."""

    first_token_seconds: float
    """Time to process the prompts and generate the first token of each."""
    token_seconds: float | None
    """Time for a further token of all texts of the batch; None if it is below the noise of the machine."""
    tokens_per_second: float | None
    """Tokens of all texts of the batch per second, after the first."""


def measure_generation(
    contenders: Mapping[str, Generate], *, batch_size: int, num_tokens: int, device: torch.device, rounds: int
) -> dict[str, GenerationSpeed]:
    """Time the contenders, alternating, in ``rounds`` rounds after one warm-up round.

    Args:
        contenders: by name.
        batch_size: number of texts that each generates at once.
        num_tokens: new tokens per text, 2 or more.
        device: synchronized before times are taken.
        rounds: 1 or more.
    """
    first: dict[str, list[float]] = {name: [] for name in contenders}
    later: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(1 + rounds):
        for name, write in contenders.items():
            _, one = timed(partial(write, 1), device)
            _, all_tokens = timed(partial(write, num_tokens), device)
            first[name].append(one)
            later[name].append((all_tokens - one) / (num_tokens - 1))
    speeds = {}
    for name in contenders:
        difference = statistics.median(later[name][1:])
        token_seconds = difference if difference > 0 else None
        speeds[name] = GenerationSpeed(
            first_token_seconds=statistics.median(first[name][1:]),
            token_seconds=token_seconds,
            tokens_per_second=batch_size / token_seconds if token_seconds else None,
        )
    return speeds


def hornbook_generate(recipe: Recipe, prompts: Sequence[Sequence[int]], device: torch.device, compute: str) -> Generate:
    """Return hornbook's generation, as in `hornbook generate`, with the recipe's untrained model.

    Args:
        recipe: its ``model.vocab_size`` must be set.
        prompts: token ids.
        device: of the model.
        compute: dtype of the activations.
    """
    assert recipe.model.vocab_size is not None, "the caller fills in the vocabulary"
    with torch.device("meta"):
        model = model_of(recipe, compute_dtype(compute, device)).eval()
    model.allocate(device)
    initialize(model, recipe.training.seed)
    decoder, greedy = make_decoder(model), Sampling(temperature=0.0)

    def write(num_tokens: int) -> object:
        draws = [draws_of(0, prompt) for prompt in prompts]
        return generate_batch(
            decoder, prompts, num_tokens=num_tokens, vocab_size=model.vocab_size, draws=draws, sampling=greedy
        )

    return write


def random_prompts(recipe: Recipe, *, batch_size: int, prompt_length: int, num_tokens: int) -> list[list[int]]:
    """Return random prompts of the same length.

    Raises:
        UserError: prompt and text exceed the model's positions, which contenders handle differently; or the model is an
            encoder.
    """
    if isinstance(recipe.model, EncoderConfig):
        raise UserError(
            f"{recipe.name} is an encoder, which does not generate text: use a decoder's recipe, or bench step"
        )
    if prompt_length + num_tokens > recipe.model.max_positions:
        raise UserError(
            f"{prompt_length} + {num_tokens} tokens exceed the model's {recipe.model.max_positions} positions; "
            "decrease `prompt_length` or `output_length`, or increase `model.max_positions`"
        )
    shape = (batch_size, prompt_length)
    ids: list[list[int]] = torch.randint(
        recipe.model.vocab_size or 1, shape, generator=generator(0, "prompts")
    ).tolist()
    return ids
