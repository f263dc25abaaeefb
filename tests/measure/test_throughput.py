"""The timing of training steps: every contender makes the same steps, and tokens are counted without padding."""

import json
import sys
from dataclasses import replace

import pytest
from cases import mostly_slow

from hornbook import peers as transformer_peers
from hornbook.__main__ import main
from hornbook.cli.bench_step import _operators
from hornbook.config import load_recipe
from hornbook.errors import UserError
from hornbook.measure import throughput
from hornbook.measure.throughput import hornbook_step, measure_steps, synthetic_loader
from hornbook.ops.native.kernels import Kernels, using
from hornbook.parallel.world import World
from hornbook.peers import transformers_step, transformers_step_apart
from hornbook.samples.batches import size_of

_SIZES = (
    "--model.num-layers=1 --model.hidden-size=32 --model.num-heads=2 --model.max-positions=96 --model.vocab-size=70 "
    "--data.sequence-length=96 --training.global-batch-size=6 --training.micro-batch-size=3 --precision.compute=fp32"
)
SIZES = _SIZES.split()
FAMILIES = {
    "demo": [],
    "bert-tiny": [],
    "bert-small": ["--objective.name", "mlm"],
    "bert-mini": ["--model.family", "roberta", "--objective.name", "mlm"],
}


def small(name):
    overrides = [*SIZES, *FAMILIES[name]]
    if "roberta" in overrides:
        overrides += ["--objective.max-predictions", "8"]
    return load_recipe(name, overrides, require_data=False).recipe


def test_weights_that_begin_as_zeros_do_not_exclude_a_peer():
    recipe = load_recipe("story-1m", ["--model.vocab-size", "70"], require_data=False).recipe
    assert type(transformer_peers.build_model(recipe)).__name__ == "Qwen3ForCausalLM"


def test_contenders_take_turns_and_medians_count(monkeypatch: pytest.MonkeyPatch):
    """A clock that a contender turns itself, slow in the last round."""
    now, calls = [0.0], []

    def contender(name: str, seconds: float, tokens: int):
        def step() -> int:
            calls.append(name)
            now[0] += seconds * (10.0 if len(calls) > 8 else 1.0)
            return tokens

        return step

    monkeypatch.setattr(throughput.time, "perf_counter", lambda: now[0])
    contenders = {"a": contender("a", 1.0, 6), "b": contender("b", 2.0, 6)}
    speeds = measure_steps(contenders, World(), rounds=3)
    assert calls == ["a", "b"] * 5
    assert [(speed.step_seconds, speed.tokens_per_second) for speed in speeds.values()] == [(1.0, 6.0), (2.0, 3.0)]


@pytest.mark.parametrize("name", mostly_slow(FAMILIES))
def test_all_train_on_the_same_tokens(name):
    recipe = small(name)
    with synthetic_loader(recipe, World()) as loader:
        expected = [sum(size_of(batch).tokens for batch in next(loader)) for _ in range(2)]
    peers = [transformers_step(recipe, World(), precision=precision) for precision in ("fp32", "bf16")]
    for step in (hornbook_step(recipe, World()), *peers):
        assert [step(), step()] == expected


def test_the_peer_sees_no_padding():
    recipe = small("bert-tiny")
    with synthetic_loader(replace(recipe, data=replace(recipe.data, layout="padded")), World()) as loader:
        batch = next(loader)[0]
    lengths = batch["lengths"]
    inputs = transformer_peers._inputs(batch)
    seen = inputs["attention_mask"]
    assert seen.shape == inputs["input_ids"].shape == (3, int(lengths.max()))
    assert lengths.min() < lengths.max()
    assert seen.sum(1).tolist() == lengths.tolist()
    assert (seen.diff(dim=1) <= 0).all(), "the padding is behind the sequence"
    assert (inputs["labels"][seen == 0] == -100).all()


def test_an_encoders_tokens_are_counted_without_padding():
    recipe = small("bert-tiny")
    places = recipe.training.global_batch_size * recipe.sequence_length
    assert 0 < hornbook_step(recipe, World())() < places


@pytest.mark.slow  # peers in processes of their own
def test_the_command_gives_the_ratio(capsys):
    options = ["--peer", "transformers", "--rounds", "1", "--threads", "1", "--json"]
    assert main(["bench", "step", "bert-tiny", *SIZES, *options]) == 0
    result = json.loads(capsys.readouterr().out)
    ours, *others = [row["tokens_per_second"] for row in result["contenders"].values()]
    assert result["ratio"] == pytest.approx(ours / max(others))
    model = small("bert-tiny").model
    assert (result["num_parameters"], result["vocab_size"]) == (model.num_parameters(), model.vocab_size)


def test_operators_that_a_step_has_no_use_for_are_not_named():
    forms = dict.fromkeys(("linear_f32", "dropout_f32", "token_block_f32"), "avx2")
    recipe = small("bert-tiny")
    none = {"embedding_dropout": 0.0, "residual_dropout": 0.0, "attention_dropout": 0.1}
    with using(Kernels(why="test", forms=forms)):
        found = [
            _operators(replace(recipe, model=replace(recipe.model, **none | {"residual_dropout": share})))
            for share in (0.0, 0.1)
        ]
    assert found == ["native: linear_f32 avx2 (test)", "native: linear_f32 avx2, dropout_f32 avx2 (test)"]


def test_data_are_refused_since_steps_are_timed_on_random_tokens(capsys):
    assert main(["bench", "step", "bert-tiny", *SIZES, "--data.train", "nowhere"]) == 2
    assert "the benchmark uses random tokens: remove data.train" in capsys.readouterr().err


def test_a_model_that_the_peer_lacks_is_refused(capsys):
    assert main(["bench", "step", "bert-tiny", *SIZES, "--model.family", "groupbert", "--peer", "transformers"]) == 2
    assert "transformers has no model of the family groupbert" in capsys.readouterr().err


@pytest.mark.slow
def test_a_peer_in_a_process_of_its_own_makes_the_same_steps():
    recipe = small("bert-tiny")
    twin = transformers_step(recipe, World(), precision="fp32")
    with transformers_step_apart(recipe, World(), precision="fp32") as step:
        assert [step(), step()] == [twin(), twin()]


@pytest.mark.slow
def test_a_peer_that_transformers_lacks_is_one_line_in_its_own_process_too(capfd):
    recipe = load_recipe("demo", [*SIZES, "--model.activation", "relu_squared"], require_data=False).recipe
    with (
        pytest.raises(UserError, match="ended for the reason above"),
        transformers_step_apart(recipe, World(), precision="fp32"),
    ):
        pass
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_the_signal_that_ended_a_peer_is_named(monkeypatch, tmp_path):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nkill -KILL $$\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with (
        pytest.raises(UserError, match="ended by SIGKILL; to time it only in this process"),
        transformers_step_apart(small("bert-tiny"), World(), precision="fp32"),
    ):
        pass


def test_operators_and_neighbors_of_a_step(capsys):
    words = ["bench", "step", "demo", *SIZES, "--precision.kernels=torch", "--threads", "1", "--rounds", "1", "--json"]
    assert main([*words, "--operators", "--neighbor"]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out.splitlines()[-1])
    shares = [row["share"] for row in result["operators"]]
    assert sum(shares) == pytest.approx(1.0)
    assert shares == sorted(shares, reverse=True)
    assert "aten::_fused_adamw_" in {row["name"] for row in result["operators"]}
    cost = result["neighbor"]
    assert cost["loss"] == pytest.approx(1.0 - cost["beside"] / cost["alone"])
    assert "aten::" in err and "lost beyond the share of the processor" in err
