"""``hornbook plan --kernels``: the kernels of a step on a GPU, by operator, and the time that a roofline gives them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from hornbook.cli.table import print_columns, say
from hornbook.errors import UserError
from hornbook.plan.devices import LAUNCH, Device
from hornbook.track.units import flop_rate, size

if TYPE_CHECKING:
    from hornbook.config import Recipe
    from hornbook.measure.kernel_launches import Launch

_OF_PEAK: Final = 0.66
"""Share of the data sheet's rate that matrix products reach: 650 of 989 TFLOP/s on an H100."""
_OF_PEAK_IN_ATTENTION: Final = 0.4
_OF_BANDWIDTH: Final = 0.87
"""2.9 of 3.35 TB/s on an H100."""
_OF_BANDWIDTH_IN_CACHE: Final = 1.64
"""Of the second-level cache: 5.5 TB/s on an H100."""
_SHORTEST: Final = 2e-6
"""Seconds of a kernel on the device."""


def print_kernels(recipe: "Recipe", device: Device) -> dict[str, object]:
    """Print the kernels of a step with one micro-batch, and the MFU of one with all; return both as a document.

    Args:
        recipe: of one process, with synthetic data.
        device: a GPU.

    Raises:
        UserError: the device is a CPU, or this PyTorch needs a C++ compiler that is not there.
    """
    if device.kind != "cuda":
        raise UserError("--kernels counts the kernels of a GPU: choose another --device")
    from hornbook.measure.fake_cuda import load_device
    from hornbook.ops.native.cache import BuildError

    try:
        load_device()
    except BuildError as error:
        raise UserError(f"--kernels needs a C++ compiler here: {error}") from error
    from hornbook.measure.kernel_trace import traced_step

    trace = traced_step(_with_micro_batches(recipe, 1))
    groups: dict[tuple[str, str], list[Launch]] = {}
    for launch in trace.launches:
        groups.setdefault((launch.name, launch.dtype), []).append(launch)
    totals = [(key, total_of(group, device)) for key, group in groups.items()]
    totals.sort(key=lambda row: -row[1]["seconds"])
    whole = total_of(trace.launches, device)
    print_columns([*_rows(totals)], right=(2, 3, 4, 5))
    host, seconds = whole["kernels"] * LAUNCH, duration(whole)
    is_launch_bound = host > whole["seconds"]
    flops = (recipe.flops_per_token(recipe.sequence_length) or 0.0) * trace.num_tokens
    peak = device.flops[recipe.precision.compute if recipe.precision.compute != "auto" else device.auto_dtype]
    mfu = flops / seconds / peak
    say("")
    say(f"device      {device.label}, on a roofline: {_OF_PEAK:.0%} of {flop_rate(peak)} in products")
    say(f"step        {trace.num_tokens:,} tokens, {int(whole['kernels']):,} kernels, {size(whole['bytes'])} moved")
    say(f"memory      {size(trace.peak)} of tensors at the peak")
    say(f"time        {whole['seconds'] * 1e3:.2f} ms of kernels, {host * 1e3:.2f} ms of launches")
    say(f"bound by    {'launches' if is_launch_bound else 'kernels'}: MFU at most {mfu:.1%}")
    say(f"waits       {len(trace.waits)}: {', '.join(trace.waits)}")
    accumulated, num_micro_batches = mfu, recipe.training.global_batch_size // recipe.training.micro_batch_size
    if num_micro_batches > 1:  # what two take more than one, each further one takes
        added = duration(total_of(traced_step(_with_micro_batches(recipe, 2)).launches, device)) - seconds
        accumulated = num_micro_batches * flops / (seconds + (num_micro_batches - 1) * added) / peak
        micro_batches = f"{num_micro_batches:,} micro-batches a step, each {added * 1e3:.2f} ms"
        say(f"recipe      {micro_batches}: MFU at most {accumulated:.1%}")
    memory_and_time = {"peak_bytes": trace.peak, "launch_seconds": host, "launch_bound": is_launch_bound}
    shares = {"mfu": mfu, "num_micro_batches": num_micro_batches, "mfu_of_recipe": accumulated}
    operators = [{"operator": name, "dtype": dtype, **total} for (name, dtype), total in totals]
    whole_step = {"tokens": trace.num_tokens, **whole, **memory_and_time, **shares}
    return {"recipe": recipe.name, "device": device.name, **whole_step, "waits": trace.waits, "operators": operators}


def _with_micro_batches(recipe: "Recipe", number: int) -> "Recipe":
    training = replace(recipe.training, global_batch_size=number * recipe.training.micro_batch_size)
    return replace(recipe, training=training)


def total_of(launches: "list[Launch]", device: Device) -> dict[str, float]:
    """Return the kernels, bytes, FLOPs and seconds of launches."""
    return {
        "kernels": sum(launch.kernels for launch in launches),
        "bytes": sum(launch.bytes for launch in launches),
        "flops": sum(launch.flops for launch in launches),
        "seconds": sum(_seconds(launch, device) for launch in launches),
    }


def duration(step: dict[str, float]) -> float:
    """Return the seconds of a step with the totals of ``total_of``: of its kernels, or of their launches if longer."""
    return max(step["kernels"] * LAUNCH, step["seconds"])


def _seconds(launch: "Launch", device: Device) -> float:
    """Return the time of an operator on the roofline."""
    rate = device.flops["bf16" if "16" in launch.dtype else "fp32"]
    share = _OF_PEAK_IN_ATTENTION if "attention" in launch.name else _OF_PEAK
    if launch.width < 64:  # a tensor core reads 64 rows and these columns from shared memory, 128 bytes a clock
        share *= launch.width / 2 / (16 + launch.width / 4)
    moving = launch.bytes / (_OF_BANDWIDTH * device.bandwidth)
    reading = launch.cached / (_OF_BANDWIDTH_IN_CACHE * device.bandwidth)
    return max(moving, reading, launch.flops / (share * rate), _SHORTEST * launch.kernels)


def _rows(totals: list[tuple[tuple[str, str], dict[str, float]]]) -> Iterator[tuple[str, ...]]:
    yield "operator", "dtype", "kernels", "moved", "TFLOP", "ms"
    for (name, dtype), total in totals:
        numbers = (f"{total['flops'] / 1e12:.3f}", f"{total['seconds'] * 1e3:.3f}")
        yield name, dtype, f"{int(total['kernels']):,}", size(total["bytes"]), *numbers
