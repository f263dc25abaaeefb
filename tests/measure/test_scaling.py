"""Steps on several ranks: what they send is what the formulas say, and how they are timed beside one process."""

import json
from pathlib import Path

import pytest
from ranks import TORCHRUN, python
from tiny_layouts import recipe_of

from hornbook.__main__ import main

SCRIPT = Path(__file__).parent / "scaling_ranks.py"
TWO = [
    ("gpt", "data 2"),
    ("bert padded", "shard 2"),
    ("bert packed", "tensor 2"),
    ("groupbert", "sequence 2"),
    ("deep gpt", "v-shaped 2"),
]
MORE_OF_TWO = [
    ("bert packed", "data 2"),
    ("gpt", "shard 2"),
    ("gpt", "shard 2, once"),
    ("gpt", "tensor 2"),
    ("groupbert", "tensor 2"),
    ("gpt", "sequence 2"),
    ("gpt", "gpipe 2"),
    ("deep bert padded", "interleaved 2"),
]
FOUR = [
    ("gpt", "data 4"),
    ("gpt", "hybrid 2x2"),
    ("gpt", "hybrid 2x2, once"),
    ("bert padded", "tensor 2 x shard 2"),
    ("deep gpt", "1f1b 2 x data 2"),
    ("deep gpt", "1f1b 2 x shard 2"),
    ("deep gpt", "1f1b 2 x tensor 2"),
    ("deep bert padded", "1f1b 4, listed"),
    ("bert padded", "sequence 2 x shard 2"),
    ("deep gpt", "1f1b 2 x sequence 2"),
    ("deep gpt", "v-shaped 2 x shard 2"),
]


@pytest.fixture(
    scope="module",
    params=[pytest.param(case, marks=pytest.mark.slow) for case in ((2, TWO), (2, MORE_OF_TWO), (4, FOUR))],
    ids=["2", "more of 2", "4"],
)
def measured(request, tmp_path_factory):
    """The cases of so many ranks, and what was found of each."""
    (num_ranks, cases), file = request.param, tmp_path_factory.mktemp("scaling") / "found.json"
    done = python(*TORCHRUN, num_ranks, SCRIPT, file, json.dumps(cases))
    assert done.returncode == 0, done.stderr
    return cases, json.loads(file.read_text())


def test_ranks_send_what_the_formula_says(measured):
    """Exactly, but for counts, losses and norms: one number a parameter, and a few."""
    cases, found = measured
    for (model, layout), scaling in zip(cases, found, strict=True):
        few = 16 * len(list(recipe_of(model, "adamw").model.shapes())) + 256
        for rank, traffic in enumerate(scaling["ranks"]):
            sent, formula = traffic["sent"], traffic["formula"]
            assert formula, (model, layout)
            for operation in {*sent, *formula}:
                more = sent.get(operation, 0.0) - formula.get(operation, 0.0)
                allowed = few if operation == "all_reduce" else 0
                assert 0 <= more <= allowed, (model, layout, rank, operation, sent, formula)


def test_ranks_are_timed_beside_one_process(measured):
    _, (first, *others) = measured
    num_ranks = len(first["ranks"])
    alone, together = (first[name]["tokens_per_second"] for name in ("alone", "together"))
    assert first["efficiency"] == pytest.approx(together / (num_ranks * alone))
    assert {other["alone"] for other in others} == {other["efficiency"] for other in others} == {None}
    shares = [traffic["waiting"] for scaling in (first, *others) for traffic in scaling["ranks"]]
    assert all(0.0 < share < 1.0 for share in shares)


SIZES = [
    *("--model.num-layers=1", "--model.hidden-size=32", "--model.num-heads=2", "--model.max-positions=16"),
    *("--model.vocab-size=70", "--data.sequence-length=16", "--training.global-batch-size=4"),
    *("--training.micro-batch-size=2", "--precision.compute=fp32", "--rounds=1"),
]


@pytest.mark.slow
def test_the_command_prints_speed_efficiency_and_traffic():
    done = python("-m", "hornbook", "bench", "step", "demo", *SIZES, "--processes", "2", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["num_ranks"], len(found["ranks"])) == (2, 2)
    assert 0.0 < found["efficiency"] < 2.0
    assert found["tflops_ratio"] == pytest.approx(found["tflops"] / found["matmul_tflops"])
    assert 0.0 < found["tflops_ratio"] < 1.0
    lines = [line.split() for line in done.stderr.splitlines()]
    assert ["scaling", "efficiency", f"{found['efficiency']:.1%}"] in lines
    assert [line[1] for line in lines if line and line[0] in "01"] == ["all-reduce"] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--processes", "2", "--peer", "transformers"], "--peer is timed in one process"),
        (["--skip-alone"], "--skip-alone applies only to several ranks"),
        (["--processes", "3"], "global_batch_size"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, message, capsys):
    assert main(["bench", "step", "demo", *SIZES, *options]) == 2
    assert message in capsys.readouterr().err
