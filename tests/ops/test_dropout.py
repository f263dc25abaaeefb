"""Dropout is a pure function of (key, site, column): which elements fall, and that nothing else decides it."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import hidden_states, random_batch, split, tiny_model

from hornbook.model.layers import Dropout
from hornbook.ops.dropout import keep_mask, mix

WORD = 0xFFFFFFFF


def random_keys(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(1 << 32, shape, generator=torch.Generator().manual_seed(seed))


def lowbias32(x: int) -> int:
    """Wellons' mixer on Python's integers."""
    x ^= x >> 16
    x = x * 0x7FEB352D & WORD
    x ^= x >> 15
    x = x * 0x846CA68B & WORD
    return x ^ x >> 16


@given(st.lists(st.integers(-(1 << 31), (1 << 31) - 1), min_size=1, max_size=20))
def test_mix_is_lowbias32(values):
    mixed = mix(torch.tensor(values, dtype=torch.int32))
    assert [int(value) & WORD for value in mixed] == [lowbias32(value & WORD) for value in values]


@settings(deadline=None)
@given(
    keys=st.lists(st.integers(0, WORD), min_size=1, max_size=5),
    site=st.integers(0, 300),
    num_columns=st.integers(1, 20),
    probability=st.floats(0.0, 0.99),
)
def test_mask_is_the_hash_that_the_docstring_draws(keys, site, num_columns, probability):
    mask = keep_mask(torch.tensor(keys), site, num_columns, probability)
    for row, key in enumerate(keys):
        token = lowbias32(key ^ lowbias32(site + 1))
        for column in range(num_columns):
            drawn = lowbias32((token + column * 0x9E3779B1) & WORD) & 0x7FFFFFFF
            assert bool(mask[row, column]) == (drawn >= int(probability * (1 << 31)))


@pytest.mark.parametrize("probability", [0.01, 0.1, 0.5, 0.9])
def test_share_that_is_dropped(probability):
    """Within 4.5 standard deviations: of all elements, of each column's and of each row's."""
    mask = keep_mask(random_keys(512), 3, 256, probability).double()
    spread = math.sqrt(probability * (1 - probability))
    assert abs(mask.mean() - (1 - probability)) < 4.5 * spread / math.sqrt(mask.numel())
    for dim in (0, 1):
        assert (mask.mean(dim) - (1 - probability)).abs().max() < 4.5 * spread / math.sqrt(mask.shape[dim])


@pytest.mark.parametrize("shift", [1, 2])
def test_neighbors_are_uncorrelated(shift):
    """Neighboring columns, neighboring tokens (also with neighboring keys) and neighboring sites."""
    consecutive = torch.arange(1000, 1512)
    for keys in (random_keys(512), consecutive):
        mask, other = (keep_mask(keys, site, 256, 0.5).double() - 0.5 for site in (3, 3 + shift))
        pairs = [(mask[:, shift:], mask[:, :-shift]), (mask[shift:], mask[:-shift]), (mask, other)]
        for first, second in pairs:
            assert abs((first * second).mean() / 0.25) < 4.5 / math.sqrt(first.numel())


def test_every_site_of_a_model_is_its_own():
    model = tiny_model(num_layers=5)
    sites = [module.site for module in model.modules() if isinstance(module, Dropout)]
    assert len(sites) == 5 * 3 + 1
    assert len(set(sites)) == len(sites)


def test_layer_scales_what_it_keeps_and_the_backward_pass_uses_the_same_mask():
    keys = random_keys(4, 6)
    layer = Dropout(0.25, site=5)
    x = torch.randn(4, 6, 16, requires_grad=True)
    gradient = torch.randn(4, 6, 16)
    y = layer(x, keys)
    y.backward(gradient)
    mask = keep_mask(keys, 5, 16, 0.25)
    torch.testing.assert_close(y.detach(), torch.where(mask, x.detach() / 0.75, 0.0))
    torch.testing.assert_close(x.grad, torch.where(mask, gradient / 0.75, 0.0))


def test_expectation_is_the_input():
    x = torch.ones(2000, 64)
    mean = Dropout(0.3, site=1)(x, random_keys(2000)).double().mean()
    assert abs(mean - 1.0) < 4.5 * math.sqrt(0.3 / 0.7 / x.numel())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtype_is_kept_and_the_mask_does_not_depend_on_it(dtype):
    y = Dropout(0.5, site=2)(torch.ones(8, 32, dtype=dtype), random_keys(8))
    assert y.dtype == dtype
    assert torch.equal(y != 0, keep_mask(random_keys(8), 2, 32, 0.5))


def test_identity_when_evaluating_or_when_nothing_is_to_be_dropped():
    x, keys = torch.randn(3, 8), random_keys(3)
    assert Dropout(0.5, site=1).eval()(x, keys) is x
    assert Dropout(0.0, site=1)(x, keys) is x


def test_packing_leaves_the_mask_alone():
    """A token's mask depends on its key, not on where in a batch it stands."""
    keys = random_keys(6, 5)
    mask = keep_mask(keys, 7, 16, 0.3)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    assert torch.equal(keep_mask(keys[order], 7, 16, 0.3), mask[order])
    assert torch.equal(keep_mask(keys.flatten(), 7, 16, 0.3), mask.flatten(0, 1))
    assert torch.equal(keep_mask(keys[2, 3:], 7, 16, 0.3), mask[2, 3:])
    assert torch.equal(keep_mask(keys, 7, 8, 0.3), mask[..., :8]), "nor on how many columns there are"


DROPOUTS = {"embedding_dropout": 0.2, "residual_dropout": 0.2, "attention_dropout": 0.2}


@pytest.mark.parametrize("changes", [{name: 0.3} for name in DROPOUTS] + [DROPOUTS])
def test_model_with_dropout_does_not_see_the_batch(changes):
    """Samples one by one or reversed give what the whole batch gives; another key or mode gives something else."""
    model = tiny_model(**changes)
    batch = random_batch(4, 10)
    whole = hidden_states(model, batch)
    torch.testing.assert_close(torch.cat([hidden_states(model, part) for part in split(batch, 1)]), whole)
    torch.testing.assert_close(
        hidden_states(model, {name: tensor.flip(0) for name, tensor in batch.items()}).flip(0), whole
    )
    assert torch.equal(hidden_states(model, batch), whole)
    other_keys = {**batch, "keys": batch["keys"].flip(0)}
    assert not torch.allclose(hidden_states(model, other_keys), whole)
    model.eval()
    plain = tiny_model()
    assert torch.equal(hidden_states(model, batch), hidden_states(plain, batch))
    assert not torch.allclose(hidden_states(model, batch), whole)
