"""Whole forward and backward passes with native operators: no further from fp32 than PyTorch's bf16 is."""

from dataclasses import replace

import pytest
import torch
from cases import mostly_slow
from native_forms import NativeCalls, all_native, forms
from tiny import random_batch, split, tiny_model, tiny_state, tiny_step_config
from tiny_encoders import gradients_of, lay_out, loss_of, make_samples, tiny_encoder

from hornbook.config import MemoryConfig
from hornbook.engine.activations import recompute_layers
from hornbook.engine.step import train_step
from hornbook.ops.native.kernels import instruction_sets, using
from hornbook.samples.windows import NOT_SCORED

OPERATORS = {"linear", "dropout", "attention", "norm", "cross_entropy_"}


def gpt_gradients(dtype, seed=0, memory=None, weights=torch.float32):
    model = tiny_model(compute_dtype=dtype, embedding_dropout=0.1, residual_dropout=0.1, attention_dropout=0.1)
    model.to(weights)
    if memory is not None:
        model.head.vocabulary_chunks = memory.vocabulary_chunks
        recompute_layers(model, memory)
    batch = random_batch(3, 24, unscored=0.2, seed=seed)
    model.train()
    loss = model(lambda head, x_BTD, batch: head.cross_entropy(x_BTD, batch["targets"]), batch)
    loss.backward()
    model.fold_tied_gradients()
    return loss.detach(), {name: parameter.grad for name, parameter in model.own_parameters()}


def encoder_gradients(family, layout, dtype, seed):
    model = tiny_encoder(family, compute_dtype=dtype, attention_dropout=0.1, residual_dropout=0.1)
    batch = lay_out(make_samples([24, 3, 11, 9, 17], seed=seed), layout)
    model.train()
    assert torch.isfinite(loss_of(model, batch))
    return gradients_of(model, batch)


def document_gradients(dtype, seed=0, documents=((0, 0, 7, 7, 8, 9), (3, 4, 5, 5, 6, 6))):
    """Of windows with several documents, ``documents[window]`` for each four tokens."""
    dropped = {"embedding_dropout": 0.1, "residual_dropout": 0.1, "attention_dropout": 0.1}
    model = tiny_model(compute_dtype=dtype, **dropped).train()
    batch = random_batch(2, 24, unscored=0.2, seed=seed)
    batch["documents"] = torch.tensor(documents).repeat_interleave(4, 1)
    loss = model(lambda head, x_BTD, batch: head.cross_entropy(x_BTD, batch["targets"]), batch)
    loss.backward()
    model.fold_tied_gradients()
    return loss.detach(), {name: parameter.grad for name, parameter in model.own_parameters()}


CASES = {
    "gpt": gpt_gradients,
    "gpt documents": document_gradients,
    "bert padded": lambda dtype, seed=0: encoder_gradients("bert", "padded", dtype, seed),
    "bert unpadded": lambda dtype, seed=0: encoder_gradients("bert", "unpadded", dtype, seed),
    "groupbert packed": lambda dtype, seed=0: encoder_gradients("groupbert", "packed", dtype, seed),
}


def error(found, right):
    """The error of the loss, and that of all gradients as a share of their norm."""
    own, exact = (torch.cat([side[1][name].flatten().double() for name in sorted(right[1])]) for side in (found, right))
    return float((found[0] - right[0]).abs()), float((own - exact).norm() / exact.norm())


@pytest.mark.parametrize("case", mostly_slow(CASES, 2))
def test_bf16_errs_no_more_than_pytorch_does(case):
    """On average: one batch alone says little, its errors differ by a sixth."""
    right = [CASES[case](torch.float32, seed) for seed in range(5)]
    theirs = sum(error(CASES[case](torch.bfloat16, seed), exact)[1] for seed, exact in enumerate(right))
    for isa in instruction_sets():
        with using(all_native(isa)), NativeCalls() as calls:
            ours = sum(error(CASES[case](torch.bfloat16, seed), exact)[1] for seed, exact in enumerate(right))
        assert calls.names >= OPERATORS
        assert ours <= 1.05 * theirs


