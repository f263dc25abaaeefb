"""Compiled blocks on two ranks that split layers compute what those that are not compiled do."""

import functools
import json

import compiled_ranks
import pytest
import torch
from ranks import PARALLEL, fork_ranks, python

pytestmark = pytest.mark.filterwarnings("ignore")  # of the compiler, about itself
SEQUENCE = "sequence 2"
PAIRS = {"fused_all_gather_matmul": 2, "fused_matmul_reduce_scatter": 2}
"""Exchanges of a block's pass, forward or backward: attention and feed-forward are two pairs of layers."""
OF_DECODER = {**PAIRS, "fused_matmul_reduce_scatter": 3}
"""Backward, if queries are a layer of their own, apart from keys and values: both gather the same, but not backward."""
FEW = {"cases": [("gpt", "tensor 2")], "fused": [("gpt", SEQUENCE)]}
MANY = {
    "cases": [
        ("deep gpt", SEQUENCE),
        ("gpt odd", SEQUENCE),
        ("gpt", "sequence 2, recomputed"),
        ("decoder", "tensor 2"),
        ("bert packed", "tensor 2"),
        ("groupbert", "tensor 2"),
        ("modernbert", "tensor 2"),
    ],
    "fused": [("decoder", SEQUENCE), ("gpt odd", SEQUENCE)],
}


@pytest.fixture(scope="module", params=[FEW, pytest.param(MANY, marks=pytest.mark.slow)], ids=["few", "many"])
def found(request, tmp_path_factory):
    """The cases, and what the first rank found of them."""
    folder = tmp_path_factory.mktemp("compiled")
    fork_ranks(2, functools.partial(compiled_ranks.main, folder, **request.param), seconds=1200)
    runs = json.loads((folder / "compiled.json").read_text())
    return request.param, dict(zip(request.param["cases"] + request.param["fused"], runs, strict=True))


def test_compiled_blocks_have_the_same_gradients(found):
    """The same bits where products are the same; with fused exchanges, biases are added behind them."""
    cases, runs = found
    for case, run in runs.items():
        plain, compiled = run["runs"]
        if case not in cases["fused"] and case[0] in ("gpt", "deep gpt", "gpt odd"):
            assert compiled == plain, case
        expected, gradients = (torch.tensor(each["gradients"], dtype=torch.float64) for each in (plain, compiled))
        assert (gradients - expected).norm() < 1e-6 * expected.norm(), case
        assert compiled["losses"] == pytest.approx(plain["losses"], rel=1e-6), case


def test_all_layers_share_a_graph(found):
    """Of modernbert, those with a window and those without; of others, graphs with and without padding."""
    _, runs = found
    for (model, layout), run in runs.items():
        assert run["num_graphs"] == 1 or model in ("modernbert", "bert packed", "groupbert"), (model, layout)
        assert run["num_graphs"] <= 2


def test_every_exchange_of_a_block_is_fused_with_a_product(found):
    cases, runs = found
    for case in cases["fused"]:
        assert runs[case]["graphs"] == [PAIRS, OF_DECODER if case[0] == "decoder" else PAIRS], case


@pytest.mark.slow
@pytest.mark.skipif("+cpu" not in torch.__version__, reason="fakes a GPU in builds without CUDA")
def test_three_layers_on_a_gpu_share_graphs_in_which_every_exchange_is_fused():
    """Without values, but with the operators of a GPU; tensor parallelism alone has sums over the ranks, in place."""
    done = python(PARALLEL / "fake_exchanges.py")
    assert done.returncode == 0, done.stderr
    gpt, decoder, unfused = json.loads(done.stdout)
    assert gpt == {"graphs": [PAIRS, PAIRS], "breaks": {}}
    assert decoder == {"graphs": [PAIRS, OF_DECODER], "breaks": {}}
    assert unfused == {"graphs": [{"all_reduce_": 2}] * 2, "breaks": {}}
