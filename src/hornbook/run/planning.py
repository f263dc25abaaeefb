"""The plan of a run on this machine: the device's rates, and the available memory."""

from dataclasses import replace
from typing import cast

import torch

from hornbook.config import Recipe
from hornbook.config.description import description_of
from hornbook.config.sections import Dtype
from hornbook.corpora.store import TokenStore
from hornbook.engine.build_training import build_samples, num_steps, shape_of
from hornbook.ops.native.choice import choose
from hornbook.ops.native.kernels import SUFFIXES
from hornbook.parallel.device import DTYPES, compute_dtype, dtype_name
from hornbook.plan.devices import DEVICES, Device, card
from hornbook.plan.layers import ALL_NATIVE, Compute
from hornbook.plan.planner import Machine, Plan, make_plan
from hornbook.run.utilization import Product, measure_rates
from hornbook.samples.sources import complete, network_facts, open_sources
from hornbook.storage.system import cpu_model, format_bytes
from hornbook.track.environment import available_memory_bytes, memory_bytes
from hornbook.wording import counted

_UNKNOWN_GPU = "h100"
"""The GPU whose rates are used for one that is not in the table."""


def read_data(recipe: Recipe) -> tuple[Recipe, dict[str, str]]:
    """Return the recipe with the vocabulary of its token stores and its length in steps, and both in words.

    Raises:
        UserError, DataError: see `hornbook.samples.sources.open_sources` and ``complete``.
    """
    sources = open_sources(recipe)
    recipe = complete(recipe, sources)
    samples, training = build_samples(recipe, sources, on_cpu=True), recipe.training
    steps = num_steps(recipe, samples)
    tokens = sum(store.num_tokens for store in sources.train if isinstance(store, TokenStore))
    size = f"{tokens:,} tokens" if tokens else counted(samples.num_samples, "sample")
    epochs = steps * training.global_batch_size / samples.num_samples
    facts = {
        "data": f"{size}, vocabulary {recipe.model.vocab_size:,}: {', '.join(recipe.data.train)}",
        "length": f"{counted(steps, 'step')}, {epochs:.3g} epochs",
        **network_facts(recipe, sources),
    }
    return replace(recipe, training=replace(training, steps=steps, epochs=None, tokens=None)), facts


def compute_on(recipe: Recipe, device: torch.device) -> Compute:
    """Return the operators that compute a recipe on a device: PyTorch's, or hornbook's own."""
    dtype = compute_dtype(recipe.precision.compute, device)
    precision = recipe.precision
    forms = choose(precision.kernels, device, dtype, partials=precision.partials, shape=shape_of(recipe)).forms
    return Compute(
        device="cuda" if device.type == "cuda" else "cpu",
        dtype=cast(Dtype, dtype_name(dtype)),
        weights=recipe.precision.weights,
        gradients=recipe.precision.gradients,
        native=frozenset(operator for operator in ALL_NATIVE if f"{operator}_{SUFFIXES.get(dtype)}" in forms),
        has_triton="triton_attention" in forms,
        panel_bytes=2 if forms.get("linear_bf16") in ("avx512bf16", "avx512fp16", "amx", "neonbf16") else 4,
    )


def plan_here(
    recipe: Recipe, num_ranks: int, device: torch.device, memory: float | None = None, *, timed: bool = False
) -> Plan:
    """Return the plan of a run on this machine's devices.

    Args:
        recipe: complete, with a vocabulary.
        num_ranks: number of ranks.
        device: a rank's device.
        memory: bytes available to a rank; None for all of its device's memory, or its share of the host's.
        timed: measure the rates of a CPU, for the plan's times, which otherwise are those of the table's CPU. Memory
            does not depend on them.

    Raises:
        UserError: see `hornbook.plan.planner.make_plan`.
    """
    compute = compute_on(recipe, device)
    known = _device(device)
    if timed and device.type != "cuda":  # by products of the feed-forward's shape, as for a run's MFU
        tokens = recipe.training.micro_batch_size * recipe.sequence_length
        products = [Product.of(recipe, tokens, DTYPES[dtype], device) for dtype in ("fp32", "bf16")]
        fp32, bf16 = measure_rates(products, device)
        if compute.is_native("linear"):  # native operators multiply bf16 in fp32 where that is faster
            bf16 = max(fp32, bf16)
        known = replace(known, flops={**known.flops, "fp32": fp32, "bf16": bf16})
    if memory is None and device.type == "cuda":
        memory = float(torch.cuda.get_device_properties(device).total_memory)
    elif memory is None:
        memory = (memory_bytes() or known.memory) / num_ranks
    machine = Machine(device=known, num_ranks=num_ranks, memory=memory, compute=compute, can_grow=False)
    return make_plan(recipe, machine)


def _device(device: torch.device) -> Device:
    """Return the entry of the table that is nearest to this device, under its own name."""
    if device.type != "cuda":
        return replace(DEVICES["cpu"], label=cpu_model() or "CPU")
    label = torch.cuda.get_device_name(device)
    if (known := card(label)) is not None:
        return known
    like = DEVICES[_UNKNOWN_GPU]
    return replace(like, label=f"{label}, which is not in the table: times are those of the {like.label}")


def scarce_memory(recipe: Recipe, num_ranks: int, device: torch.device) -> str | None:
    """Return a warning with advice if a run is predicted to need more memory than is free now, else None.

    Args:
        recipe: the run's recipe; without a vocabulary, or with a custom model, nothing is predicted.
        num_ranks: processes, all on this machine.
        device: the first rank's device.

    Raises:
        UserError: see `hornbook.plan.planner.make_plan`.
    """
    if description_of(recipe.model) is None or recipe.model.vocab_size is None:
        return None
    on_gpu = device.type == "cuda"
    available = torch.cuda.mem_get_info(device)[0] if on_gpu else available_memory_bytes()
    if available is None:
        return None
    share = float(available) if on_gpu else available / num_ranks
    plan = plan_here(recipe, num_ranks, device, share)
    if plan.fits:
        return None
    where = f"{format_bytes(available)} is available now"
    mend = f"add {plan.advice}, or end other programs" if plan.advice else "end other programs, or make it smaller"
    if num_ranks == 1:
        return f"the run is predicted to need {format_bytes(int(plan.peak))}, and {where}: {mend}"
    each = f"each of {num_ranks} ranks is predicted to need up to {format_bytes(int(plan.peak))}"
    return f"{each}, and {where}{'' if on_gpu else ' for all of them'}: {mend}"
