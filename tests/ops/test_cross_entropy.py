"""The chunked head against torch's cross-entropy in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from hornbook.ops import cross_entropy as module
from hornbook.ops import vocabulary_parts
from hornbook.ops.cross_entropy import linear_cross_entropy, token_losses
from hornbook.ops.vocabulary_parts import Columns
from hornbook.samples.windows import NOT_SCORED


def example(num_tokens=20, hidden=8, vocab_size=13, rows=16, unscored=0.3, seed=0, dtype=torch.float32):
    """Hidden states, table and targets; the padding rows of the table hold numbers that must not matter."""
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(num_tokens, hidden, generator=draws).to(dtype).requires_grad_()
    weight = torch.randn(rows, hidden, generator=draws).requires_grad_()
    targets = torch.randint(vocab_size, (num_tokens,), generator=draws)
    targets[torch.rand(num_tokens, generator=draws) < unscored] = NOT_SCORED
    return x, weight, targets


def reference(x, weight, targets, vocab_size):
    """Loss, gradient of x and gradient of the weight, by autograd in float64 over all the logits."""
    x, weight = x.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    loss = functional.cross_entropy((x @ weight.t())[:, :vocab_size], targets, ignore_index=-100, reduction="sum")
    loss.backward()
    return loss.detach(), x.grad, weight.grad


def assert_near(tensor, expected, tolerance):
    """Largest difference at most ``tolerance`` of the largest value."""
    assert tensor.shape == expected.shape
    assert (tensor.double() - expected).abs().max() <= tolerance * max(expected.abs().max(), 1e-3)


@settings(max_examples=40, deadline=None)
@given(
    num_tokens=st.integers(1, 40),
    hidden=st.integers(1, 12),
    vocab_size=st.integers(1, 30),
    padding=st.integers(0, 9),
    chunk=st.sampled_from([1, 2, 7, 8, 64]),
    unscored=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_value_and_gradients_equal_torch(num_tokens, hidden, vocab_size, padding, chunk, unscored):
    x, weight, targets = example(num_tokens, hidden, vocab_size, vocab_size + padding, unscored)
    expected = reference(x, weight, targets, vocab_size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "HEAD_TOKENS", chunk)
        loss = linear_cross_entropy(x, targets, Columns(weight, None, vocab_size))[0]
        loss.backward()
        losses = token_losses(x, targets, Columns(weight, None, vocab_size))
    for ours, theirs in zip((loss.detach(), x.grad, weight.grad), expected, strict=True):
        assert_near(ours, theirs, 1e-5)
    assert (weight.grad[vocab_size:] == 0).all()
    assert (x.grad[targets == NOT_SCORED] == 0).all()
    assert_near(losses.sum(), expected[0], 1e-5)
    assert (losses[targets == NOT_SCORED] == 0).all()


@pytest.mark.parametrize("num_tokens", [7, 8, 9, 16, 17])
def test_chunk_boundaries_change_rounding_only(monkeypatch, num_tokens):
    results = []
    for chunk in (8, 1000):
        monkeypatch.setattr(module, "HEAD_TOKENS", chunk)
        x, weight, targets = example(num_tokens)
        linear_cross_entropy(x, targets, Columns(weight, None, 13))[0].backward()
        results.append((x.grad, weight.grad))
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-6)


def test_incoming_gradient_scales_both_gradients():
    x, weight, targets = example()
    _, x_gradient, weight_gradient = reference(x, weight, targets, 13)
    (linear_cross_entropy(x, targets, Columns(weight, None, 13))[0] * -2.5).backward()
    assert_near(x.grad, -2.5 * x_gradient, 1e-5)
    assert_near(weight.grad, -2.5 * weight_gradient, 1e-5)


def test_the_backward_pass_makes_no_second_gradient_of_the_table():
    """It has 128 x 8 elements; 3 tokens of width 8 are all else that is made."""
    sizes = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and not function._schema.name.endswith(("_", "view", "detach")):
                sizes.append((function._schema.name, result.numel()))
            return result

    states, table = torch.randn(3, 8, requires_grad=True), torch.randn(128, 8, requires_grad=True)
    for _ in range(2):  # the second one is added to the first
        loss = linear_cross_entropy(states, torch.tensor([1, 2, 3]), Columns(table, None, 128))[0] * 0.5
        with Watch():
            loss.backward()
    assert sizes
    assert [(name, size) for name, size in sizes if size >= 128 * 8] == []


def test_a_second_backward_pass_gives_the_same_gradients():
    """As zero-bubble schedules ask for: first the gradient of the input, later that of the weights."""
    x, weight, targets = example()
    loss = linear_cross_entropy(x, targets, Columns(weight, None, 13))[0] * 0.5
    first = torch.autograd.grad(loss, (x, weight), retain_graph=True)
    second = torch.autograd.grad(loss, (x, weight))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_gradient_is_the_slope_of_the_loss():
    """Central difference along a random direction, against the analytic gradients; no other implementation involved."""
    x, weight, targets = example(unscored=0.0)
    linear_cross_entropy(x, targets, Columns(weight, None, 13))[0].backward()
    directions = [torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1)) for tensor in (x, weight)]
    step = 1e-2
    with torch.no_grad():
        ahead, behind = (
            linear_cross_entropy(
                x + sign * step * directions[0], targets, Columns(weight + sign * step * directions[1], None, 13)
            )[0]
            for sign in (1, -1)
        )
    slope = (ahead - behind) / (2 * step)
    expected = (x.grad * directions[0]).sum() + (weight.grad * directions[1]).sum()
    torch.testing.assert_close(slope, expected, rtol=1e-2, atol=1e-2)


def test_bfloat16_gives_bf16_and_fp32_gradients_near_the_truth():
    x, weight, targets = example(num_tokens=256, hidden=32, vocab_size=60, rows=64, dtype=torch.bfloat16)
    with torch.no_grad():
        weight *= 0.2
    loss = linear_cross_entropy(x, targets, Columns(weight, None, 60))[0]
    (loss / 3).backward()
    assert (loss.dtype, x.grad.dtype, weight.grad.dtype) == (torch.float32, torch.bfloat16, torch.float32)
    expected, x_gradient, weight_gradient = reference(x, weight, targets, 60)
    assert_near(loss.detach(), expected, 2e-3)
    assert_near(x.grad, x_gradient / 3, 2e-2)
    assert_near(weight.grad, weight_gradient / 3, 2e-2)


def test_bfloat16_gradient_is_not_biased_by_a_scale_that_bf16_cannot_hold():
    """1/3 in bf16 is 0.2 % too large: the mean ratio of scaled to unscaled gradients must not be."""
    gradients = []
    for scale in (1.0, 1 / 3):
        x, weight, targets = example(num_tokens=512, hidden=32, dtype=torch.bfloat16, unscored=0.0)
        (linear_cross_entropy(x, targets, Columns(weight, None, 13))[0] * scale).backward()
        gradients.append(x.grad.double().flatten())
    slope = (gradients[0] @ gradients[1]) / (gradients[0] @ gradients[0])
    assert float(slope) == pytest.approx(1 / 3, rel=5e-4)


def test_without_gradients_no_gradient_is_made(monkeypatch):
    monkeypatch.setattr(module, "_LinearCrossEntropy", None)  # whoever calls it fails
    x, weight, targets = example()
    with torch.no_grad():
        loss = linear_cross_entropy(x, targets, Columns(weight, None, 13))[0]
    assert not loss.requires_grad
    assert_near(loss, reference(x, weight, targets, 13)[0], 1e-5)


def test_token_losses_are_the_negative_log_probabilities():
    x, weight, targets = example(num_tokens=3, unscored=0.0)
    losses = token_losses(x, targets, Columns(weight, None, 13))
    assert losses.dtype == torch.float32
    assert not losses.requires_grad
    for row in range(3):
        logits = (x[row].double() @ weight.double().t())[:13]
        probability = logits.exp()[targets[row]] / logits.exp().sum()
        assert float(losses[row]) == pytest.approx(-math.log(float(probability.detach())), rel=1e-5)


def test_large_logits_do_not_overflow():
    x, weight, targets = example()
    loss = linear_cross_entropy(x * 1e4, targets, Columns(weight * 1e2, None, 13))[0]
    assert torch.isfinite(loss)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_states_reach_the_loss(bad):
    """Nothing hides a broken number: the step has to see it to skip."""
    x, weight, targets = example(unscored=0.0)
    x.data[3, 2] = bad
    loss = linear_cross_entropy(x, targets, Columns(weight, None, 13))[0]
    loss.backward()
    assert not torch.isfinite(loss)
    assert not torch.isfinite(weight.grad).all()


@pytest.mark.parametrize("chunk", [3, 512])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_bias_and_the_number_of_right_predictions(monkeypatch, chunk, dtype):
    monkeypatch.setattr(module, "HEAD_TOKENS", chunk)
    x, weight, targets = example(dtype=dtype)
    bias = torch.randn(13, generator=torch.Generator().manual_seed(2)).requires_grad_()
    double = [tensor.detach().double().requires_grad_() for tensor in (x, weight, bias)]
    scores = (double[0] @ double[1].t())[:, :13] + double[2]
    expected = functional.cross_entropy(scores, targets, ignore_index=-100, reduction="sum")
    expected.backward()
    total, num_correct = linear_cross_entropy(x, targets, Columns(weight, bias, 13), with_count=True)
    total.backward()
    tolerance = 1e-5 if dtype == torch.float32 else 0.03
    assert_near(total.detach(), expected.detach(), tolerance)
    for tensor, reference_ in zip((x, weight, bias), double, strict=True):
        assert_near(tensor.grad, reference_.grad, tolerance)
    assert (weight.grad[13:] == 0).all()
    if dtype == torch.float32:
        assert num_correct == (scores.argmax(1) == targets).sum()
    assert not num_correct.requires_grad
    with torch.no_grad():
        again, num_again = linear_cross_entropy(x, targets, Columns(weight, bias, 13), with_count=True)
    torch.testing.assert_close(again, total.detach())
    assert num_again == num_correct
    assert_near(token_losses(x, targets, Columns(weight, bias, 13)).sum(), expected.detach(), tolerance)


@pytest.mark.parametrize("columns", [128, 100, 67])
def test_of_equal_logits_the_first_is_the_prediction(columns):
    """In bf16, a few rows in a hundred have several largest logits: the target may be one of them and not the guess."""
    x, weight, _ = example(num_tokens=60, hidden=4, rows=columns, dtype=torch.bfloat16)
    with torch.no_grad():
        weight[40:50] = weight[20:30]  # the same logits a second time
        weight[columns - 1] = weight[0]
        logits = (x @ weight.bfloat16().t()).float()
    best = logits.argmax(1)
    last = columns - 1 - logits.flip(1).argmax(1)
    assert (best != last).any()
    for targets, expected in ((best, 60), (last, int((best == last).sum()))):
        assert int(linear_cross_entropy(x, targets, Columns(weight, None, columns), with_count=True)[1]) == expected
        with torch.no_grad():
            assert int(linear_cross_entropy(x, targets, Columns(weight, None, columns), with_count=True)[1]) == expected


def test_nothing_to_predict():
    x, weight, targets = example()
    total, num_correct = linear_cross_entropy(x[:0], targets[:0], Columns(weight, None, 13), with_count=True)
    total.backward()
    assert (float(total.detach()), float(num_correct)) == (0.0, 0.0)
    assert not weight.grad.any()
    unscored = torch.full_like(targets, NOT_SCORED)
    assert [
        float(value.detach()) for value in linear_cross_entropy(x, unscored, Columns(weight, None, 13), with_count=True)
    ] == [0.0, 0.0]


@pytest.mark.parametrize(("vocab_size", "rows"), [(200, 256), (60, 192), (256, 256)])
@pytest.mark.parametrize("chunks", [2, 3, 9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_chunks_of_the_vocabulary_change_rounding_only(monkeypatch, vocab_size, rows, chunks, dtype):
    """Most of the second shape's parts are padding alone."""
    monkeypatch.setattr(module, "HEAD_TOKENS", 16)
    results = []
    for parts in (1, chunks):
        x, weight, targets = example(40, 8, vocab_size, rows, dtype=dtype)
        bias = torch.linspace(-1.0, 1.0, vocab_size).requires_grad_()
        plain = linear_cross_entropy(x, targets, Columns(weight, None, vocab_size), parts)[0]
        loss, right = linear_cross_entropy(x, targets, Columns(weight, bias, vocab_size), parts, with_count=True)
        (0.25 * plain + 0.5 * loss).backward()
        with torch.no_grad():
            counted = linear_cross_entropy(x, targets, Columns(weight, bias, vocab_size), parts, with_count=True)
        losses = token_losses(x, targets, Columns(weight, bias, vocab_size), parts)
        results.append((plain, loss, right, *counted, losses, x.grad, weight.grad, bias.grad))
    for whole, chunked in zip(*results, strict=True):
        assert chunked.dtype == whole.dtype
        assert_near(chunked.double(), whole.double(), 2e-6 if dtype == torch.float32 else 1e-2)
    assert (results[1][-2][vocab_size:] == 0).all()
    assert results[1][2] == results[1][3 + 1] == results[0][2]


