"""What a run carries: logical tensors out, the same tensors in, bit for bit."""

import json

import pytest
import torch
from tiny import fresh_state, random_batch, snapshot, tensors_of, tiny_model, tiny_state, tiny_step_config

from hornbook.engine.state import Progress, TrainState
from hornbook.engine.step import train_step
from hornbook.errors import CheckpointError
from hornbook.objective import CausalLM
from hornbook.optim.updates import Update


def trained(num_steps: int, state: TrainState | None = None) -> TrainState:
    state = state or tiny_state()
    for _ in range(num_steps):
        train_step(state, [random_batch(2, 8, seed=state.progress.step)], tiny_step_config())
    return state


def test_fresh_moments_are_zero_and_named_by_the_update():
    state = fresh_state(
        tiny_model(), Update(states=lambda _, shape: dict.fromkeys("abc", shape), apply=lambda *_: None)
    )
    assert set(state.home.moments) == {name for name, _ in state.model.own_parameters()}
    for name, parameter in state.model.own_parameters():
        assert set(state.home.moments[name]) == {"a", "b", "c"}
        assert all(tensor.shape == parameter.shape and not tensor.any() for tensor in state.home.moments[name].values())


def test_vectors_are_not_decayed_and_what_has_no_gradient_has_no_slot():
    state = tiny_state()
    with state.home.slots("model", 1) as slots:
        assert slots == []
    batch = random_batch(2, 8)
    state.model(CausalLM().sums, batch)["causal_lm"].backward()
    state.home.keep_gradients("model")
    with state.home.slots("model", 1) as slots:
        decayed = {slot.name: slot.decay for slot in slots}
    assert list(decayed) == [name for name, _ in state.model.own_parameters()]
    for name in decayed:
        assert decayed[name] is (not name.endswith("bias") and "norm" not in name), name


def test_slots_know_roles_and_stacked_parts():
    state = tiny_state()
    for _, parameter in state.model.own_parameters():
        parameter.grad = torch.zeros_like(parameter)
    with state.home.slots("model", 1) as opened:
        slots = {slot.name: slot for slot in opened}
    attention = "blocks.0.attention"
    found = {name: (slots[name].role, slots[name].num_parts) for name in slots if name.startswith(attention)}
    assert found == {
        f"{attention}.qkv.weight": ("matrix", 3),
        f"{attention}.qkv.bias": ("bias", 3),
        f"{attention}.out.weight": ("matrix", 1),
        f"{attention}.out.bias": ("bias", 1),
        f"{attention}_norm.weight": ("norm", 1),
        f"{attention}_norm.bias": ("bias", 1),
    }


def test_tensors_have_logical_shapes_and_no_second_table():
    files = tiny_state().home.tensors()
    assert set(files) == {"model", "optimizer"}
    assert files["model"]["embedding.tokens"].shape == (70, 16)
    assert files["optimizer"]["embedding.tokens.exp_avg"].shape == (70, 16)
    assert "head.table" not in files["model"]
    assert set(files["optimizer"]) == {f"{name}.{key}" for name in files["model"] for key in ("exp_avg", "exp_avg_sq")}


def test_a_loaded_state_continues_like_the_saved_one():
    saved = trained(2)
    tensors = {
        file: {name: tensor.clone() for name, tensor in values.items()} for file, values in tensors_of(saved).items()
    }
    progress = json.loads(json.dumps(saved.to_json()))
    loaded = tiny_state(seed=99)
    loaded.load_tensors(tensors)
    loaded.progress = Progress(**progress)
    assert loaded.progress == saved.progress
    assert loaded.model.head.table.data_ptr() == loaded.model.embedding.tokens.data_ptr()
    expected = snapshot(trained(3, saved))
    for name, tensor in snapshot(trained(3, loaded)).items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize(
    "odd", [5, [], {"causal_lm": "5"}, {"causal_lm": True}, {"causal_lm": None}, {"causal_lm": {}}, None], ids=str
)
@pytest.mark.parametrize("key", ["unlogged_sums", "unlogged_counts"])
def test_malformed_sums_in_a_checkpoint_are_errors(key: str, odd: object) -> None:
    with pytest.raises(CheckpointError, match=rf"state\.json: {key} is "):
        Progress.from_json({"step": 5, key: odd}, "state.json")


def test_sums_in_a_checkpoint_are_read_and_old_ones_have_none() -> None:
    stored = Progress(step=5, unlogged_sums={"mlm": 7.25, "nsp": 0.5}, unlogged_counts={"mlm": 3, "nsp": 0})
    assert Progress.from_json(json.loads(json.dumps(vars(stored))), "state.json") == stored
    assert Progress.from_json({"step": 5}, "state.json").unlogged_sums == {}
    with pytest.raises(CheckpointError, match="unlogged_counts"):
        Progress.from_json({"step": 5, "unlogged_counts": {"mlm": -1}}, "state.json")
