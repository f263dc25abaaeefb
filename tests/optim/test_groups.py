"""Patterns of names: what is not decayed, and what has a learning rate of its own."""

from dataclasses import replace

import pytest
import torch
from plain_updates import Plain, give_gradients, make_slots

from hornbook.__main__ import main
from hornbook.config import AdamConfig, AdamWConfig, LambConfig, MomentumConfig, SGDConfig
from hornbook.errors import UserError
from hornbook.optim.updates import build_update, in_groups

KINDS = [
    AdamWConfig,
    AdamConfig,
    LambConfig,
    lambda **options: LambConfig(exempt_vectors=False, **options),
    SGDConfig,
    MomentumConfig,
]


def named_slots(config):
    slots = make_slots(build_update(config).states)
    return [replace(slot, name=f"part{number}.{slot.name}") for number, slot in enumerate(slots)]


def updated(config, num_steps=3):
    slots = named_slots(config)
    update = in_groups(build_update(config), config, [slot.name for slot in slots])
    for count in range(1, num_steps + 1):
        give_gradients(slots, count)
        update.apply(slots, 0.1, count)
    return [slot.parameter for slot in slots]


@pytest.mark.parametrize("kind", KINDS)
def test_a_learning_rate_of_its_own_is_that_rate(kind):
    """Parameters that match move as with the rate that the factor makes, the others as without a pattern."""
    config = kind(weight_decay=0.3, learning_rate_scale=("part[01].*=0.25", "part1.*=7", "part6.*=0"))
    scales = [0.25, 0.25, 1.0, 1.0, 1.0, 1.0, 0.0]
    slots = named_slots(config)
    plain = [Plain(slot) for slot in slots]
    for count in (1, 2, 3):
        give_gradients(slots, count)
        for reference, scale in zip(plain, scales, strict=True):
            reference.update(config, 0.1 * scale, count)
    for parameter, reference in zip(updated(config), plain, strict=True):
        torch.testing.assert_close(parameter.double(), reference.w, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_what_no_decay_names_is_not_decayed(kind):
    changed = updated(kind(weight_decay=0.3, no_decay=("part5.*", "*.bias")))
    without, decayed = updated(kind(weight_decay=0.0)), updated(kind(weight_decay=0.3))
    for number, (one, plain, other) in enumerate(zip(changed, without, decayed, strict=True)):
        assert torch.equal(one, plain if number in (1, 3, 5) else other)
    assert not torch.equal(decayed[5], without[5])


@pytest.mark.parametrize("kind", KINDS)
def test_without_patterns_the_update_is_the_same_object(kind):
    update = build_update(kind())
    assert in_groups(update, kind(), ["weight"]) is update


def test_a_pattern_that_matches_nothing_is_refused():
    config = AdamWConfig(no_decay=("*.bias", "block.*"), learning_rate_scale=("embeding.*=0.1",))
    with pytest.raises(UserError) as caught:
        in_groups(build_update(config), config, ["embedding.tokens", "head.bias"])
    assert "optimizer.no_decay: 'block.*' matches no parameter" in str(caught.value)
    assert "optimizer.learning_rate_scale: 'embeding.*' matches no parameter" in str(caught.value)
    assert "'*.bias'" not in str(caught.value)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("learning-rate-scale=embedding.*", "expected PATTERN=FACTOR"),
        ("learning-rate-scale=embedding.*=-1", "expected PATTERN=FACTOR"),
        ("learning-rate-scale=embedding.*=nan", "expected PATTERN=FACTOR"),
        ("learning-rate-scale=a*=1,a*=2", "has two factors"),
        ("no-decay=block.*", "'block.*' matches no parameter; names of parameters are, for example, embedding.tokens,"),
    ],
)
def test_mistakes_are_reported_in_one_line(option, message, tmp_path, capsys):
    name, _, value = option.partition("=")
    command = ["train", "demo", "--data.synthetic", "--model.vocab-size", "300", f"--optimizer.{name}", value]
    assert main([*command, "--model.num-layers", "1", "--output", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