def test_chunks_of_the_vocabulary_have_fewer_logits(monkeypatch):
    seen, complete = [], vocabulary_parts.complete

    def note(logits, head):
        seen.append(logits.shape[1])
        return complete(logits, head)

    monkeypatch.setattr(vocabulary_parts, "complete", note)
    x, weight, targets = example(40, 8, 500, 512)
    linear_cross_entropy(x, targets, Columns(weight, None, 500), 4)[0].backward()
    token_losses(x, targets, Columns(weight, None, 500), 4)
    assert max(seen) == 128


def test_of_equal_logits_in_different_chunks_the_first_is_the_prediction():
    x, weight = torch.ones(2, 3), torch.ones(192, 3)
    for chunks in (1, 3):
        assert (
            linear_cross_entropy(x, torch.tensor([0, 70]), Columns(weight, None, 192), chunks, with_count=True)[1] == 1
        )


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_scale_each_tokens_loss_and_gradients(chunks, dtype):
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(700, 8, generator=draws).to(dtype)
    table = torch.randn(256, 8, generator=draws)
    targets = torch.randint(200, (700,), generator=draws)
    targets[::7] = -100
    weights = torch.rand(700, generator=draws)
    x_ND, weight_VD = x.clone().requires_grad_(), table.clone().requires_grad_()
    loss, unweighted = linear_cross_entropy(x_ND, targets, Columns(weight_VD, None, 200), chunks, weights_N=weights)
    (loss * 2).backward()
    theirs = (x.double().requires_grad_(), table.double().requires_grad_())
    logits = theirs[0] @ theirs[1][:200].T
    losses = functional.cross_entropy(logits, targets, reduction="none")
    expected = (losses * weights).sum()
    (expected * 2).backward()
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 0.05, "atol": 0.05}
    torch.testing.assert_close(loss.double(), expected, rtol=close["rtol"], atol=0)
    torch.testing.assert_close(unweighted.double(), losses.sum(), rtol=close["rtol"], atol=0)
    assert not unweighted.requires_grad
    torch.testing.assert_close(x_ND.grad.double(), theirs[0].grad, **close)
    torch.testing.assert_close(weight_VD.grad.double(), theirs[1].grad, **close)
    with torch.no_grad():
        without = linear_cross_entropy(x_ND, targets, Columns(weight_VD, None, 200), chunks, weights_N=weights)
    torch.testing.assert_close(torch.stack(without), torch.stack([loss, unweighted]), rtol=1e-5, atol=0)


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("cap", [None, 2.0])
def test_z_loss_and_cap_are_those_of_autograd(chunks, cap):
    x, weight, targets = example(150, 24, 300, 320)
    targets[::7] = NOT_SCORED
    exact = [tensor.detach().double().requires_grad_() for tensor in (x, weight)]
    logits = exact[0] @ exact[1][:300].T
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    squares = logits.logsumexp(-1)[targets != NOT_SCORED].square().sum()
    expected = functional.cross_entropy(logits, targets, reduction="sum")
    (0.5 * (expected + 0.1 * squares)).backward()
    total, found = linear_cross_entropy(x, targets, Columns(weight, None, 300, cap=cap), chunks, z_weight=0.1)
    (0.5 * (total + 0.1 * found)).backward()
    with torch.no_grad():
        again = linear_cross_entropy(x, targets, Columns(weight, None, 300, cap=cap), chunks, z_weight=0.1)
    for value, other in ((total, expected), (found, squares), (again[0], expected), (again[1], squares)):
        assert_near(value.double(), other, 1e-6)
    assert_near(x.grad.double(), exact[0].grad, 2e-6)
    assert_near(weight.grad.double(), exact[1].grad, 2e-6)
    plain = linear_cross_entropy(x, targets, Columns(weight, None, 300, cap=cap), chunks)[0]
    assert_near(plain.double(), expected, 1e-6)
    assert_near(token_losses(x, targets, Columns(weight, None, 300, cap=cap), chunks).sum().double(), expected, 1e-6)
