"""Measure the training step of a GPT of 124 M parameters on this machine's accelerator: the one script that does.

    python tools/measure_gpu.py --json gpu.json
    python tools/measure_gpu.py --device cpu --shrink

For each micro-batch size it times whole steps with fused attention on and off and with blocks compiled or not, and
prints tokens per second, model FLOP/s, MFU and the peak of the memory. A variant that does not fit says so, and larger
micro-batches of it are left out. The recipe is gpt2-small on random tokens, without dropout; the global batch is one
micro-batch, so that a step shows the price of its update at its highest, unless ``--accumulate`` says otherwise.

MFU is what `hornbook train` shows: model FLOPs by ``Recipe.flops_per_token`` over the device's peak, from a table or
measured by a plain product of the feed-forward's shape. ``--shrink`` takes tiny sizes, to test that this script runs.
"""

import argparse
import gc
import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from hornbook.config import Recipe, load_recipe
from hornbook.measure.throughput import hornbook_step, matrix_product, measure_steps
from hornbook.parallel.device import compute_dtype, dtype_name, memory_in_use, prepare
from hornbook.parallel.world import World
from hornbook.run.utilization import measure_rates, peak_of

_SHRUNK = {
    "model.num_layers": 1,
    "model.hidden_size": 32,
    "model.num_heads": 2,
    "model.vocab_size": 70,
    "model.max_positions": 32,
    "data.sequence_length": 32,
}


def main(words: Sequence[str] | None = None) -> None:
    """Measure and print a table; write JSON if asked."""
    arguments = _parse(words)
    device = prepare(arguments.device, None)
    world = World(device=device)
    sizes = _SHRUNK if arguments.shrink else {"model.vocab_size": 50257}
    peak, source = _peak(_recipe(arguments, sizes, arguments.micro_batch_sizes[0], "none"), world)
    print(f"{_name(device)}, PyTorch {torch.__version__}; peak {peak / 1e12:.3g} TFLOP/s, {source}")
    print("micro-batch  attention  compile      tokens/s   TFLOP/s     MFU      memory")
    rows = []
    for row in _rows(arguments, sizes, world, peak):
        rows.append(row)
        print(_line(row), flush=True)
    facts = {"device": _name(device), "torch": torch.__version__, "peak": peak, "peak_source": source, "rows": rows}
    if arguments.json:
        arguments.json.write_text(f"{json.dumps(facts, indent=1)}\n", encoding="utf-8")


def _parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="auto, cuda, cuda:N, mps or cpu (default: auto)")
    parser.add_argument("--compute", choices=("auto", "fp32", "bf16"), default="auto", help="dtype of the activations")
    parser.add_argument(
        "--micro-batch-sizes",
        type=int,
        nargs="+",
        default=[1, 2, 4, 8, 16, 32, 64],
        metavar="N",
        help="ascending",
    )
    parser.add_argument("--accumulate", type=int, default=1, metavar="N", help="micro-batches of a step (default: 1)")
    parser.add_argument("--attention", nargs="+", choices=("fused", "plain"), default=["fused", "plain"])
    parser.add_argument("--compile", nargs="+", choices=("none", "blocks"), default=["none", "blocks"])
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="measured steps of each (default: 10)")
    parser.add_argument("--shrink", action="store_true", help="tiny sizes, which measure nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there")
    return parser.parse_args(words)


def _recipe(arguments: argparse.Namespace, sizes: dict[str, int], micro_batch_size: int, compiled: str) -> Recipe:
    options = {
        **sizes,
        "training.micro_batch_size": micro_batch_size,
        "training.global_batch_size": micro_batch_size * arguments.accumulate,
        "training.compile": compiled,
        "precision.compute": arguments.compute,
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    return load_recipe("gpt2-small", words, require_data=False).recipe


def _rows(arguments: argparse.Namespace, sizes: dict[str, int], world: World, peak: float) -> Iterator[dict[str, Any]]:
    for attention, compiled in itertools.product(arguments.attention, arguments.compile):
        for size in arguments.micro_batch_sizes:
            recipe = _recipe(arguments, sizes, size, compiled)
            row = {"micro_batch_size": size, "attention": attention, "compile": compiled}
            try:
                with _attention(attention):
                    row |= _measure(recipe, world, arguments.rounds, peak)
            except torch.OutOfMemoryError:
                row["tokens_per_second"] = None
            _free(world.device)
            yield row
            if row["tokens_per_second"] is None:
                break


def _attention(kind: str) -> AbstractContextManager[None]:
    """Let PyTorch's attention be fused or plain inside the block; hornbook's own, on a CPU, stays as it is."""
    context: AbstractContextManager[None] = sdpa_kernel([SDPBackend.MATH]) if kind == "plain" else nullcontext()
    return context


def _measure(recipe: Recipe, world: World, rounds: int, peak: float) -> dict[str, Any]:
    if world.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(world.device)
    speed = measure_steps({"step": hornbook_step(recipe, world)}, world, rounds=rounds)["step"]
    per_token = recipe.flops_per_token(recipe.sequence_length)
    assert per_token is not None
    flops = per_token * speed.tokens_per_second
    on_gpu = world.device.type == "cuda"
    memory = torch.cuda.max_memory_allocated(world.device) if on_gpu else memory_in_use(world.device)
    return {
        "tokens_per_second": speed.tokens_per_second,
        "step_seconds": speed.step_seconds,
        "tflops": flops / 1e12,
        "mfu": flops / peak,
        "memory": memory,
    }


def _peak(recipe: Recipe, world: World) -> tuple[float, str]:
    """Return the device's FLOP/s for the recipe's dtype, and where that comes from."""
    dtype = compute_dtype(recipe.precision.compute, world.device)
    known = peak_of(_name(world.device), dtype)
    if known is not None:
        return known, f"dense {dtype_name(dtype)} by the data sheet"
    (rate,) = measure_rates([matrix_product(recipe, world)], world.device)
    return rate, f"measured with a product in {dtype_name(dtype)}"


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _free(device: torch.device) -> None:
    """Give up the memory of the last variant, and what was compiled for it."""
    torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _line(row: dict[str, Any]) -> str:
    lead = f"{row['micro_batch_size']:>11}  {row['attention']:<9}  {row['compile']:<7}"
    if row["tokens_per_second"] is None:
        return f"{lead}  out of memory"
    memory = "-" if row["memory"] is None else f"{row['memory'] / 2**30:.2f} GiB"
    return f"{lead}  {row['tokens_per_second']:>12,.0f}  {row['tflops']:>8.3g}  {row['mfu']:>6.1%}  {memory:>10}"


if __name__ == "__main__":
    main()
