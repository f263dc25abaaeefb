"""Tensors of earlier versions get the names and shapes that models have now."""

import torch

from hornbook.checkpoint import Contents
from hornbook.exchange.contents import upgrade

OLD = {
    "blocks.0.attention.qkv_weight": torch.arange(24.0).reshape(3, 4, 2),
    "blocks.0.attention.qkv_bias": torch.arange(12.0),
    "blocks.0.attention.out.weight": torch.ones(2, 4),
}
NEW = {
    "blocks.0.attention.qkv.weight": torch.arange(24.0).reshape(3, 4, 2),
    "blocks.0.attention.qkv.bias": torch.arange(12.0).reshape(3, 4),
    "blocks.0.attention.out.weight": torch.ones(2, 4),
}


def moments(tensors):
    return {f"{name}.{key}": tensor + 1 for name, tensor in tensors.items() for key in ("exp_avg", "exp_avg_sq")}


def upgraded(stored, own):
    return upgrade(Contents(step=1, tensors=stored), own).tensors


def same(found, expected):
    assert set(found) == set(expected)
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


def test_weights_and_moments_are_renamed_and_biases_are_stacked():
    own = {"model": NEW, "optimizer": moments(NEW)}
    found = upgraded({"model": OLD, "optimizer": moments(OLD)}, own)
    for group, expected in own.items():
        same(found[group], expected)


def test_a_model_that_still_has_the_old_names_keeps_them():
    same(upgraded({"model": OLD}, {"model": OLD})["model"], OLD)


def test_a_checkpoint_with_the_new_names_stays_as_it_is():
    stored = {"model": NEW}
    assert upgraded(stored, {"model": NEW})["model"] is NEW


def test_other_names_and_groups_of_which_nothing_is_known_stay():
    stored = {"x.qkv_weight": torch.ones(1), "blocks.0.attention.qkv_weights": torch.ones(1)}
    same(upgraded({"model": stored}, {"model": NEW})["model"], stored)
    same(upgraded({"optimizer": moments(OLD)}, {"model": NEW})["optimizer"], moments(OLD))


def test_a_bias_that_is_not_stacked_three_times_keeps_its_shape_so_that_the_comparison_fails():
    stored = {"blocks.0.attention.qkv_bias": torch.ones(7)}
    assert upgraded({"model": stored}, {"model": NEW})["model"]["blocks.0.attention.qkv.bias"].shape == (7,)
