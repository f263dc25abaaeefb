"""Activations in host memory: what is copied, how often and when."""

import gc

import pytest
import torch
from tiny import random_batch, tiny_model

from hornbook.engine import activations
from hornbook.engine.activations import offload_layers
from hornbook.engine.spaces import pinned_bytes, pinned_zeros_like
from hornbook.objective import CausalLM


@pytest.fixture
def copied(monkeypatch):
    """The tensors that are copied to host memory."""
    found = []
    monkeypatch.setattr(activations, "_host_bytes", lambda like: found.append(like) or torch.empty(like.nbytes).byte())
    return found


def test_casts_of_weights_stay_and_each_activation_is_copied_once(copied):
    model = tiny_model(compute_dtype=torch.bfloat16)
    offload_layers(model)
    x, batch = torch.randn(3, 8, 16, dtype=torch.bfloat16).requires_grad_(), random_batch(3, 8)
    loss = model.blocks[0](x, model.make_context(batch)).sum()
    shapes = {
        shape
        for parameter in model.blocks[0].parameters()
        if parameter.dim() > 1
        for shape in (parameter.shape, parameter.flatten(0, -2).shape, parameter.flatten(0, -2).t().shape)
    }
    assert copied and not shapes.intersection(tensor.shape for tensor in copied)
    places = [(tensor.data_ptr(), tensor.shape, tensor.stride()) for tensor in copied]
    assert len(set(places)) == len(places)
    loss.backward()
    again = len(copied)
    model.blocks[0](x, model.make_context(batch)).sum().backward()
    assert len(copied) == again  # host memory is reused


def test_the_backward_pass_of_a_layer_fetches_the_layer_before_it(monkeypatch):
    model = tiny_model(num_layers=3)
    offload_layers(model)
    fetched, fetch = [], activations._Layer.fetch
    monkeypatch.setattr(
        activations._Layer, "fetch", lambda layer, copies: fetched.append(layer) or fetch(layer, copies)
    )
    sums = model(CausalLM().sums, random_batch(2, 8))
    assert not fetched
    sums["causal_lm"].backward()
    assert len(fetched) == 2
    assert all(kept() is None or kept().fetched is None for layer in fetched for kept in layer.kept)


def test_pinned_memory_is_not_rounded_and_is_returned(monkeypatch):
    pinned = {}

    class Runtime:
        def cudaHostRegister(self, address, size, flags):
            pinned[address] = size
            return 0

        def cudaHostUnregister(self, address):
            del pinned[address]

    monkeypatch.setattr(torch.cuda, "cudart", Runtime)
    monkeypatch.setattr(torch.cuda, "check_error", lambda error: None)
    view = pinned_bytes(5 << 20)[3:].add_(1)
    assert list(pinned.values()) == [5 << 20]
    gc.collect()
    assert pinned and int(view[-1]) == 1
    del view
    assert not pinned
    likes = {"a": {"m": torch.ones(3, 5), "v": torch.ones(7, dtype=torch.bfloat16)}, "b": {"m": torch.ones(2, 300)}}
    zeros = pinned_zeros_like(likes)
    assert sum(pinned.values()) == 512 + 512 + 2560
    for name, group in likes.items():
        for key, like in group.items():
            assert torch.equal(zeros[name][key], torch.zeros_like(like))
            zeros[name][key].copy_(like)
    assert all(torch.equal(zeros[name][key], like) for name, group in likes.items() for key, like in group.items())
