"""Time the training step of a recipe, or greedy generation, alone or compared with a peer.

Contenders run whole steps (batches, forward, backward, clipping, update) on random tokens, alternating, so that other
load affects all of them; results are medians. An encoder's sequences have the lengths of Wikipedia's, and tokens are
counted without padding for all contenders. No files are written.

A run prepares batches in a background thread, in pinned memory for a GPU. Here, the thread would run during another
contender's step, so all contenders make their batches within their steps, in pageable memory. So a run with an idle
core is faster than the benchmark, by the time for making batches.

Generation has random weights, and its contenders alternate as well:

    first token   |prompts|                     one call for one token
    a token                |t|t|t|t|t|t|        (a call for N - a call for one) / (N - 1)
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch

from hornbook.config import DataConfig, EncoderConfig, LabelledConfig, Recipe
from hornbook.engine.build_training import build_loader, build_samples, build_training
from hornbook.engine.state import TrainState
from hornbook.engine.step import train_step
from hornbook.errors import UserError
from hornbook.generate import Sampling, draws_of, generate_batch, make_decoder
from hornbook.model import initialize, model_of
from hornbook.model.initialize import generator
from hornbook.ops.native.kernels import in_use, using
from hornbook.parallel.device import compute_dtype, synchronize
from hornbook.parallel.world import World
from hornbook.run.utilization import Product
from hornbook.samples.batches import Loader
from hornbook.samples.sources import open_sources

_WARM_UP = 2

T = TypeVar("T")

Step = Callable[[], int]
"""Runs a step and returns its number of tokens, without padding."""
Generate = Callable[[int], object]
"""Generates the given number of tokens for the same prompts."""


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """The speed of a step."""

    step_seconds: float
    """Median over the measured steps."""
    tokens_per_second: float
    """Median over the measured steps, without padding."""


def timed(call: Callable[[], T], device: torch.device) -> tuple[T, float]:
    """Return a call's result and its seconds, with the work that it queues on the device."""
    start = time.perf_counter()
    result = call()
    synchronize(device)
    return result, time.perf_counter() - start


def measure_steps(contenders: Mapping[str, Step], world: World, *, rounds: int) -> dict[str, Throughput]:
    """Time the contenders' steps, alternating, in ``rounds`` rounds after two warm-up rounds."""

    def measure(step: Step) -> tuple[float, float]:
        tokens, taken = timed(step, world.device)
        return taken, tokens / taken

    medians = _medians(contenders, measure, _WARM_UP, rounds)
    return {name: Throughput(step_seconds=seconds, tokens_per_second=rate) for name, (seconds, rate) in medians.items()}


def _medians(
    contenders: Mapping[str, T], measure: Callable[[T], tuple[float, float]], warm_up: int, rounds: int
) -> dict[str, tuple[float, float]]:
    """Measure two numbers of each contender in every round, and return their medians without the first rounds."""
    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for _ in range(warm_up + rounds):
        for name, contender in contenders.items():
            rows[name].append(measure(contender))
    median = statistics.median
    pairs = {name: tuple(zip(*found[warm_up:], strict=True)) for name, found in rows.items()}
    return {name: (median(first), median(second)) for name, (first, second) in pairs.items()}


def matrix_product(recipe: Recipe, world: World) -> Product:
    """Return the matrix product of the feed-forward's shape for a micro-batch, in the dtype of the activations."""
    tokens = recipe.training.micro_batch_size * recipe.sequence_length
    return Product.of(recipe, tokens, compute_dtype(recipe.precision.compute, world.device), world.device)


def compare_with_product(recipe: Recipe, step: Throughput, rate: float) -> dict[str, float]:
    """Return ``tflops`` of a step, ``matmul_tflops`` of a product's ``rate`` in FLOP/s, and their ``tflops_ratio``.

    The recipe's model must have ``flops_per_token``; the sequence length is the mean of those in the step.
    """
    flops = recipe.flops_per_token(step.tokens_per_second * step.step_seconds / recipe.training.global_batch_size)
    assert flops is not None, "a product is measured only if the step's FLOPs are known"
    tflops, matmul_tflops = flops * step.tokens_per_second / 1e12, rate / 1e12
    return {"tflops": tflops, "matmul_tflops": matmul_tflops, "tflops_ratio": tflops / matmul_tflops}


def synthetic_loader(recipe: Recipe, world: World) -> Loader:
    """Return a loader of the recipe's batches, one step per item, with random tokens.

    Args:
        recipe: its ``model.vocab_size`` must be set.
        world: determines this rank's share of a batch and, by the device, the default layout of an encoder's batches.

    Raises:
        UserError: the recipe trains on labels, which random tokens do not have.
    """
    if isinstance(recipe.objective, LabelledConfig):
        raise UserError(
            f"steps are measured on random tokens, which have no labels for {recipe.objective.name!r}; add "
            "`objective.name='mlm'`, which differs only in the head"
        )
    data = replace(recipe.data, train=DataConfig.train, weights=DataConfig.weights, synthetic=True)
    recipe = replace(recipe, data=data)
    samples = build_samples(recipe, open_sources(recipe), on_cpu=world.device.type == "cpu")
    return build_loader(recipe, samples, world, prefetch=0)


def hornbook_step(recipe: Recipe, world: World) -> Step:
    """Return the training step of `hornbook train`; arguments as for ``hornbook_training``."""
    return hornbook_training(recipe, world)[1]


def hornbook_training(recipe: Recipe, world: World) -> tuple[TrainState, Step]:
    """Return the state and the training step of `hornbook train`, with the batches made within the step.

    Args:
        recipe: its ``model.vocab_size`` must be set.
        world: has the device and this rank's share.
    """
    state, config = build_training(recipe, 1 << 30, world)
    kernels = in_use()  # other contenders may use other kernels
    loader = synthetic_loader(recipe, world)

    def step() -> int:
        with using(kernels):
            return train_step(state, next(loader), config).size.tokens

    return state, step


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

    def measure(write: Generate) -> tuple[float, float]:
        _, one = timed(partial(write, 1), device)
        _, all_tokens = timed(partial(write, num_tokens), device)
        return one, (all_tokens - one) / (num_tokens - 1)

    speeds = {}
    for name, (first, difference) in _medians(contenders, measure, 1, rounds).items():
        token_seconds = difference if difference > 0 else None
        speeds[name] = GenerationSpeed(
            first_token_seconds=first,
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
