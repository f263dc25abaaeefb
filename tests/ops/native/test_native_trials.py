"""What the trials of native products compute and count, without a clock."""

import pytest
import torch

from hornbook.ops.native import choice, library, products
from hornbook.ops.native.choice import choose
from hornbook.ops.native.library import Form, Shape, instruction_sets

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def on_this_machine():
    """Skip where native operators cannot be built or run."""
    if not instruction_sets():
        pytest.skip("the machine has no native form")


def test_trials_pack_weights_once_as_steps_do(monkeypatch, tmp_path):
    """A trial that packed them each time preferred PyTorch's products where whole steps are slower with them."""
    monkeypatch.setattr(library, "_facts_file", lambda: tmp_path / "seconds.json")
    monkeypatch.setattr(choice, "KERNELS", products.KERNELS)
    clock, pack, add = [0.0], products.pack, torch.Tensor.__iadd__

    def advanced(seconds, call):
        def with_time(*arguments, **options):
            clock[0] += seconds
            return call(*arguments, **options)

        return with_time

    monkeypatch.setattr("time.thread_time", lambda: clock[0])
    monkeypatch.setattr(products, "pack", advanced(10.0, pack))
    monkeypatch.setattr(products, "add_weight_gradient", advanced(1.0, products.add_weight_gradient))
    monkeypatch.setattr(torch.Tensor, "__iadd__", advanced(4.0, add))  # the head's gradient, which PyTorch adds
    shape = Shape(tokens=16, hidden_size=16, feed_forward_size=32, vocab_size=64)
    assert set(choose("auto", CPU, torch.float32, shape=shape).forms) == {"linear_f32"}
    assert products.trial_layers.cache_info().currsize == 0, "memory of trials is freed"


def test_trials_compute_the_same_in_all_forms():
    (kernel, _), gradients = products.KERNELS, []
    for form in (None, *map(Form, kernel.instruction_sets)):
        products.trial_layers.cache_clear()
        with torch.no_grad():
            for _ in range(2):
                kernel.trial(form, torch.float32, tokens=8, hidden_size=16, feed_forward_size=24, vocab_size=32)
        shapes = (24, 16), (16, 24), (32, 16)
        gradients.append([weight.grad for weight in products.trial_layers(*shapes)])
    products.trial_layers.cache_clear()
    for of_form in gradients[1:]:
        torch.testing.assert_close(of_form, gradients[0])
    assert gradients[0][2].unique().tolist() == [2 * 8 * 16.0], "added, and each token of the head counts once"
