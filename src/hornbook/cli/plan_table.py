"""Print a plan as tables of at most 100 columns, or convert it to a dictionary."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hornbook.cli.table import print_columns, say
from hornbook.track.units import duration, flop_rate, short, short_time, significant, size
from hornbook.wording import counted, spelled

if TYPE_CHECKING:
    from hornbook.plan.memory import Memory
    from hornbook.plan.planner import Plan
    from hornbook.plan.search import Layout


_MOST_LAYOUTS = 12
_MUCH = 0.2
"""Share of a step which the launches of its products take if those of all kernels may well take longer than it."""


def print_plan(plan: "Plan", facts: Mapping[str, str]) -> None:
    """Print the layout, memory, time and cost of a plan, and whether it fits.

    Args:
        plan: of a run.
        facts: what its recipe has from data, and what it assumes; printed below the layout.
    """
    machine, recipe = plan.machine, plan.recipe
    count = f"{machine.num_ranks:,} x " if machine.num_ranks > 1 else ""
    say(
        f"{recipe.name} on {count}{machine.device.label}, {size(machine.limit)} each: "
        f"{recipe.num_parameters():,} parameters"
    )
    print_columns([*_layout(plan), *facts.items()])
    print()
    print_columns([*_memory(plan)], right=range(1, 7))
    print()
    print_columns([*_activations(plan), *_speed(plan)])
    say("", _verdict(plan))


def _layout(plan: "Plan") -> Iterator[tuple[str, str]]:
    recipe, machine = plan.recipe, plan.machine
    training, sizes = recipe.training, recipe.parallel.sizes(machine.num_ranks)
    names = {"pipeline": sizes.pipeline, "replicas": sizes.replicate, "shards": sizes.shard, "tensor": sizes.tensor}
    axes = " x ".join(f"{name} {number}" for name, number in names.items() if number > 1) or "one rank"
    again = f"; recompute {recipe.memory.recompute}" if recipe.memory.recompute else ""
    again += "; phased" if recipe.memory.execution == "phased" else ""
    kernels = ", hornbook's operators" if plan.compute.native else ""
    yield "layout", f"{axes}{again}; activations in {plan.compute.dtype}{kernels}"
    micro_batches = training.global_batch_size // (sizes.replicate * sizes.shard * training.micro_batch_size)
    yield (
        "batch",
        f"{training.global_batch_size:,} x {recipe.sequence_length:,} tokens a step; on each rank "
        f"{micro_batches:,} micro-batch{'es' if micro_batches > 1 else ''} of {training.micro_batch_size:,}",
    )


def _memory(plan: "Plan") -> Iterator[tuple[str, ...]]:
    yield "memory", "weights", "gradients", "moments", "activations", "workspace", "peak", ""
    per_stage = plan.machine.num_ranks // len(plan.stages)
    for first, memory in plan.stages.items():
        ranks = f"rank {first}" if per_stage == 1 else f"ranks {first}-{first + per_stage - 1}"
        parts = (memory.weights, memory.gradients, memory.moments, sum(memory.activations.values()), memory.workspace)
        yield ranks, *map(size, (*parts, memory.peak)), "" if memory.peak <= plan.machine.limit else "too much"


def _activations(plan: "Plan") -> Iterator[tuple[str, str]]:
    worst = max(plan.stages.values(), key=lambda memory: memory.peak)
    yield "activations", "; ".join(_by_layer(worst.activations)) or "none at the peak"
    moved = f"; {size(worst.offloaded)} a step move between device and host" if worst.offloaded else ""
    yield "host", f"{size(worst.host)} a rank{moved}"
    if (transfer := worst.transfer) is not None:
        read, written = (sum(each) for each in zip(transfer.passes, transfer.update, strict=True))
        has_files = plan.machine.device.kind == "cpu" or plan.recipe.memory.scratch is not None
        where = f"in files, at {size(plan.machine.device.disk)}/s" if has_files else "in the host's pinned memory"
        yield "phased", f"{size(transfer.size)} {where}; {size(read)} read and {size(written)} written a step"


def _by_layer(activations: Mapping[str, float]) -> Iterator[str]:
    """Yield the sizes of layers, grouped if equal: ``48 blocks 112.0 MiB each``."""
    blocks = [bytes_ for name, bytes_ in activations.items() if name.startswith("blocks.")]
    others = {name: bytes_ for name, bytes_ in activations.items() if not name.startswith("blocks.") and bytes_}
    yield from (f"{name} {size(bytes_)}" for name, bytes_ in others.items())
    if blocks:
        low, high = min(blocks), max(blocks)
        each = size(low) if size(low) == size(high) else f"{size(low)} to {size(high)}"
        yield f"{counted(len(blocks), 'block')} {each}{' each' if len(blocks) > 1 else ''}"


def _speed(plan: "Plan") -> Iterator[tuple[str, str]]:
    speed, machine = plan.speed, plan.machine
    share = machine.shares(plan.recipe)[0]
    parts = ("products", "bubble", "communication", "update", "offload")
    terms = [f"{name} {short_time(getattr(speed, name))}" for name in parts if getattr(speed, name) > 0]
    peak = machine.device.flops[plan.compute.dtype]
    yield "step", f"{short_time(speed.seconds)}: {', '.join(terms)}"
    mfu = speed.mfu(peak * machine.num_ranks)
    ends = f" ({' to '.join(map(short, plan.interval))})" if plan.interval else ""
    yield "speed", f"{short(speed.tokens_per_second)} tokens/s{ends}, MFU {mfu:.1%} of {flop_rate(peak)} a device"
    again = "" if speed.hardware_flops == speed.flops else f", {_flops(speed.hardware_flops)} with recomputation"
    yield "FLOPs", f"{_flops(speed.flops)} a step{again}; products at {share:.0%} of the peak (--efficiency)"
    if speed.launches > _MUCH * speed.seconds:
        least = f"{short_time(speed.launches)} for the products alone"
        yield "launches", f"not in the time: {least}, far more for all kernels (--kernels)"
    if plan.interval:
        yield "efficiency", f"a default: {machine.device.efficiency.source}; --efficiency sets yours"
    sent = [f"{name} {size(number)}" for name, number in speed.bytes_sent.items()]
    yield "sent", f"{', '.join(sent)} a step, by the rank that sends most" if sent else "nothing"
    yield "cost", _cost(plan)
    listed = plan.machine.device.price
    if plan.machine.price is None:
        yield "price", f"a default: list price of {listed.source}, {listed.year}, rounded; --price sets yours"


def _cost(plan: "Plan") -> str:
    machine, steps = plan.machine, plan.num_steps
    rate = f"at ${machine.hourly_price:g} an hour each"
    if steps is None:
        return f"${significant(plan.step_price * 1000)} for 1,000 steps, {rate}"
    return f"${plan.step_price * steps:,.2f} and {duration(plan.speed.seconds * steps)} for {steps:,.0f} steps, {rate}"


def _flops(number: float) -> str:
    return f"{significant(number / 1e15)} PFLOP" if number >= 1e15 else f"{significant(number / 1e12)} TFLOP"


def _verdict(plan: "Plan") -> str:
    used = f"{size(plan.peak)} of {size(plan.machine.limit)}"
    if plan.fits:
        return f"It fits: {used} on the fullest rank; the largest micro-batch that fits is {plan.largest_micro_batch}."
    if plan.advice is None:
        return f"It does not fit, {used}, with any option or number of devices: make the model smaller."
    return f"It does not fit, {used}: add {spelled(plan.advice)}"


def print_layouts(layouts: Sequence["Layout"]) -> None:
    """Print the fastest layouts, and the options of the first."""
    if not layouts:
        print("No layout fits.")
        return
    rows: list[tuple[str, ...]] = [
        ("data", "tensor", "pipeline", "recompute", "micro-batch", "peak", "step", "tokens/s", "1,000 steps")
    ]
    for layout in layouts[:_MOST_LAYOUTS]:
        plan, parallel = layout.plan, layout.plan.recipe.parallel
        sizes = parallel.sizes(plan.machine.num_ranks)
        data, memory = sizes.replicate * sizes.shard, plan.recipe.memory
        rows.append(
            (
                f"{parallel.data_parallel} {data}" if data > 1 else "1",
                str(sizes.tensor),
                str(sizes.pipeline),
                "phased" if memory.execution == "phased" else memory.recompute or "none",
                str(plan.recipe.training.micro_batch_size),
                size(plan.peak),
                short_time(plan.speed.seconds),
                short(plan.speed.tokens_per_second),
                f"${significant(plan.step_price * 1000)}",
            )
        )
    print_columns(rows, right=range(1, 9))
    left = len(layouts) - _MOST_LAYOUTS
    print(f"\n{f'{left} more fit. ' if left > 0 else ''}Fastest: {spelled(layouts[0].words) or 'the recipe unchanged'}")


def describe_plan(plan: "Plan", *, with_advice: bool = True) -> dict[str, Any]:
    """Return a plan as a JSON object, in bytes, seconds and dollars."""
    machine, speed, recipe = plan.machine, plan.speed, plan.recipe
    document: dict[str, Any] = {
        "recipe": recipe.name,
        "device": machine.device.name,
        "num_devices": machine.num_ranks,
        "memory": machine.limit,
        "num_parameters": recipe.num_parameters(),
        "vocab_size": recipe.model.vocab_size,
        "micro_batch_size": recipe.training.micro_batch_size,
        "compute": plan.compute.dtype,
        "peak": plan.peak,
        "fits": plan.fits,
        "stages": [_stage(rank, memory) for rank, memory in plan.stages.items()],
        "flops": speed.flops,
        "hardware_flops": speed.hardware_flops,
        "bytes_sent": dict(speed.bytes_sent),
        "step_seconds": speed.seconds,
        "tokens_per_second_interval": plan.interval,
        "seconds": {
            name: getattr(speed, name) for name in ("products", "bubble", "communication", "update", "offload")
        },
        "launch_seconds_of_products": speed.launches,
        "tokens_per_second": speed.tokens_per_second,
        "mfu": speed.mfu(machine.device.flops[plan.compute.dtype] * machine.num_ranks),
        "step_price": plan.step_price,
        "num_steps": plan.num_steps,
    }
    return document | (
        {"largest_micro_batch": plan.largest_micro_batch, "advice": plan.advice and spelled(plan.advice)}
        if with_advice
        else {}
    )


def _stage(rank: int, memory: "Memory") -> dict[str, Any]:
    phased = {}
    if (transfer := memory.transfer) is not None:
        phased = {
            "scratch": transfer.size,
            "bytes_read": transfer.passes.read + transfer.update.read,
            "bytes_written": transfer.passes.written + transfer.update.written,
        }
    return {
        **phased,
        "rank": rank,
        "peak": memory.peak,
        "weights": memory.weights,
        "gradients": memory.gradients,
        "moments": memory.moments,
        "activations": dict(memory.activations),
        "workspace": memory.workspace,
        "host": memory.host,
        "offloaded": memory.offloaded,
    }
