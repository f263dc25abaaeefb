"""What the trials of native products compute and count, without a clock."""

import json
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from hornbook.ops import layers
from hornbook.ops.native import choice, linear, linear_trial, trials
from hornbook.ops.native.choice import choose
from hornbook.ops.native.kernels import Form, instruction_sets
from hornbook.ops.native.trials import Shape, seconds

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def on_this_machine():
    """Skip where native operators cannot be built or run."""
    if not instruction_sets():
        pytest.skip("the machine has no native form")


def test_trials_pack_weights_once_as_steps_do(monkeypatch, tmp_path):
    """A trial that packed them each time preferred PyTorch's products where whole steps are slower with them."""
    monkeypatch.setattr(trials, "_facts_file", lambda: tmp_path / "seconds.json")
    monkeypatch.setattr(choice, "KERNELS", linear_trial.KERNELS)
    clock, add = [0.0], torch.Tensor.__iadd__

    def advanced(seconds, call):
        def with_time(*arguments, **options):
            clock[0] += seconds
            return call(*arguments, **options)

        return with_time

    monkeypatch.setattr("time.thread_time", lambda: clock[0])
    call = Form.__call__

    def timed(form, name, *arguments):
        clock[0] += 10.0 * name.startswith("linear_pack_")
        return call(form, name, *arguments)

    monkeypatch.setattr(Form, "__call__", timed)
    of_weight = advanced(1.0, linear.linear_weight_gradient)
    for module in (linear, linear_trial):
        monkeypatch.setattr(module, "linear_weight_gradient", of_weight)
    monkeypatch.setattr(torch.Tensor, "__iadd__", advanced(4.0, add))  # the head's gradient, which PyTorch adds
    shape = Shape(tokens=16, hidden_size=16, feed_forward_size=32, vocab_size=64)
    assert set(choose("auto", CPU, torch.float32, shape=shape).forms) == {"linear_f32"}
    assert linear_trial.trial_layers.cache_info().currsize == 0, "memory of trials is freed"


@pytest.mark.parametrize("kind", [("relu_squared", False, False), ("silu", True, False), ("gelu", True, True)], ids=str)
def test_trials_compute_what_a_model_does_in_all_forms(kind):
    (kernel, _), gradients, (activation, is_gated, has_bias) = linear_trial.KERNELS, [], kind
    shape = Shape(8, 16, 24, vocab_size=32, activation=activation, is_gated=is_gated, has_bias=has_bias)
    sizes = {name: size for name, size in vars(shape).items() if name in kernel.sizes}
    up = (2, 24) if is_gated else (24,)
    shapes = ((*up, 16), (16, 24), (32, 16), *((up, (16,)) if has_bias else ()))
    for form in (None, *map(Form, kernel.instruction_sets)):
        linear_trial.trial_layers.cache_clear()
        with torch.no_grad():
            for _ in range(2):
                kernel.trial(form, torch.float32, **sizes)
        assert linear_trial.trial_layers.cache_info().currsize == 1, "layers of other kinds are not made"
        gradients.append([weight.grad for weight in linear_trial.trial_layers(*shapes)])
        assert linear_trial.trial_layers.cache_info().misses == 1, "the layers are those of the model"
    linear_trial.trial_layers.cache_clear()
    for of_form in gradients[1:]:
        torch.testing.assert_close(of_form, gradients[0])
    of_down, of_table = gradients[0][1:3]
    assert of_table.unique().tolist() == [2 * 8], "added, and each token of the head counts once"
    u = torch.tensor(1.0 + has_bias / up[-1])
    h = layers.ACTIVATIONS[activation](u) * (u if is_gated else 1)
    torch.testing.assert_close(of_down, torch.full_like(of_down, 2 * 8 * float(h)))


def test_times_are_those_of_one_kind_of_feed_forward(monkeypatch, tmp_path):
    """Forms whose gates are slow in the trial are not used by a gated model, and plain ones are timed apart."""
    file = tmp_path / "seconds.json"
    monkeypatch.setattr(trials, "_facts_file", lambda: file)
    monkeypatch.setattr(choice, "KERNELS", linear_trial.KERNELS)
    clock, fused = [0.0], linear.linear
    monkeypatch.setattr("time.thread_time", lambda: clock[0])

    def slow_if_gated(*arguments, **options):
        clock[0] += 10.0 if arguments[5:] == (True,) else 0.5
        return fused(*arguments, **options)

    def functional_linear(*arguments):
        clock[0] += 2.0
        return plain(*arguments)

    plain = functional.linear
    monkeypatch.setattr(layers, "native_linear", slow_if_gated)
    monkeypatch.setattr(layers.functional, "linear", functional_linear)
    shape = Shape(tokens=16, hidden_size=16, feed_forward_size=32, vocab_size=64, activation="silu")
    name = "linear_f32 tokens=16 hidden_size=16 feed_forward_size=32 vocab_size=64"  # of versions without the kind
    before = {name: dict.fromkeys((trials.PYTORCH, *instruction_sets()), 1.0)}
    file.write_text(json.dumps({trials._circumstances(): before}))
    assert set(choose("auto", CPU, torch.float32, shape=shape).forms) == {"linear_f32"}
    assert choose("auto", CPU, torch.float32, shape=replace(shape, is_gated=True)).forms == {}
    (known,) = json.loads(file.read_text()).values()
    times = {name: found for name, found in known.items() if name not in before and not name.endswith("right")}
    assert len(times) == 2
    assert {name.partition(" activation=")[2] for name in times} == {
        f"silu is_gated={is_gated} has_bias=True" for is_gated in (False, True)
    }
    spent = clock[0]
    seconds(linear_trial.KERNELS[0], replace(shape, is_gated=True))
    assert clock[0] == spent, "and once a machine"
