"""Initial weights are a function of (seed, name) and have the spread that GPT-2 has."""

import math

import pytest
import torch
from tiny import tiny_config, tiny_model
from tiny_encoders import FAMILIES, tiny_encoder_config

from hornbook.model import build_model, initialize
from hornbook.model.initialize import Draw, fill_unsaved_buffers, generator


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: model.logical(name, parameter.detach()) for name, parameter in model.own_parameters()}


def test_same_seed_same_bits_and_another_seed_other_numbers():
    first, again, other = weights(tiny_model(1)), weights(tiny_model(1)), weights(tiny_model(2))
    for name, tensor in first.items():
        assert torch.equal(tensor, again[name])
        if tensor.std() > 0:
            assert not torch.equal(tensor, other[name]), name


def test_no_two_parameters_share_their_numbers():
    drawn = [tensor.flatten()[:8] for tensor in weights(tiny_model()).values() if tensor.std() > 0]
    assert len({tuple(tensor.tolist()) for tensor in drawn}) == len(drawn)


def test_neither_global_random_state_nor_order_of_modules_matters():
    expected = weights(tiny_model())
    torch.manual_seed(99)
    model = build_model(tiny_config(), torch.float32)
    for name, module in reversed(list(model.named_modules())):
        if hasattr(module, "draw"):
            module.draw(Draw(7, name))
    torch.testing.assert_close(weights(model), expected, rtol=0, atol=0)


def test_drawing_leaves_the_global_random_state_alone():
    before = torch.random.get_rng_state()
    tiny_model()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_deeper_model_starts_with_the_same_blocks():
    """But for the residual projections, whose spread depends on the depth: those are the same numbers, scaled."""
    shallow, deep = weights(tiny_model(num_layers=2)), weights(tiny_model(num_layers=8))
    for name, tensor in shallow.items():
        if name.endswith(("attention.out.weight", "feed_forward.down.weight")):
            torch.testing.assert_close(deep[name], tensor * math.sqrt(2 / 8))
        else:
            assert torch.equal(deep[name], tensor), name


def test_a_larger_vocabulary_has_its_own_numbers_but_padding_does_not_matter():
    """70 and 128 tokens have the same table in memory; the draw is over the logical rows."""
    table = tiny_model(vocab_size=70).embedding.tokens
    assert table.shape == (128, 16)
    assert (table[70:] == 0).all()
    values = torch.empty(70, 16).normal_(0.0, 0.02, generator=generator(7, "embedding.tokens"))
    assert torch.equal(table[:70], values)


@pytest.mark.parametrize("std", [0.02, 0.1])
def test_spread(std):
    num_layers = 4
    model = tiny_model(num_layers=num_layers, hidden_size=128, vocab_size=500, max_positions=256, initializer_std=std)
    for name, tensor in weights(model).items():
        kind = name.rpartition(".")[2]
        if kind.endswith("bias"):
            assert (tensor == 0).all(), name
        elif "norm" in name:
            assert (tensor == 1).all(), name
        else:
            residual = name.endswith(("attention.out.weight", "feed_forward.down.weight"))
            expected = std / math.sqrt(2 * num_layers) if residual else std
            tolerance = 4.5 / math.sqrt(2 * tensor.numel())
            assert float(tensor.std()) == pytest.approx(expected, rel=tolerance), name
            assert abs(float(tensor.mean())) < 4.5 * expected / math.sqrt(tensor.numel()), name


def test_every_parameter_gets_a_value():
    model = build_model(tiny_config(), torch.float32)
    with torch.no_grad():
        for _, parameter in model.own_parameters():
            parameter.fill_(math.nan)
    initialize(model, 0)
    for name, parameter in model.own_parameters():
        assert torch.isfinite(parameter).all(), name


def test_a_parameter_that_is_never_drawn_is_an_error():
    """Left alone it would start from the global random state, or from whatever the memory held."""
    model = tiny_model()
    model.blocks[1].extra = torch.nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"initializes blocks\.1\.extra\.weight, blocks\.1\.extra\.bias"):
        initialize(model, 0)


