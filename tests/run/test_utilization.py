"""FLOP/s and MFU of a run: the machine's peak, what a run logs of it, and that nothing else notices."""

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_runs
import torch

from hornbook.__main__ import main
from hornbook.config import load_recipe
from hornbook.engine.build_training import build_samples
from hornbook.parallel.world import World
from hornbook.run import utilization
from hornbook.run.utilization import (
    Peak,
    Product,
    Utilization,
    compute_clock,
    measure_rates,
    measure_utilization,
    peak_of,
)
from hornbook.samples.sources import open_sources
from hornbook.track.metrics import read

CPU = torch.device("cpu")


def test_speed_becomes_operations_and_their_share_of_the_peak() -> None:
    peak = Peak(device="a processor", rate=2e12, source="measured")
    measured = Utilization(flops_per_token=2e9, peak=peak, num_ranks=2)
    assert measured.at(500.0) == {"tflops": 1.0, "mfu": 0.25}
    assert measured.describe() == "4 TFLOP/s, measured"


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA H200 NVL", 835),
        ("NVIDIA A800-SXM4-80GB", 312),
        ("NVIDIA A800 80GB PCIe", 312),
        ("NVIDIA L40S", 362),
        ("NVIDIA GeForce RTX 3090", 71),
        ("NVIDIA GeForce RTX 5090", 209.5),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA L4", 121),
        ("NVIDIA A10", 125),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA A10G", None),
        ("NVIDIA H20", None),
        ("Tesla T4", None),
        ("Tesla V100-SXM2-16GB", 15.7),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("", None),
    ],
)
def test_the_peak_of_a_card_goes_by_its_name(name: str, tflops: float | None) -> None:
    found = peak_of(name, torch.bfloat16)
    assert found == (None if tflops is None else pytest.approx(tflops * 1e12))
    assert peak_of(name, torch.float32) is None


def test_a_card_without_products_in_bf16_has_those_in_fp16() -> None:
    assert peak_of("Tesla V100-SXM2-16GB", torch.float16) == pytest.approx(125e12)


def test_the_product_has_the_feed_forwards_shape_and_large_ones_lose_rows() -> None:
    recipe = load_recipe("gpt2-small", [], require_data=False).recipe
    small, large = (Product.of(recipe, tokens, torch.bfloat16, CPU) for tokens in (100, 1e9))
    assert (small.left.shape, small.right.shape, small.left.dtype) == ((100, 768), (768, 3072), torch.bfloat16)
    assert 64 <= len(large.left) < 1000
    assert small.flops == small.repeats * 2 * 100 * 768 * 3072


def test_a_tiny_product_is_timed_in_a_moment() -> None:
    """Its calls cost more than its operations, so that as many of these as of a large one would take seconds."""
    tiny = load_recipe("demo", ["--model.hidden-size=8", "--model.num-heads=1"], require_data=False).recipe
    assert 10 < Product.of(tiny, 64, torch.bfloat16, CPU).repeats <= 100


def test_measuring_gives_a_rate_and_draws_no_random_number() -> None:
    recipe = load_recipe("demo", ["--model.hidden-size=64"], require_data=False).recipe
    before = torch.get_rng_state()
    (rate,) = measure_rates([Product.of(recipe, 256, torch.float32, CPU)], CPU)
    assert 1e8 < rate < 1e14
    assert torch.equal(torch.get_rng_state(), before)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the rates of this file's tests, some of which are made up, out of the user's cache."""
    monkeypatch.setattr("hornbook.storage.json_files.cache_home", lambda: tmp_path)


@pytest.mark.parametrize("faster", [torch.float32, torch.bfloat16])
def test_the_faster_product_of_a_cpu_is_the_peak(monkeypatch: pytest.MonkeyPatch, faster: torch.dtype) -> None:
    recipe = load_recipe("demo", ["--data.synthetic", "--model.vocab-size=64"]).recipe
    samples = build_samples(recipe, open_sources(recipe), on_cpu=True)
    monkeypatch.setattr(
        utilization,
        "measure_rates",
        lambda products, device, rounds: [2e9 if product.left.dtype == faster else 1e9 for product in products],
    )
    found = measure_utilization(recipe, samples, World(), torch.bfloat16)
    assert found is not None and found.peak.rate == 2e9
    assert found.peak.source.endswith("product in bf16" if faster == torch.bfloat16 else "product in fp32")


def utilization_at(monkeypatch: pytest.MonkeyPatch, rate: float, earlier: Iterable[Peak] = ()) -> Utilization:
    """The utilization of a run whose products are found to have this rate."""
    recipe = load_recipe("demo", ["--data.synthetic", "--model.vocab-size=64"]).recipe
    samples = build_samples(recipe, open_sources(recipe), on_cpu=True)
    monkeypatch.setattr(utilization, "measure_rates", lambda products, device, rounds: [rate for _ in products])
    found = measure_utilization(recipe, samples, World(), torch.float32, earlier)
    assert found is not None
    return found


def test_the_fastest_rate_of_a_machine_is_its_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that starts while the machine is busy has the same peak as the others."""
    rates = [utilization_at(monkeypatch, rate).peak.rate for rate in (2e9, 1e9, 3e9, 2e9)]
    assert rates == [2e9, 2e9, 3e9, 3e9]


def test_a_known_rate_is_confirmed_in_fewer_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []

    def count(products: Sequence[Product], device: torch.device, rounds: int) -> list[float]:
        used.append(rounds)
        return [1e9 for _ in products]

    monkeypatch.setattr(utilization, "measure_rates", count)
    recipe = load_recipe("demo", ["--data.synthetic", "--model.vocab-size=64"]).recipe
    samples = build_samples(recipe, open_sources(recipe), on_cpu=True)
    for dtype in (torch.float32, torch.float32, torch.bfloat16):
        measure_utilization(recipe, samples, World(), dtype)
    assert used == [6, 2, 6]