@pytest.mark.parametrize("case", CASES)
def test_fp32_equals_pytorch(case):
    right = CASES[case](torch.float32)
    for form in forms():
        with using(all_native(form.isa)):
            ours = CASES[case](torch.float32)
        of_loss, of_gradients = error(ours, right)
        assert of_loss <= 1e-5 * float(right[0])
        assert of_gradients <= 3e-6


def test_a_document_that_comes_back_in_a_window_is_left_to_pytorch():
    documents = ((0, 1, 1, 0, 0, 0), (2, 2, 2, 3, 3, 3))
    right = document_gradients(torch.float32, documents=documents)
    with using(all_native()), NativeCalls() as calls:
        ours = document_gradients(torch.float32, documents=documents)
    assert "linear" in calls.names and "attention" not in calls.names
    assert error(ours, right)[1] <= 3e-6


def test_the_same_bits_twice():
    with using(all_native()):
        first, second = (gpt_gradients(torch.bfloat16) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert all(torch.equal(first[1][name], second[1][name]) for name in first[1])


@pytest.mark.parametrize("recompute", ["all", "attention"])
def test_recomputation_gives_the_same_bits(recompute):
    memory = MemoryConfig(recompute=recompute, vocabulary_chunks=2)
    with using(all_native()), NativeCalls() as calls:
        first, again = (
            gpt_gradients(torch.bfloat16, memory=chosen) for chosen in (replace(memory, recompute_layers=(9,)), memory)
        )
    assert calls.names >= {"linear", "attention", "norm"}
    assert torch.equal(first[0], again[0])
    assert all(torch.equal(first[1][name], again[1][name]) for name in first[1])


def test_fp16_is_left_to_pytorch():
    expected = gpt_gradients(torch.float16)
    with using(all_native()), NativeCalls() as calls:
        found = gpt_gradients(torch.float16)
    assert not calls.names
    assert torch.equal(found[0], expected[0])


def test_operators_with_weights_below_fp32_are_left_to_pytorch():
    expected = gpt_gradients(torch.float32)
    with using(all_native()), NativeCalls() as calls:
        found = gpt_gradients(torch.float32, weights=torch.bfloat16)
    assert not calls.names & {"linear", "norm"}
    assert error(found, expected)[1] < 2e-2


def loss_curve(dtype, num_steps=200):
    """Losses of a GPT that learns ``next = 3 token + 1``, a tenth of the tokens random, dropout included."""
    dropped = {"embedding_dropout": 0.1, "residual_dropout": 0.1, "attention_dropout": 0.1}
    state, config = tiny_state(compute_dtype=dtype, **dropped), tiny_step_config(learning_rate=3e-3)
    losses = []
    for step in range(num_steps):
        batch = random_batch(8, 24, seed=step)
        is_random = torch.rand(8, 24, generator=torch.Generator().manual_seed(step)) < 0.1
        for place in range(1, 24):
            known = (3 * batch["tokens"][:, place - 1] + 1) % 70
            batch["tokens"][:, place] = torch.where(is_random[:, place], batch["tokens"][:, place], known)
        batch["targets"] = torch.cat((batch["tokens"][:, 1:], torch.full((8, 1), NOT_SCORED)), 1)
        losses.append(train_step(state, split(batch, 4), config).loss)
    return torch.tensor(losses)


@pytest.mark.slow
def test_curves_of_200_steps():
    exact, theirs = loss_curve(torch.float32), loss_curve(torch.bfloat16)
    with using(all_native()), NativeCalls() as calls:
        exact_ours, ours = loss_curve(torch.float32), loss_curve(torch.bfloat16)
    assert calls.names >= OPERATORS
    assert exact[-20:].mean() < exact[:20].mean() - 1.0, "it learns"
    assert (exact_ours - exact).abs().max() < 1e-5
    assert (ours - exact).abs().mean() <= 1.2 * (theirs - exact).abs().mean()
    assert (ours[-20:] - exact[-20:]).mean().abs() < 0.02
