"""Shards whose weights are gathered in bf16, as on GPUs, on two ranks of a CPU."""

import json

import pytest
import torch
from ranks import PARALLEL, TORCHRUN, python

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("narrow")
    done = python(*TORCHRUN, 2, PARALLEL / "narrow_ranks.py", folder)
    assert done.returncode == 0, done.stderr
    runs = json.loads((folder / "found.json").read_text())
    return {"each micro-batch": runs[:2], "once a step": runs[2:]}


@pytest.mark.parametrize("sums", ["each micro-batch", "once a step"])
def test_it_learns_the_same(found, sums):
    wide, narrow = found[sums]
    assert narrow["losses"] == pytest.approx(wide["losses"], rel=2e-3)
    assert narrow["dtypes"] == ["torch.float32"]
    exact, rounded = (torch.tensor(run["gradients"]) for run in (wide, narrow))
    assert (rounded - exact).norm() < 1e-2 * exact.norm()
    assert not torch.equal(rounded, exact)


@pytest.mark.parametrize("sums", ["each micro-batch", "once a step"])
def test_blocks_and_head_are_gathered_in_half_of_the_bytes_and_summed_in_fp32(found, sums):
    wide, narrow = (run["bytes"] for run in found[sums])
    in_bf16, in_fp32 = (narrow[f"all_gather {dtype}"] for dtype in ("bfloat16", "float32"))
    assert wide.keys() == {"all_gather float32", "reduce_scatter float32"}
    assert 2 * in_bf16 + in_fp32 == wide["all_gather float32"]
    assert 2 * in_bf16 > 5 * in_fp32  # the embedding's tables
    assert narrow["reduce_scatter float32"] == wide["reduce_scatter float32"]
    assert len(narrow) == 3
