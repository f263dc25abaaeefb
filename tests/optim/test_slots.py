import pytest
import torch

from hornbook.optim.slots import Slot, num_parts_of, role_of


@pytest.mark.parametrize(
    ("name", "shape", "role", "num_parts"),
    [
        ("blocks.0.attention.qkv.weight", (3, 8, 6), "matrix", 3),
        ("blocks.0.attention.qkv.bias", (3, 8), "bias", 3),
        ("blocks.0.attention.out.weight", (6, 8), "matrix", 1),
        ("blocks.0.feed_forward.down.bias", (6,), "bias", 1),
        ("blocks.0.attention_norm.weight", (6,), "norm", 1),
        ("blocks.0.attention_norm.bias", (6,), "bias", 1),
        ("blocks.0.convolution.filter", (6, 16, 7), "matrix", 1),
        ("embedding.tokens", (64, 6), "matrix", 1),
        ("embedding.segments", (2, 6), "matrix", 1),
        ("head.bias", (64,), "bias", 1),
        ("scale", (), "norm", 1),
    ],
)
def test_a_name_and_a_shape_say_what_a_parameter_is(name, shape, role, num_parts):
    assert role_of(name, torch.empty(shape)) == role
    assert num_parts_of(name) == num_parts


def test_parts_are_views():
    parameter = torch.arange(18.0).view(3, 3, 2)
    slot = Slot(name="weight", parameter=parameter, gradient=parameter, state={}, num_parts=3)
    slot.cut(parameter)[1].zero_()
    assert parameter[1].abs().sum() == 0 and parameter[0].sum() == 15
    assert slot.decay
    assert not Slot(name="weight", parameter=parameter, gradient=parameter, state={}, role="norm").decay