def test_a_resumed_run_keeps_its_peak_on_the_same_device(monkeypatch: pytest.MonkeyPatch) -> None:
    first = utilization_at(monkeypatch, 2e9).peak
    elsewhere = replace(first, device="another processor", rate=5e9)
    assert utilization_at(monkeypatch, 3e9, [elsewhere, first]).peak == first
    assert utilization_at(monkeypatch, 3e9, [elsewhere]).peak == replace(first, rate=3e9)


def test_a_run_in_its_folder_keeps_its_peak_and_says_when_it_changes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def peaks_of_rows() -> list[float]:
        rows = [row for row in read(tmp_path / "run" / "metrics.jsonl") if row["kind"] == "train"]
        return [row["tflops"] / row["mfu"] for row in rows]

    options = ["--checkpoint.every-steps=2", "--schedule.name=constant"]
    tiny_runs.run_tiny(tmp_path, *options, "--training.steps=2")
    (first,) = {round(peak, 9) for peak in peaks_of_rows()}
    monkeypatch.setattr(utilization, "measure_rates", lambda products, device, rounds: [1e15 for _ in products])
    tiny_runs.run_tiny(tmp_path, *options, "--training.steps=4")
    assert peaks_of_rows() == pytest.approx([first] * 4)
    assert "peak rate" not in capfd.readouterr().err
    monkeypatch.setattr(utilization, "cpu_model", lambda: "another processor")
    tiny_runs.run_tiny(tmp_path, *options, "--training.steps=6")
    assert peaks_of_rows() == pytest.approx([first] * 4 + [1e3] * 2)
    assert "the peak rate, of which MFU is a share, is 1000 TFLOP/s (another processor" in capfd.readouterr().err


def test_products_are_timed_by_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes only make the wall's clock advance, here by an hour each time that it is read."""
    hours = itertools.count(step=3600)
    monkeypatch.setattr(utilization.time, "perf_counter", lambda: float(next(hours)))
    (rate,) = measure_rates([Product.of_shape(64, 64, 64, torch.float32, CPU)], CPU)
    assert rate > 1e6


def test_processor_time_is_shared_among_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utilization.time, "process_time", lambda: 8.0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert compute_clock(CPU)() == 2.0
    monkeypatch.setattr(utilization.time, "thread_time", lambda: 3.0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert compute_clock(CPU)() == 3.0


def test_every_logged_step_has_both_and_a_checkpoint_neither(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tiny_runs.run_tiny(tmp_path)
    rows = [row for row in read(tmp_path / "run" / "metrics.jsonl") if row["kind"] == "train"]
    flops = tiny_runs.tiny_recipe(tmp_path).recipe.model.flops_per_token(16)
    assert len(rows) == 8
    for row in rows:
        assert row["tflops"] == pytest.approx(flops * row["tokens_per_second"] / 1e12)
        assert row["mfu"] > 0
    assert len({round(row["mfu"] / row["tflops"], 3) for row in rows}) == 1, "one peak for the whole run"
    assert "\n  peak    " in (said := capfd.readouterr().err) and "32 × 32 × 128 product in fp32" in said
    state = json.loads((tmp_path / "run" / "checkpoints" / "step-00000008" / "state.json").read_text())
    assert not {"mfu", "tflops", "peak"} & state.keys()
    report = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "tokens per second, median; MFU " in report and "share of the peak rate" in report


@pytest.mark.parametrize("recipe", ["demo", "bert-tiny"])
def test_bench_step_sets_the_step_beside_a_plain_product(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = "--model.num-layers=1 --model.hidden-size=64 --model.num-heads=2 --model.max-positions=64"
    batch = "--data.sequence-length=64 --training.global-batch-size=4 --training.micro-batch-size=2"
    compute = "--precision.compute=fp32 --threads=1 --rounds=2 --json"
    assert main(["bench", "step", recipe, *f"{sizes} {batch} {compute}".split()]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert list(result["contenders"]) == ["hornbook"]
    assert result["tflops_ratio"] == pytest.approx(result["tflops"] / result["matmul_tflops"])
    assert result["tflops"] > 0
    model = load_recipe(recipe, [*f"{sizes} {batch}".split(), "--model.vocab-size=4096"], require_data=False).recipe
    speed = result["contenders"]["hornbook"]["tokens_per_second"]
    length = 64 if recipe == "demo" else speed * result["contenders"]["hornbook"]["step_seconds"] / 4
    flops = model.model.flops_per_token(length, scored=model.objective.scored_share)
    assert result["tflops"] == pytest.approx(flops * speed / 1e12, rel=0.01)
    assert "of a plain product of the feed-forward's shape" in captured.err


def test_each_dtype_has_a_rate_and_no_random_number_is_drawn():
    before = torch.get_rng_state()
    products = [Product.of_shape(16, 64, 32, dtype, CPU) for dtype in (torch.float32, torch.bfloat16)]
    rates = measure_rates(products, CPU)
    assert len(rates) == 2 and all(1e5 < rate < 1e15 for rate in rates)
    assert torch.equal(before, torch.get_rng_state())


def test_larger_products_take_longer():
    products = [Product.of_shape(size, size, size, torch.float32, CPU) for size in (16, 512)]
    small, large = (product.flops / rate for product, rate in zip(products, measure_rates(products, CPU), strict=True))
    assert large > small
