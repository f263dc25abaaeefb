"""The timing of block-sparse linear maps: what is timed, in which order, and what the command prints."""

import json

import pytest
import torch

from hornbook.__main__ import main
from hornbook.measure import sparse_speed
from hornbook.measure.sparse_speed import Case, interleaved, measure_case, measure_update

CPU = torch.device("cpu")
SMALL = ["--sizes", "32", "64", "--tokens", "40", "--rounds", "2", "--threads", "1", "--device", "cpu"]


def case(**options: object) -> Case:
    sizes = {"num_in": 32, "num_out": 64, "num_tokens": 40, "block_size": 8, "density": 0.25}
    return Case(**{**sizes, "dtype": torch.float32, "device": CPU, **options})


def test_calls_take_turns_and_the_first_round_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = [0.0], []

    def call(name: str, *seconds: float):
        def run() -> None:
            calls.append(name)
            now[0] += seconds[calls.count(name) - 1]

        return run

    for clock in ("process_time", "perf_counter"):
        monkeypatch.setattr(sparse_speed.time, clock, lambda: now[0])
    found = interleaved({"a": call("a", 100.0, 1.0, 2.0, 3.0), "b": call("b", 50.0, 4.0, 4.0, 4.0)}, CPU, 3)
    assert calls == ["a", "b"] * 4
    assert (found["a"].median, found["a"].spread) == (2.0, 0.5)
    assert (found["b"].median, found["b"].spread) == (4.0, 0.0)


@pytest.mark.parametrize("kernel", ["torch", "reference", "auto"])
def test_products_and_steps_of_both_kinds_are_timed(kernel: str) -> None:
    speed = measure_case(case(kernel=kernel, dtype=torch.bfloat16), 2)
    names = {"forward", "input_gradient", "weight_gradient", "feed_forward"}
    assert set(speed.dense) == set(speed.sparse) == names
    assert kernel in ("auto", speed.kernel)
    three = names - {"feed_forward"}
    ratio = sum(speed.dense[name].median for name in three) / sum(speed.sparse[name].median for name in three)
    assert speed.products_ratio == pytest.approx(ratio)


def test_the_sparse_calls_compute_what_the_dense_ones_do() -> None:
    torch.manual_seed(0)
    up, down = sparse_speed._maps(case())
    calls = sparse_speed._products(case(), up, down)
    for name in ("forward", "input_gradient"):
        for dense, sparse in zip(calls[f"dense {name}"](), calls[f"sparse {name}"](), strict=True):
            torch.testing.assert_close(sparse, dense, rtol=1e-4, atol=1e-4)


def test_an_update_of_the_pattern_takes_its_share() -> None:
    update = measure_update(case(num_tokens=256), 2)
    assert 0.0 <= update.share < 1.0 and update.step_seconds > 0.0
    assert update.share == pytest.approx(update.update_seconds / (100 * update.step_seconds + update.update_seconds))


def test_the_command_prints_and_returns_each_combination(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--sparsity", "0.5", "0.75", "--block-size", "8", "--dtype", "fp32", "--kernel", "torch", "--json"]
    assert main(["bench", "sparse", *SMALL, *options]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert [(row["dtype"], row["block_size"], row["sparsity"]) for row in found["rows"]] == [
        ("fp32", 8, 0.5),
        ("fp32", 8, 0.75),
    ]
    assert {row["kernel"] for row in found["rows"]} == {"torch"} and found["sizes"] == [32, 64]
    assert len(found["pattern_updates"]) == 1
    assert "fp32, blocks of 8, 0.75 sparse; kernel torch: as asked" in captured.err
    assert "pattern update of a GPT layer, blocks of 8" in captured.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sparsity", "1"], "must be at least 0 and below 1"),
        (["--sizes", "30", "64", "--block-size", "8"], "does not divide"),
        (["--block-size", "8", "--sparsity", "0.999"], "leaves no block"),
    ],
)
def test_bad_input_is_one_line(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["bench", "sparse", *SMALL, *options])
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    assert code == 2 and message in capsys.readouterr().err
