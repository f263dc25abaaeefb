"""Plan a run: memory of each stage, whether it fits, duration of a step, and remedies.

::

    make_plan(recipe, Machine(device=DEVICES["h100"], num_ranks=8))
        -> Plan(stages=[Memory, ...], speed=Speed(...), largest_micro_batch=16, advice=None, ...)
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from hornbook.config.description import description_of
from hornbook.config.recipe import Recipe
from hornbook.config.sections import DTYPE_BYTES, Dtype
from hornbook.errors import UserError
from hornbook.plan.devices import Device
from hornbook.plan.layers import ALL_NATIVE, Compute
from hornbook.plan.memory import Memory, full_tokens, memory_of
from hornbook.plan.speed import Speed, speed_of

PHASED: Final = {
    "execution": "phased",
    "recompute": None,
    "recompute_layers": (),
    "recompute_budget": None,
    "offload_activations": False,
    "offload_optimizer": False,
}
"""Options of ``[memory]`` for phased execution."""
RESIDENT: Final = {"execution": "resident", "scratch": None}
"""Options of ``[memory]`` for resident execution."""
_MOST_RANKS = 1 << 12


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The devices for which a run is planned."""

    device: Device
    num_ranks: int = 1
    memory: float | None = None
    """Bytes per device; None: the memory of the device."""
    efficiency: float | None = None
    """Share of the peak rate that a device reaches; None: that of the device for the model's width."""
    price: float | None = None
    """US dollars per hour and device; None: the default of the device."""
    compute: Compute | None = None
    """The operators that are selected on this machine; None: those that a device of its kind usually has."""
    can_grow: bool = True
    """Whether to suggest more devices."""

    @property
    def hourly_price(self) -> float:
        """US dollars per hour and device."""
        return self.device.price.dollars if self.price is None else self.price

    def shares(self, recipe: Recipe) -> tuple[float, ...]:
        """Return the share of the peak that products of a run reach and, unless it is given, the ends of its interval.

        Tensor-parallel ranks compute parts of the products, but all of the norms, so their models count as narrower.
        """
        if self.efficiency is not None:
            return (self.efficiency,)
        width = recipe.model.hidden_size // recipe.parallel.sizes(self.num_ranks).tensor
        return (self.device.efficiency.at(width), *self.device.efficiency.interval(width))

    @property
    def limit(self) -> float:
        """Bytes that a rank may use."""
        return self.memory or self.device.memory


@dataclass(frozen=True, kw_only=True)
class Plan:
    """See above."""

    recipe: Recipe
    machine: Machine
    compute: Compute
    stages: Mapping[int, Memory]
    """Memory of the first rank of each pipeline stage; the other ranks of the stage need the same."""
    speed: Speed
    interval: tuple[float, ...]
    """Tokens per second at the ends of the device's interval of shares; empty if the share is given."""
    largest_micro_batch: int | None
    """The largest one that fits and divides the rank's share of a global batch; None: not even one sequence fits."""
    advice: str | None
    """Options with which the run fits; None if it fits already, or if no known change helps."""

    @property
    def peak(self) -> float:
        """Bytes of the rank that needs the most."""
        return max(memory.peak for memory in self.stages.values())

    @property
    def fits(self) -> bool:
        """Whether the memory of every rank suffices."""
        return self.peak <= self.machine.limit

    @property
    def num_steps(self) -> float | None:
        """Number of steps of the run; None if its length is in epochs, since the data are not known."""
        training = self.recipe.training
        if training.tokens is not None:
            return training.tokens / (training.global_batch_size * self.recipe.sequence_length)
        return training.steps

    @property
    def step_price(self) -> float:
        """US dollars per step."""
        return self.speed.seconds / 3600 * self.machine.hourly_price * self.machine.num_ranks


def make_plan(recipe: Recipe, machine: Machine, *, advises: bool = True) -> Plan:
    """Return the plan of a run.

    Args:
        recipe: complete, with a vocabulary.
        machine: for which it is planned.
        advises: whether to find the largest micro-batch and, if the run does not fit, a remedy.

    Raises:
        UserError: the layout or the batch sizes do not match the number of ranks, or the model is a custom one.
    """
    refuse_unplannable(recipe, machine.num_ranks)
    compute = compute_of(recipe, machine)
    stages = _stages(recipe, machine, compute)
    shares = machine.shares(recipe)
    speeds = [
        speed_of(recipe, machine.num_ranks, machine.device, compute, full_tokens(recipe), stages, share)
        for share in shares
    ]
    plan = Plan(
        recipe=recipe,
        machine=machine,
        compute=compute,
        stages=stages,
        speed=speeds[0],
        interval=tuple(speed.tokens_per_second for speed in speeds[1:]),
        largest_micro_batch=largest_micro_batch(recipe, machine) if advises else None,
        advice=None,
    )
    return replace(plan, advice=_advice(plan)) if advises and not plan.fits else plan


def refuse_unplannable(recipe: Recipe, num_ranks: int) -> None:
    """Check that a recipe can be planned.

    Raises:
        UserError: the model is a custom one, or the global batch size is not divisible.
    """
    if description_of(recipe.model) is None:
        raise UserError(
            f"{type(recipe.model).__name__} does not describe its layers, so its memory cannot be predicted: give it a "
            "description (docs/extend.md), or measure with `hornbook bench step`"
        )
    sizes, training = recipe.parallel.sizes(num_ranks), recipe.training
    ranks = sizes.replicate * sizes.shard
    if training.global_batch_size % (ranks * training.micro_batch_size):
        raise UserError(
            f"training.global_batch_size = {training.global_batch_size:,} is not a multiple of {ranks} data-parallel "
            f"ranks x micro_batch_size {training.micro_batch_size:,}: change one of them, or `devices`"
        )


