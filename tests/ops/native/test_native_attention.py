"""Native attention of each instruction set against its formula in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_forms import NativeCalls, all_native, forms, threads

from hornbook.model.attention import CausalSelfAttention, EncoderSelfAttention
from hornbook.model.initialize import Draw
from hornbook.model.layers import Dropout
from hornbook.ops.dropout import keep_mask
from hornbook.ops.native import attention as module
from hornbook.ops.native.attention import Heads, Sequences
from hornbook.ops.native.kernels import using
from hornbook.ops.sequence_groups import group_sequences

DTYPES = (torch.float32, torch.bfloat16)


def example(lengths, heads, size, dtype, seed=0):
    """Tokens and output gradient of sequences with a token of padding before each."""
    draws = torch.Generator().manual_seed(seed)
    firsts = [1 + sum(lengths[:number]) + number for number in range(len(lengths))]
    num_tokens = sum(lengths) + len(lengths) + 2
    qkv = torch.randn(num_tokens, 3, heads, size, generator=draws).to(dtype)
    gradient = torch.randn(num_tokens, heads, size, generator=draws).to(dtype)
    keys = torch.randint(1 << 32, (heads, num_tokens), generator=draws)
    return qkv, gradient, torch.tensor(firsts, dtype=torch.int64), torch.tensor(lengths, dtype=torch.int64), keys


def compute(form, qkv, gradient, *sequences):
    return compute_heads(form, (qkv,), gradient, Sequences(*sequences))


def compute_heads(form, packed, gradient, sequences, heads=module._PLAIN):
    return module.outputs_of(form, gradient, packed, sequences, heads)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.sampled_from([0, 1, 2, 5, 6, 7, 16, 23, 25, 49, 64, 65, 100]), max_size=3),
    heads=st.integers(1, 3),
    size=st.sampled_from([1, 2, 7, 8, 16, 31, 64, 80]),
    is_causal=st.booleans(),
    probability=st.sampled_from([0.0, 0.3]),
    dtype=st.sampled_from(DTYPES),
    num_threads=st.integers(1, 2),
    column=st.none() | st.integers(0, 100),
)
def test_attention_and_gradients(lengths, heads, size, is_causal, probability, dtype, num_threads, column):
    qkv, gradient, firsts, lengths, keys = example(lengths, heads, size, dtype)
    columns = None if column is None else column + 3 * torch.arange(len(lengths))
    sequences = (firsts, lengths, is_causal, keys if probability else None, 3, probability, columns)
    right = module.exact_attention(gradient, (qkv,), Sequences(*sequences))
    for form in forms():
        with threads(num_threads):
            ours = compute(form, qkv, gradient, *sequences)
        for own, exact in zip(ours, right, strict=True):
            error = (own.double() - exact).norm() / max(float(exact.norm()), 1.0)
            assert error < (2e-6 if dtype == torch.float32 else 6e-3)


@pytest.mark.parametrize("is_causal", [False, True])
def test_drops_what_the_hash_drops(is_causal):
    length, keys = 70, torch.randint(1 << 32, (2, 70), generator=torch.Generator().manual_seed(0))
    qkv = torch.zeros(length, 3, 2, length)
    qkv[:, 2] = torch.eye(length).unsqueeze(1)  # each output column is the weight of one key
    kept = keep_mask(keys, 5, length, 0.25)
    if is_causal:
        kept = kept & torch.ones(length, length, dtype=torch.bool).tril()
    for form in forms():
        sequences = Sequences(torch.tensor([0]), torch.tensor([length]), is_causal, keys, 5, 0.25)
        y = module.outputs_of(form, qkv[:, 0], (qkv,), sequences)[0]
        assert torch.equal(y.transpose(0, 1) != 0.0, kept)


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_from_any_number_of_threads(dtype):
    qkv, gradient, firsts, lengths, keys = example([40, 7, 64], 3, 16, dtype)
    for form in forms():
        results = []
        for count in (1, 2, 3):
            with threads(count):
                sequences = (firsts, lengths, True, keys, 3, 0.1)
                results.append(compute(form, qkv, gradient, *sequences))
        for other in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.slow
def test_operators_are_registered_properly():
    qkv, gradient, firsts, lengths, keys = example([5, 9], 2, 8, torch.float32)
    isa = forms()[0].isa
    for sequences in ((True, None, 0, 0.0), (False, keys, 2, 0.2)):
        torch.library.opcheck(module.attention, (qkv.requires_grad_(), firsts, lengths, *sequences, isa))
    columns = torch.tensor([0, 3])
    torch.library.opcheck(module.attention, (qkv, firsts, lengths, False, keys, 2, 0.2, isa, columns))
    log_sums = module.attention(qkv.detach(), firsts, lengths, False, keys, 2, 0.2, isa, columns)[1]
    none = (None,) * 6
    arguments = (gradient, log_sums, qkv.detach(), firsts, lengths, keys, columns, *none, False, 2, 0.2, *none[:4], isa)
    torch.library.opcheck(module.attention_backward, arguments)


def test_operators_of_grouped_heads_are_registered_properly():
    packed, gradient, sequences, heads = grouped_example([5, 9], 4, 2, 8, torch.float32, 3, 4, 2.0, True)
    isa = forms()[0].isa
    q, *others = (tensor.requires_grad_() for tensor in packed)
    gains = [gain.requires_grad_() for gain in heads[2:4]]
    options = (*others, *heads[:2], *gains, *heads[4:])
    torch.library.opcheck(module.attention, (q, *sequences[:6], isa, None, *options))
    y, _ = module.attention(q, *sequences[:6], isa, None, *options)
    ours = torch.autograd.grad(y, (q, *others, *gains), gradient)
    for own, right in zip(ours, module.exact_attention(gradient, packed, sequences, heads)[1:], strict=True):
        torch.testing.assert_close(own.double(), right, rtol=1e-4, atol=1e-4)


def grouped_example(lengths, heads, groups, size, dtype, num_tensors, half, cap, has_norm, window=7, is_causal=True):
    """Queries with fewer keys and values in two or three tensors, and how they are compared."""
    qkv, gradient, firsts, lengths, _ = example(lengths, heads, size, dtype)
    draws = torch.Generator().manual_seed(1)
    num_tokens = len(qkv)
    key_value = torch.randn(num_tokens, 2, groups, size, generator=draws).to(dtype)
    packed = (qkv[:, 0], key_value) if num_tensors == 2 else (qkv[:, 0], *key_value.unbind(1))
    packed = tuple(tensor.contiguous() for tensor in packed)
    angles = torch.randn(num_tokens, half, generator=draws) if half else None
    rotation = (None, None) if angles is None else (angles.cos(), angles.sin())
    gains = tuple(torch.randn(2, size, generator=draws)) if has_norm else (None, None)
    scale = 1.2 / size**0.5  # scores of equal spread, on which errors in bf16 depend
    options = Heads(*rotation, *gains, 1e-5 if has_norm else None, scale, window, cap)
    return packed, gradient, Sequences(firsts, lengths, is_causal), options


@settings(max_examples=80, deadline=None)
@given(
    lengths=st.lists(st.sampled_from([0, 1, 2, 7, 25, 64, 65, 100, 150]), min_size=1, max_size=2),
    groups=st.integers(1, 2),
    per_group=st.integers(1, 3),
    size=st.sampled_from([2, 7, 16, 31, 64, 80, 96, 128, 256]),
    num_tensors=st.integers(2, 3),
    share=st.sampled_from([0.0, 0.5, 1.0]),
    cap=st.none() | st.sampled_from([0.5, 20.0]),
    has_norm=st.booleans(),
    window=st.none() | st.sampled_from([1, 2, 5, 24, 64, 65, 1000]),
    is_causal=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    num_threads=st.integers(1, 2),
)
def test_heads_of_modern_decoders(
    lengths, groups, per_group, size, num_tensors, share, cap, has_norm, window, is_causal, dtype, num_threads
):
    half = int(share * size / 2)
    options = (num_tensors, half, cap, has_norm, window, is_causal)
    packed, gradient, *problem = grouped_example(lengths, groups * per_group, groups, size, dtype, *options)
    right = module.exact_attention(gradient, packed, *problem)
    for form in forms():
        with threads(num_threads):
            ours = compute_heads(form, packed, gradient, *problem)
        for own, exact in zip(ours, right, strict=True):
            error = (own.double() - exact).norm() / max(float(exact.norm()), float(gradient.norm()))
            assert error < (5e-6 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_a_window_hides_reaches_no_token(bad, dtype):
    packed, gradient, *problem = grouped_example([150], 2, 1, 16, dtype, 2, 8, None, False, window=30)
    broken, of_broken = [tensor.clone() for tensor in packed], gradient.clone()
    for tensor in (*broken, of_broken):
        tensor[40] = bad
    untouched = slice(40 + 30, None)
    for form in forms():
        whole = compute_heads(form, packed, gradient, *problem)
        partly = compute_heads(form, broken, of_broken, *problem)
        for own, other in zip(whole, partly, strict=True):
            assert torch.equal(own[untouched], other[untouched])
        assert torch.equal(whole[0][:40], partly[0][:40])


def test_wide_scores():
    qkv = torch.zeros(4, 3, 1, 2)
    qkv[:, 0, 0, 0], qkv[:, 1, 0, 0] = 1e4, torch.tensor([1.0, -1.0, 1.0, 0.0])
    qkv[:, 2, 0, 1] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    for form in forms():
        y, log_sums = module.attention(qkv, torch.tensor([0]), torch.tensor([4]), False, None, 0, 0.0, form.isa)
        assert y[:, 0, 1].tolist() == pytest.approx([2.0] * 4)
        assert log_sums.isfinite().all()


@pytest.mark.parametrize("probability", [0.0, 0.2])
@pytest.mark.parametrize("kind", [CausalSelfAttention, EncoderSelfAttention])
@pytest.mark.parametrize("dtype", DTYPES)
def test_layers_compute_with_it(kind, probability, dtype):
    layer = kind(24, 3, 10, dropout=Dropout(probability, site=1), std=0.5, out_std=0.5)
    layer.qkv.draw(Draw(0, "attention.qkv"))
    layer.out.draw(Draw(0, "attention.out"))
    draws = torch.Generator().manual_seed(0)
    x, keys = torch.randn(2, 30, 24, generator=draws).to(dtype), torch.randint(1 << 32, (2, 30), generator=draws)
    context = {"keys": keys}
    if kind is EncoderSelfAttention:
        firsts, lengths = torch.tensor([0, 17, 30]), torch.tensor([17, 9, 28])
        groups = group_sequences(firsts, lengths, keys.shape, keys.device)
        group_keys = keys.flatten()[groups["gather_index"].clamp(min=0)]
        context |= {**groups, "firsts": firsts, "lengths": lengths, "group_keys": group_keys}

    def run():
        inputs = x.clone().requires_grad_()
        layer.zero_grad()
        y = layer(inputs, context)
        y.float().square().sum().backward()
        return y.detach(), inputs.grad, layer.qkv.weight.grad.clone(), layer.out.weight.grad.clone()

    theirs = run()
    with using(all_native()), NativeCalls() as calls:
        ours = run()
    assert calls.names >= {"attention", "attention_backward"}
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    for own, other in zip(ours, theirs, strict=True):
        assert (own - other).norm() <= tolerance * other.norm()


def test_a_split_of_ones_own_is_respected():
    class Reversed(CausalSelfAttention):
        def split(self, packed_BTE):
            q, k, v = super().split(packed_BTE)
            return k, q, v

    layer = Reversed(8, 2, 4, dropout=Dropout(0.0, site=1), std=0.5, out_std=0.5)
    layer.qkv.draw(Draw(0, "attention.qkv"))
    layer.out.draw(Draw(0, "attention.out"))
    x, context = torch.randn(1, 9, 8), {"keys": torch.zeros(1, 9, dtype=torch.int64)}
    right = layer(x, context)
    with using(all_native()):
        torch.testing.assert_close(layer(x, context), right)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("token", [3, 4, 64])
def test_what_a_later_token_holds_reaches_no_earlier_one(bad, dtype, token):
    """Not even as 0 · NaN: queries are multiplied several at once, the first of which do not see the last keys."""
    length, size = 100, 16
    qkv, gradient, _, _, keys = example([length - 3], 2, size, dtype)
    for probability in (0.0, 0.2):
        sequences = (torch.tensor([0]), torch.tensor([length]), True, keys if probability else None, 3, probability)
        for form in forms():
            y, of_qkv = compute(form, qkv, gradient, *sequences)
            for kind in range(3):
                broken = qkv.clone()
                broken[token, kind] = bad
                y_of_broken, of_broken = compute(form, broken, gradient, *sequences)
                assert torch.equal(y_of_broken[:token], y[:token])
                assert torch.equal(of_broken[:token, 0], of_qkv[:token, 0])  # of queries; keys have later readers
                if kind == 0:  # a query: no other token's result depends on it, nor the gradient of later ones
                    assert torch.equal(y_of_broken[token + 1 :], y[token + 1 :])
                    assert torch.equal(of_broken[token + 1 :], of_qkv[token + 1 :])
            broken = gradient.clone()
            broken[token] = bad
            _, of_broken = compute(form, qkv, broken, *sequences)
            assert torch.equal(of_broken[token + 1 :], of_qkv[token + 1 :])
            assert torch.equal(of_broken[:token, 0], of_qkv[:token, 0])
            assert not of_broken[token, 2].isfinite().any()


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_other_sequences_and_padding_hold_reaches_no_token(is_causal, dtype):
    qkv, gradient, firsts, lengths, _ = example([7, 33, 18], 2, 16, dtype)
    own = slice(int(firsts[1]), int(firsts[1] + lengths[1]))
    broken, of_broken = torch.full_like(qkv, torch.nan), torch.full_like(gradient, torch.inf)
    broken[own], of_broken[own] = qkv[own], gradient[own]
    sequences = (firsts, lengths, is_causal, None, 0, 0.0)
    for form in forms():
        for whole, partly in zip(
            compute(form, qkv, gradient, *sequences), compute(form, broken, of_broken, *sequences), strict=True
        ):
            assert torch.equal(whole[own], partly[own])
