"""Attention by blocks of queries against PyTorch's in float64: outputs and gradients, around the edges of a block."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from hornbook.model import cpu_attention
from hornbook.model.cpu_attention import cpu_causal_attention, fits


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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_attention, "_QUERIES", block)
        y = cpu_causal_attention(*qkv)
        y.backward(gradient)
    ours = (y.detach(), *(tensor.grad for tensor in qkv))
    for mine, theirs in zip(ours, reference(qkv, gradient), strict=True):
        torch.testing.assert_close(mine.double(), theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("num_tokens", [127, 128, 129, 300])
def test_at_the_edges_of_a_real_block(num_tokens):
    qkv = make_qkv(num_tokens)
    gradient = torch.ones(2, 3, num_tokens, 5)
    y = cpu_causal_attention(*qkv)
    y.backward(gradient)
    ours = (y.detach(), *(tensor.grad for tensor in qkv))
    for mine, theirs in zip(ours, reference(qkv, gradient), strict=True):
        torch.testing.assert_close(mine.double(), theirs, atol=2e-5, rtol=1e-5)


def test_bfloat16_keeps_its_dtype_and_comes_near():
    qkv = make_qkv(200, 16, torch.bfloat16)
    gradient = torch.randn(2, 3, 200, 16, generator=torch.Generator().manual_seed(1)).bfloat16()
    y = cpu_causal_attention(*qkv)
    y.backward(gradient)
    ours = (y.detach(), *(tensor.grad for tensor in qkv))
    for mine, theirs in zip(ours, reference(qkv, gradient), strict=True):
        assert mine.dtype == torch.bfloat16
        assert (mine.double() - theirs).norm() < 0.01 * theirs.norm()


def test_long_sequences_are_sent_elsewhere():
    assert fits(torch.empty(1, 1, 1024, 8))
    assert not fits(torch.empty(64, 12, 1024, 1))
    assert not fits(torch.empty(1, 1, 8, 8, device="meta"))