def compute_of(recipe: Recipe, machine: Machine) -> Compute:
    """Return the device, dtypes and operators."""
    if machine.compute is not None:
        return machine.compute
    precision, kind = recipe.precision, machine.device.kind
    dtype: Dtype = machine.device.auto_dtype if precision.compute == "auto" else precision.compute
    can_be_native = kind == "cpu" and dtype != "fp16" and precision.kernels != "torch"
    return Compute(
        device=kind,
        dtype=dtype,
        weights=precision.weights,
        gradients=precision.gradients,
        native=ALL_NATIVE if can_be_native else frozenset(),
        has_triton=kind == "cuda" and precision.kernels != "torch",
        panel_bytes=DTYPE_BYTES[dtype],
    )


def _stages(recipe: Recipe, machine: Machine, compute: Compute) -> dict[int, Memory]:
    ranks = _first_ranks(recipe, machine)
    return {rank: memory_of(recipe, machine.num_ranks, rank, compute=compute) for rank in ranks}


def _first_ranks(recipe: Recipe, machine: Machine) -> list[int]:
    """Return the first rank of each stage."""
    stages = recipe.parallel.sizes(machine.num_ranks).pipeline
    return [stage * machine.num_ranks // stages for stage in range(stages)]


def fits(recipe: Recipe, machine: Machine) -> bool:
    """Return whether a recipe can run and the memory of every rank suffices."""
    try:
        refuse_unplannable(recipe, machine.num_ranks)
        compute, num_ranks = compute_of(recipe, machine), machine.num_ranks
        peaks = (memory_of(recipe, num_ranks, rank, compute=compute).peak for rank in _first_ranks(recipe, machine))
        return all(peak <= machine.limit for peak in peaks)
    except UserError:  # the layout does not match the number of ranks or micro-batches
        return False


def micro_batch_sizes(recipe: Recipe, num_ranks: int) -> list[int]:
    """Return the sizes that divide a rank's share of the global batch, ascending."""
    sizes = recipe.parallel.sizes(num_ranks)
    share = recipe.training.global_batch_size // (sizes.replicate * sizes.shard)
    return [size for size in range(1, min(share, _MOST_RANKS) + 1) if share % size == 0]


def largest_micro_batch(recipe: Recipe, machine: Machine) -> int | None:
    """Return the largest micro-batch that fits, or None, by bisection: more sequences never need less memory."""
    sizes = micro_batch_sizes(recipe, machine.num_ranks)
    low, high = 0, len(sizes)
    while low < high:  # the first `low` fit, those from `high` on do not
        middle = (low + high) // 2
        if fits(with_options(recipe, training={"micro_batch_size": sizes[middle]}), machine):
            low = middle + 1
        else:
            high = middle
    return sizes[low - 1] if low else None


def with_options(recipe: Recipe, **sections: Mapping[str, Any]) -> Recipe:
    """Return the recipe with other values of options, by section."""
    changed = {section: replace(getattr(recipe, section), **values) for section, values in sections.items()}
    return replace(recipe, **changed)


def differing(recipe: Recipe, sections: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the options that differ from the recipe's."""
    found = {
        section: {key: value for key, value in values.items() if value != getattr(getattr(recipe, section), key)}
        for section, values in sections.items()
    }
    return {section: values for section, values in found.items() if values}


def written(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Return options as recipe keys with values, as in messages."""
    return " ".join(
        f"`{section}.{key}={_word(value)}`" for section, values in sections.items() for key, value in values.items()
    )


def _word(value: object) -> str:
    plain = {None: "none", (): "[]", True: "true", False: "false"}
    return plain[value] if isinstance(value, bool | tuple | None) else str(value)


def _advice(plan: Plan) -> str | None:
    """Return the cheapest change with which the run fits."""
    for sections, devices in _changes(plan):
        recipe = with_options(plan.recipe, **sections)
        machine = replace(plan.machine, num_ranks=devices)
        if not recipe.problems() and fits(recipe, machine):
            more = [f"`devices={devices}`"] if devices != plan.machine.num_ranks else []
            return " ".join([*more, *filter(None, [written(differing(plan.recipe, sections))])])
    return None


def _changes(plan: Plan) -> Iterator[tuple[dict[str, dict[str, Any]], int]]:
    """Yield changes, cheapest first: options by section, and a number of ranks."""
    recipe, devices = plan.recipe, plan.machine.num_ranks
    smaller = plan.largest_micro_batch
    if smaller is not None:
        yield {"training": {"micro_batch_size": smaller}}, devices
    again = {"memory": {"recompute": "all"}}
    sharded = {"parallel": {"data_parallel": "shard"}}
    half = {"precision": {"first_moment": "bf16", "second_moment": "bf16"}}
    own, one = recipe.training.micro_batch_size, {"training": {"micro_batch_size": 1}}
    yield half, devices
    yield again, devices
    yield again | half, devices
    if devices > 1:
        yield sharded, devices
        yield sharded | again, devices
    for size in reversed(micro_batch_sizes(recipe, devices)):
        if size < own:
            yield again | {"training": {"micro_batch_size": size}}, devices
    if own > 1:
        yield again | one | half, devices
    if devices > 1:
        yield sharded | again | one, devices
    yield {"memory": PHASED}, devices
    yield {"memory": PHASED} | one, devices
    more = 2 * devices
    while plan.machine.can_grow and more <= _MOST_RANKS and more <= recipe.training.global_batch_size:
        yield sharded | again | one, more
        more *= 2
