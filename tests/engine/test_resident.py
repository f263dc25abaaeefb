"""Gradients that add up over tokens and micro-batches: bf16 comes near fp32 for every parameter of every family.

Tokens, targets and pairs are skewed as text is, so that gradients have a mean that grows with the number of tokens:
those are the sums that a narrow accumulator loses. Evenly random targets nearly cancel, and show rounding instead.
"""

from collections.abc import Callable

import pytest
import torch
from cases import mostly_slow
from tiny import fresh_state, randomize, split, tiny_model
from tiny_encoders import lay_out, make_samples, tiny_encoder
from torch import Tensor

from hornbook.config import ClassificationConfig, SpanConfig
from hornbook.engine.step import resident
from hornbook.model import LanguageModel
from hornbook.objective import CausalLM, MaskedLM, Objective, Pretraining, build_objective
from hornbook.optim.updates import Update
from hornbook.samples.batches import Batch

NUM_TOKENS = 16384
LENGTH = 32
NUM_SAMPLES = NUM_TOKENS // LENGTH
SIZES = {"hidden_size": 32, "num_heads": 2, "max_positions": LENGTH}

Build = Callable[[torch.dtype], LanguageModel]


def skewed(tensor: Tensor, vocab_size: int = 70) -> Tensor:
    """Ids of which small ones are more frequent, and -100 as it was."""
    return torch.where(tensor < 0, tensor, tensor**2 // vocab_size)


def gpt_batches(size: int) -> list[Batch]:
    draws = torch.Generator().manual_seed(0)
    shape = (NUM_SAMPLES, LENGTH)
    tokens, targets = (skewed(torch.randint(70, shape, generator=draws)) for _ in range(2))
    positions = torch.arange(LENGTH).expand(shape).contiguous()
    return split({"tokens": tokens, "targets": targets, "positions": positions, "keys": torch.zeros_like(tokens)}, size)


def encoder_batches(size: int, labels: Tensor, layout: str) -> list[Batch]:
    samples = make_samples([LENGTH] * NUM_SAMPLES)
    for number, sample in enumerate(samples):
        sample.tokens, sample.targets, sample.label = skewed(sample.tokens), skewed(sample.targets), number % 8 // 7
    return [
        lay_out(samples[at : at + size], layout, LENGTH) | {"labels": labels[at : at + size]}
        for at in range(0, NUM_SAMPLES, size)
    ]


def gpt(dtype: torch.dtype) -> LanguageModel:
    model = tiny_model(compute_dtype=dtype, **SIZES)
    randomize(model, scale=0.05)
    return model


def encoder(family: str, **changes: object) -> Build:
    return lambda dtype: tiny_encoder(family, scale=0.05, compute_dtype=dtype, **SIZES, **changes)


NUMBERS = torch.arange(NUM_SAMPLES)
CLASSES = NUMBERS % 8 // 6
SPANS = torch.stack([NUMBERS % 3, 4 + NUMBERS % 5], 1)
CASES: dict[str, tuple[Build, Objective]] = {
    "gpt": (gpt, CausalLM()),
    "bert": (encoder("bert"), Pretraining()),
    "roberta": (encoder("roberta"), MaskedLM()),
    "groupbert": (encoder("groupbert"), Pretraining()),
    "classification": (encoder("bert", head="classification", num_labels=3), build_objective(ClassificationConfig())),
    "span": (encoder("bert", head="span"), build_objective(SpanConfig())),
}


def gradients(case: str, dtype: torch.dtype, size: int = NUM_SAMPLES, layout: str = "padded") -> dict[str, Tensor]:
    """The gradient of each parameter, in micro-batches of ``size`` samples."""
    build, objective = CASES[case]
    model = build(dtype)
    labels = SPANS if case == "span" else CLASSES
    batches = gpt_batches(size) if case == "gpt" else encoder_batches(size, labels, layout)
    counts = {name: sum(objective.counts(batch)[name] for batch in batches) for name in objective.weights}
    state, begun = fresh_state(model, Update(states=lambda *_: {}, apply=lambda *_: None)), []
    resident(state, batches, objective, counts, begun.append)
    assert begun == list(range(len(batches)))
    return {name: parameter.grad for name, parameter in model.own_parameters() if parameter.grad is not None}


def errors(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, float]:
    """L2 norm of each parameter's difference as a share of the norm; key biases, whose gradient is zero, apart."""
    assert ours.keys() == theirs.keys()
    pairs = {name: (ours[name].double(), theirs[name].double()) for name in ours}
    for name in pairs:
        if name.endswith("qkv.bias"):
            pairs[name] = tuple(side.view(3, -1)[[0, 2]] for side in pairs[name])
    return {name: float((first - second).norm() / second.norm()) for name, (first, second) in pairs.items()}


def too_large(found: dict[str, float], bound: float) -> dict[str, float]:
    assert len(found) > 20
    return {name: error for name, error in found.items() if not error <= bound}


@pytest.mark.parametrize("case", mostly_slow(["bert", *(case for case in CASES if case not in ("bert", "span"))]))
def test_bf16_gradients_of_16384_tokens_are_within_1_percent_of_fp32(case):
    """Spans are left out: their logits' gradients cancel over a sequence, so those of biases are rounding."""
    precise, rough = (gradients(case, dtype) for dtype in (torch.float32, torch.bfloat16))
    assert not too_large(errors(rough, precise), 0.01)


@pytest.mark.parametrize("case", mostly_slow(CASES))
def test_micro_batches_change_bf16_gradients_by_rounding_only(case):
    whole = gradients(case, torch.bfloat16)
    parts = gradients(case, torch.bfloat16, size=32)
    assert not too_large(errors(parts, whole), 0.01)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["groupbert", "bert"])
def test_bf16_gradients_of_unpadded_batches(case):
    precise, rough = (gradients(case, dtype, layout="unpadded") for dtype in (torch.float32, torch.bfloat16))
    assert not too_large(errors(rough, precise), 0.01)
