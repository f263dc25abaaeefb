"""Attention by blocks of queries against PyTorch's in float64: outputs and gradients, around the edges of a block."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from hornbook.config import shapes
from hornbook.ops.attention import WeightDropout, blocked_attention, cached_attention, causal_attention
from hornbook.ops.dropout import keep_mask


def make_qkv(num_tokens: int, head_size: int = 5, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Query, key and value [2, 3, T, K], strided as the stacked projection leaves them."""
    draws = torch.Generator().manual_seed(num_tokens)
    packed = torch.randn(2, num_tokens, 3, 3, head_size, generator=draws).to(dtype)
    return [part.detach().requires_grad_() for part in packed.permute(2, 0, 3, 1, 4)]


def reference(qkv: list[torch.Tensor], gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
    double = [tensor.detach().double().requires_grad_() for tensor in qkv]
    y = functional.scaled_dot_product_attention(*double, is_causal=True)
    y.backward(gradient.double())
    return (y.detach(), *(tensor.grad for tensor in double))


@settings(max_examples=30, deadline=None)
@given(num_tokens=st.integers(1, 20), block=st.integers(1, 21), head_size=st.integers(1, 9))
def test_outputs_and_gradients_equal_torch(num_tokens, block, head_size):
    qkv = make_qkv(num_tokens, head_size)
    gradient = torch.randn(2, 3, num_tokens, head_size, generator=torch.Generator().manual_seed(1))
    y = blocked_attention(*qkv, is_causal=True, block_size=block)
    y.backward(gradient)
    ours = (y.detach(), *(tensor.grad for tensor in qkv))
    for mine, theirs in zip(ours, reference(qkv, gradient), strict=True):
        torch.testing.assert_close(mine.double(), theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("num_tokens", [127, 128, 129, 300])
def test_at_the_edges_of_a_real_block(num_tokens):
    qkv = make_qkv(num_tokens)
    gradient = torch.ones(2, 3, num_tokens, 5)
    y = blocked_attention(*qkv, is_causal=True)
    y.backward(gradient)
    ours = (y.detach(), *(tensor.grad for tensor in qkv))
    for mine, theirs in zip(ours, reference(qkv, gradient), strict=True):
        torch.testing.assert_close(mine.double(), theirs, atol=2e-5, rtol=1e-5)


def test_bfloat16_keeps_its_dtype_and_comes_near():
    qkv = make_qkv(200, 16, torch.bfloat16)
    gradient = torch.randn(2, 3, 200, 16, generator=torch.Generator().manual_seed(1)).bfloat16()
    y = blocked_attention(*qkv, is_causal=True)
    y.backward(gradient)
    ours = (y.detach(), *(tensor.grad for tensor in qkv))
    for mine, theirs in zip(ours, reference(qkv, gradient), strict=True):
        assert mine.dtype == torch.bfloat16
        assert (mine.double() - theirs).norm() < 0.01 * theirs.norm()


def plainly(qkv, there, keep, probability) -> torch.Tensor:
    """Attention in both directions by one product, on fp64 copies."""
    q, k, v = qkv
    scores = (q @ k.transpose(2, 3) / q.shape[3] ** 0.5).masked_fill(~there[:, None, None], -torch.inf)
    return (scores.softmax(-1) * keep / (1 - probability)) @ v


@settings(max_examples=30, deadline=None)
@given(
    num_tokens=st.integers(1, 20),
    block=st.integers(1, 21),
    at_once=st.integers(1, 500),
    probability=st.sampled_from([0.0, 0.4]),
)
def test_both_directions_with_hidden_keys_and_dropout(num_tokens, block, at_once, probability):
    qkv = make_qkv(num_tokens)
    draws = torch.Generator().manual_seed(1)
    gradient = torch.randn(2, 3, num_tokens, 5, generator=draws)
    there = torch.rand(2, num_tokens, generator=draws) < 0.7
    there[:, 0] = True
    keys = torch.randint(1 << 32, (2, 3, num_tokens), generator=draws)
    dropout = WeightDropout(keys, 7, probability) if probability else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapes, "SCORES", at_once)
        y = blocked_attention(*qkv, is_token_BT=there, dropout=dropout, block_size=block)
        y.backward(gradient)
    double = [tensor.detach().double().requires_grad_() for tensor in qkv]
    expected = plainly(double, there, keep_mask(keys, 7, num_tokens, probability), probability)
    expected.backward(gradient.double())
    for mine, theirs in zip((y, *(t.grad for t in qkv)), (expected, *(t.grad for t in double)), strict=True):
        torch.testing.assert_close(mine.detach().double(), theirs.detach(), atol=1e-5, rtol=1e-5)


def test_long_sequences_are_sent_elsewhere():
    assert shapes.is_blocked("cpu", 1, 1024, is_causal=True)
    assert not shapes.is_blocked("cpu", 64 * 12, 1024, is_causal=True)
    assert shapes.is_blocked("cpu", 128, 1024, is_causal=True)
    assert not shapes.is_blocked("cpu", 128, 1024, is_causal=False)
    assert not shapes.is_blocked("cuda", 1, 8, is_causal=True)


@pytest.mark.parametrize("num_groups", [4, 2, 1])
@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.bfloat16])
def test_attention_over_a_cache_is_that_over_all_tokens(cache_dtype, num_groups):
    """Five tokens, then one at a time, against all at once; keys and values stand in the cache."""
    draws = torch.Generator().manual_seed(0)
    q, kv = torch.randn(2, 4, 9, 8, generator=draws), torch.randn(2, 2, num_groups, 9, 8, generator=draws)
    whole = cached_attention(q, *kv.unbind(1), torch.zeros(2, 2, num_groups, 9, 8), None)
    cache = torch.zeros(2, 2, num_groups, 12, 8, dtype=cache_dtype)
    parts = [cached_attention(q[:, :, :5], *kv[:, :, :, :5].unbind(1), cache[:, :, :, :5], None)]
    for n in range(5, 9):
        new = q[:, :, n : n + 1], *kv[:, :, :, n : n + 1].unbind(1)
        parts.append(cached_attention(*new, cache[:, :, :, : n + 1], None))
    tolerance = 1e-6 if cache_dtype == torch.float32 else 2e-2
    torch.testing.assert_close(torch.cat(parts, 2), whole, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(cache[:, :, :, :9], kv.to(cache_dtype))
    assert not cache[:, :, :, 9:].any(), "nothing is written behind the last token"


@pytest.mark.parametrize("with_mask", [False, True])
def test_heads_of_keys_serve_queries_in_a_row(with_mask):
    """Grouped-query attention against a sum over heads that is written out."""
    draws = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, 5, 8, generator=draws) for heads in (6, 2, 2))
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril() if with_mask else None
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    heads = [
        (q[:, head] @ k[:, head // 3].mT / 8**0.5).masked_fill(later, -torch.inf).softmax(-1) @ v[:, head // 3]
        for head in range(6)
    ]
    torch.testing.assert_close(causal_attention(q, k, v, mask=mask), torch.stack(heads, 1))


def test_a_mask_hides_what_is_left_of_a_row():
    """A row padded by two columns of rubbish attends as the row without them."""
    draws = torch.Generator().manual_seed(0)
    q, kv = torch.randn(1, 4, 6, 8, generator=draws), torch.randn(1, 2, 4, 6, 8, generator=draws)
    cache = torch.full((1, 2, 4, 8, 8), 1e3)
    plain = torch.zeros(1, 2, 4, 6, 8)
    cache[:, :, :, 2:7] = kv[:, :, :, :5]
    cached_attention(q[:, :, :5], *kv[:, :, :, :5].unbind(1), plain[:, :, :, :5], None)
    mask = torch.tensor([-torch.inf] * 2 + [0.0] * 6).view(1, 1, 1, 8)
    last = q[:, :, 5:], *kv[:, :, :, 5:].unbind(1)
    torch.testing.assert_close(cached_attention(*last, cache, mask), cached_attention(*last, plain, None))
