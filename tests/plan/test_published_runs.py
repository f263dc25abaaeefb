"""Predicted speeds beside those of published runs, on the devices and with the layouts and batches of those runs."""

from typing import NamedTuple

import pytest

from hornbook.config import load_recipe
from hornbook.plan.devices import DEVICES
from hornbook.plan.planner import Machine, make_plan


class Run(NamedTuple):
    """A published run: a GPT on some devices, and its tokens per second over all of them."""

    source: str
    device: str
    num_ranks: int
    shape: tuple[int, int, int]
    """Layers, hidden size, heads."""
    length: int
    batches: tuple[int, int]
    """Sequences of a global batch and a micro-batch."""
    speed: float
    layout: str = "--parallel.data-parallel=shard"


RECOMPUTED = "--parallel.data-parallel shard --memory.recompute all"
MOSAIC = "MosaicML, llm-foundry, scripts/train/benchmarking/README.md, commit 061f2c7"
RUNS = {
    "7B, A100": Run(MOSAIC, "a100", 8, (32, 4096, 32), 2048, (96, 6), 37_130),
    "13B, A100": Run(MOSAIC, "a100", 8, (40, 5120, 40), 2048, (48, 2), 18_097),
    "3B, A100": Run(MOSAIC, "a100", 8, (32, 2560, 20), 2048, (160, 10), 86_491),
    "1B, A100": Run(MOSAIC, "a100", 8, (24, 2048, 16), 2048, (448, 14), 164_109),
    "760M, A100": Run(MOSAIC, "a100", 8, (24, 1536, 12), 2048, (384, 24), 259_472),
    "350M, A100": Run(MOSAIC, "a100", 8, (24, 1024, 16), 2048, (512, 32), 470_263),
    "125M, A100": Run(MOSAIC, "a100", 8, (12, 768, 12), 2048, (640, 40), 1_142_641),
    "3B, A100 40 GB": Run(MOSAIC, "a100-40", 8, (32, 2560, 20), 4096, (128, 2), 70_223),
    "7B, A100 40 GB": Run(
        MOSAIC,
        "a100-40",
        8,
        (32, 4096, 32),
        2048,
        (384, 12),
        29_436,
        "--parallel.data-parallel shard --memory.recompute all",
    ),
    "7B, H100": Run(MOSAIC, "h100", 8, (32, 4096, 32), 2048, (48, 6), 85_144),
    "13B, H100": Run(MOSAIC, "h100", 8, (40, 5120, 40), 2048, (16, 2), 38_336),
    "3B, 16 H100": Run(MOSAIC, "h100", 16, (32, 2560, 20), 2048, (480, 10), 386_285, "--parallel.data-parallel shard"),
    "1B, H100": Run(MOSAIC, "h100", 8, (24, 2048, 16), 2048, (112, 14), 363_645),
    "760M, H100": Run(MOSAIC, "h100", 8, (24, 1536, 12), 2048, (384, 24), 505_177),
    # 600,000 steps of 480 sequences in "about 4 days"
    "124M, A100 40 GB": Run(
        "nanoGPT, README", "a100-40", 8, (12, 768, 12), 1024, (480, 12), 600_000 * 480 * 1024 / (4 * 86_400), ""
    ),
    # 138 TFLOP/s a device, recomputation included: 8 FLOPs per weight and token, not 6
    "175B, 1,024 A100": Run(
        "Narayanan et al. 2021, Megatron-LM, section 5",
        "a100",
        1024,
        (96, 12288, 96),
        2048,
        (1536, 1),
        1024 * 138e12 / (96 * 96 * 12288**2 * (1 + 2048 / (6 * 12288) + 51200 / (16 * 96 * 12288))),
        "--parallel.tensor-parallel 8 --parallel.pipeline-parallel 8 --memory.recompute all",
    ),
}


def predicted(run):
    layers, width, heads = run.shape
    options = (
        f"--model.num_layers={layers} --model.hidden_size={width} --model.num_heads={heads} --model.vocab_size=50368 "
        f"--model.max_positions={run.length} --data.sequence_length={run.length} --training.steps=10 "
        f"--training.global_batch_size={run.batches[0]} --training.micro_batch_size={run.batches[1]} {run.layout}"
    )
    recipe = load_recipe("gpt2-small", options.split(), require_data=False).recipe
    return make_plan(recipe, Machine(device=DEVICES[run.device], num_ranks=run.num_ranks), advises=False)


@pytest.mark.parametrize("title", RUNS)
def test_a_prediction_is_within_15_percent_of_a_published_run(title):
    plan, run = predicted(RUNS[title]), RUNS[title]
    assert plan.speed.tokens_per_second == pytest.approx(run.speed, rel=0.15)
    slowest, fastest = plan.interval
    assert slowest < run.speed < fastest


def test_a_given_share_has_no_interval():
    run = RUNS["1B, H100"]
    machine = Machine(device=DEVICES["h100"], num_ranks=8, efficiency=0.5)
    assert make_plan(predicted(run).recipe, machine, advises=False).interval == ()