class Patterned(torch.nn.Module):
    """Has buffers of three kinds and fills those that are named."""

    def __init__(self, *filled: str) -> None:
        super().__init__()
        self.filled = filled
        self.register_buffer("scale", torch.ones(3))
        self.register_buffer("pattern", torch.arange(3))
        self.register_buffer("mask", torch.zeros(3, dtype=torch.bool), persistent=False)

    def draw(self, draw):
        for name in self.filled:
            getattr(self, name).copy_(torch.tensor([0, 1, 0]))


def test_draw_fills_buffers_too():
    module = torch.nn.Sequential(Patterned("scale", "pattern", "mask"))
    initialize(module, 0)
    assert [buffer.tolist() for buffer in module.buffers()] == [[0.0, 1.0, 0.0], [0, 1, 0], [False, True, False]]


@pytest.mark.parametrize("forgotten", ["scale", "pattern", "mask"])
def test_a_buffer_that_is_never_filled_is_an_error(forgotten):
    """What its constructor put there is lost, since models are built without memory."""
    filled = [name for name in ("scale", "pattern", "mask") if name != forgotten]
    with pytest.raises(TypeError, match=rf"no draw method initializes 0\.{forgotten}: "):
        initialize(torch.nn.Sequential(Patterned(*filled)), 0)


def test_buffers_outside_checkpoints_are_filled_for_a_model_that_is_loaded():
    module = torch.nn.Sequential(Patterned("mask"), torch.nn.Linear(2, 2))
    fill_unsaved_buffers(module, 0)
    assert module[0].mask.tolist() == [False, True, False]


@pytest.mark.parametrize(
    "config", [tiny_config(), *map(tiny_encoder_config, FAMILIES)], ids=lambda config: config.family
)
def test_a_model_built_without_memory_starts_from_the_same_numbers(config):
    expected = build_model(config, torch.float32)
    with torch.device("meta"):
        model = build_model(config, torch.float32)
    assert all(tensor.is_meta for tensor in model.saved_tensors().values())
    model.allocate(torch.device("cpu"))
    for each in (model, expected):
        initialize(each, 7)
    torch.testing.assert_close(weights(model), weights(expected), rtol=0, atol=0)
    assert model.head.table.data_ptr() == model.embedding.tokens.data_ptr()


def test_what_modules_share_is_still_shared_once_there_is_memory():
    with torch.device("meta"):
        model = build_model(tiny_config(), torch.float32)
    model.blocks[1] = model.blocks[0]
    model.head.norm.bias = model.blocks[0].attention_norm.bias
    names = [name for name, _ in model.own_parameters()]
    model.allocate(torch.device("cpu"))
    assert [name for name, _ in model.own_parameters()] == names
    assert model.blocks[1] is model.blocks[0]
    assert model.head.norm.bias is model.blocks[0].attention_norm.bias


def test_generators_differ_by_seed_and_by_name():
    draws = {
        (seed, name): torch.rand(1, generator=generator(seed, name)).item()
        for seed in (0, 1, -1, 1 << 70)
        for name in ("a", "b", "a.b")
    }
    assert len(set(draws.values())) == len(draws)


def test_truncated_numbers_are_within_the_cut_and_have_the_spread_of_a_truncated_normal():
    parameter = torch.nn.Parameter(torch.empty(500, 400))
    Draw(3, "layer", cut=2.0).normal(parameter, "weight", 0.02)
    density = math.exp(-2.0) / math.sqrt(2 * math.pi)
    spread = math.sqrt(1 - 2 * 2.0 * density / math.erf(math.sqrt(2.0)))  # 0.8796, for the cut at 2
    values = parameter.detach()
    assert values.abs().max() <= 0.04
    assert float(values.std()) == pytest.approx(0.02 * spread, rel=0.01)
