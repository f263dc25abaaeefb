"""The native cross-entropy of each instruction set against its formula in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_forms import NativeCalls, all_native, forms, threads
from torch.nn import functional

from hornbook.ops.cross_entropy import linear_cross_entropy, token_losses
from hornbook.ops.native import cross_entropy as module
from hornbook.ops.native.kernels import using
from hornbook.ops.vocabulary_parts import Columns

DTYPES = (torch.float32, torch.bfloat16)


def exact(logits, targets, bias, num_real):
    """Losses and gradients of the logits in float64."""
    logits = logits[:, :num_real].double()
    logits = (logits if bias is None else logits + bias.double()).requires_grad_()
    losses = functional.cross_entropy(logits, targets, ignore_index=-100, reduction="none")
    losses.sum().backward()
    return losses.detach(), logits.grad, logits.detach()


@settings(max_examples=60, deadline=None)
@given(
    num_rows=st.integers(0, 40),
    num_real=st.integers(1, 90),
    padding=st.integers(0, 20),
    offset=st.integers(0, 3),
    dtype=st.sampled_from(DTYPES),
    has_bias=st.booleans(),
    num_threads=st.integers(1, 2),
    seed=st.integers(0, 99),
)
def test_losses_gradients_and_predictions(num_rows, num_real, padding, offset, dtype, has_bias, num_threads, seed):
    draws = torch.Generator().manual_seed(seed)
    memory = (4 * torch.randn(num_rows, offset + num_real + padding + 2, generator=draws)).to(dtype)
    targets = torch.randint(num_real, (num_rows,), generator=draws)
    targets[torch.rand(num_rows, generator=draws) < 0.3] = -100
    bias = torch.randn(num_real, generator=draws) if has_bias else None
    columns = slice(offset, offset + num_real + padding)  # rows with memory between them, and an unaligned beginning
    losses, of_logits, logits = exact(memory[:, columns], targets, bias, num_real)
    for form in forms():
        own = memory.clone()
        with threads(num_threads):
            ours = module.cross_entropy_(own[:, columns], targets, bias, num_real, True, True, form.isa)
        torch.testing.assert_close(ours[0].double(), losses, rtol=1e-5, atol=2e-6)
        rounding = 1e-6 if dtype == torch.float32 else 2**-8
        gradient = own[:, columns]
        torch.testing.assert_close(gradient[:, :num_real].double(), of_logits, rtol=rounding, atol=1e-6)
        assert not gradient[:, num_real:].any()
        assert torch.equal(own[:, -2:], memory[:, -2:])
        assert torch.equal(own[:, :offset], memory[:, :offset])
        scored = targets >= 0
        of_predicted = logits.gather(1, ours[1].clamp(min=0).unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(of_predicted[scored], logits.amax(1)[scored], rtol=1e-6, atol=1e-6)
        assert (ours[1][~scored] == -1).all()
        if has_bias:
            torch.testing.assert_close(ours[2].double(), of_logits.sum(0), rtol=1e-5, atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(
    num_rows=st.integers(0, 20),
    num_real=st.integers(1, 90),
    spread=st.sampled_from([0.1, 4.0, 50.0]),
    cap=st.none() | st.sampled_from([0.5, 15.0, 30.0]),
    z_weight=st.sampled_from([0.0, 1e-4, 0.3]),
    dtype=st.sampled_from(DTYPES),
    has_bias=st.booleans(),
)
def test_capped_logits_and_the_gradient_of_z_loss(num_rows, num_real, spread, cap, z_weight, dtype, has_bias):
    draws = torch.Generator().manual_seed(0)
    logits = (spread * torch.randn(num_rows, num_real, generator=draws)).to(dtype)
    targets = torch.randint(num_real, (num_rows,), generator=draws)
    targets[torch.rand(num_rows, generator=draws) < 0.3] = -100
    bias = torch.randn(num_real, generator=draws) if has_bias else None
    right = module.exact_cross_entropy(logits, targets, bias, cap, z_weight)
    for form in forms():
        own = logits.clone()
        losses, predictions, of_bias, log_sums = module.cross_entropy_(
            own, targets, bias, num_real, True, True, form.isa, cap, z_weight
        )
        torch.testing.assert_close(losses.double(), right[0], rtol=1e-5, atol=2e-5)
        rounding = 2e-5 if dtype == torch.float32 else 2**-8
        torch.testing.assert_close(own.double(), right[1], rtol=rounding, atol=2e-6)
        torch.testing.assert_close(log_sums.double(), right[3], rtol=1e-5, atol=2e-6)
        if cap is None or spread < cap:  # otherwise logits that differ become equal
            assert torch.equal(predictions, right[4])
        if has_bias:
            torch.testing.assert_close(of_bias.double(), right[2], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_of_equal_logits_the_first_is_the_prediction(dtype):
    logits = torch.zeros(3, 70, dtype=dtype)
    logits[0, 40] = logits[0, 67] = 2.0
    logits[1, 69] = 1.0
    for form in forms():
        _, predictions, *_ = module.cross_entropy_(
            logits.clone(), torch.zeros(3, dtype=torch.int64), None, 70, False, True, form.isa
        )
        assert predictions.tolist() == [40, 69, 0]


def test_extreme_logits():
    rows = torch.tensor([[1e4, -1e4, 0.0], [-math.inf, 0.0, 0.0], [math.nan, 0.0, 0.0], [1e-40, 0.0, -1e-40]])
    for form in forms():
        losses, *_ = module.cross_entropy_(rows.clone(), torch.tensor([0, 1, 1, 2]), None, 3, True, False, form.isa)
        assert losses[0] == 0.0
        assert losses[1] == pytest.approx(math.log(2))
        assert losses[2].isnan()
        assert losses[3] == pytest.approx(math.log(3))


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_from_any_number_of_threads(dtype):
    draws = torch.Generator().manual_seed(0)
    logits, bias = torch.randn(50, 77, generator=draws).to(dtype), torch.randn(77, generator=draws)
    targets = torch.randint(77, (50,), generator=draws)
    for form in forms():
        results = []
        for count in (1, 2, 3):
            gradient = logits.clone()
            with threads(count):
                losses, _, of_bias, _ = module.cross_entropy_(gradient, targets, bias, 77, True, False, form.isa)
            results.append((losses, gradient, of_bias))
        for other in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_operator_is_registered_properly():
    logits, targets = torch.randn(6, 20), torch.tensor([0, 3, -100, 19, 2, 2])
    isa = forms()[0].isa
    torch.library.opcheck(module.cross_entropy_, (logits, targets, torch.randn(18), 18, True, True, isa))
    torch.library.opcheck(module.cross_entropy_, (logits, targets, None, 18, False, False, isa))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_the_head_computes_with_it(dtype, has_bias):
    draws = torch.Generator().manual_seed(1)
    x, table = torch.randn(30, 16, generator=draws).to(dtype), torch.randn(40, 16, generator=draws)
    bias = torch.randn(37, generator=draws) if has_bias else None
    targets = torch.randint(37, (30,), generator=draws)
    targets[::4] = -100

    def compute():
        leaves = [tensor.clone().requires_grad_() for tensor in (x, table, *([bias] if has_bias else []))]
        if has_bias:
            loss, num_correct = linear_cross_entropy(
                leaves[0], targets, Columns(leaves[1], leaves[2], 37), with_count=True
            )
            _, again = linear_cross_entropy(leaves[0].detach(), targets, Columns(table, bias, 37), with_count=True)
            assert num_correct == again
        else:
            loss = linear_cross_entropy(leaves[0], targets, Columns(leaves[1], None, 37))[0]
        losses = token_losses(x, targets, Columns(table, bias, 37))
        return [loss.detach(), losses, *torch.autograd.grad(loss, leaves)]

    theirs = compute()
    with using(all_native()), NativeCalls() as calls:
        ours = compute()
    assert "cross_entropy_" in calls.names
    tolerance = 2e-6 if dtype == torch.float32 else 2e-2
    for own, other in zip(ours, theirs, strict=True):
        assert (own - other).abs().max() <= tolerance * other.abs().max()
