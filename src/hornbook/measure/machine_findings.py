"""What is wrong with a machine, or slower than it could be, each with its mend: a function of its facts.

machine_findings(facts, "auto")
    -> Finding("warning", "precision", "bf16 products run at 20 GFLOP/s here and fp32 at 29: ...")
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hornbook.run.preflight import Finding
from hornbook.storage.system import format_bytes
from hornbook.track.units import flop_rate
from hornbook.wording import counted

_CLEARLY_FASTER = 1.15
_CROWDED = 0.75
"""Load on a core from which on others compute there, too."""
_LITTLE_SPACE, _LITTLE_MEMORY = 1 << 30, 1 << 30
_SLOW_DISK = 20e6
"""Bytes a second: a checkpoint of GPT-2 small takes more than a minute."""


def machine_findings(facts: Mapping[str, Any], precision: str = "auto", processes: int = 1) -> list[Finding]:
    """Return what the facts tell.

    Args:
        facts: as `hornbook.measure.machine.machine_facts` returns them.
        precision: ``precision.compute`` of the recipe.
        processes: that train on this machine.
    """
    warnings = [
        *_of_versions(facts["versions"]),
        *_of_precision(facts["products"], facts["operators"]["native_forms"], precision),
        *_of_cores(facts["processor"], processes),
        *_of_memory(facts["memory"]),
        *_of_gpus(facts),
    ]
    return [*(Finding("warning", about, message) for about, message in warnings), *_of_disk(facts["disk"])]


def _of_versions(versions: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, told in versions.items():
        version, oldest = told["version"], told["oldest"]
        if oldest and _numbers(version) < _numbers(oldest):
            mend = "install a newer Python" if name == "python" else f"pip install '{name}>={oldest}'"
            yield (
                "versions",
                f"{name} {version} is older than {oldest}, the oldest that hornbook takes: {mend}",
            )


def _numbers(version: str) -> list[int]:
    """Return the numbers of a release: ``[2, 13, 0]`` of ``2.13.0+cpu``."""
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]


def _of_precision(products: Mapping[str, Any], forms: Mapping[str, str], precision: str) -> Iterator[tuple[str, str]]:
    """Say that PyTorch's products, where they compute, are clearly faster in the other dtype.

    fp32 by the recipe's own word is wanted for its exactness.
    """
    chosen = products["auto"] if precision == "auto" else precision
    other = {"bf16": "fp32", "fp32": "bf16"}.get(chosen)
    if other is None or f"linear_{chosen}" in forms:  # fp16 is not measured
        return
    here, there = (products["flops_per_second"][dtype] for dtype in (chosen, other))
    if precision != "fp32" and there > _CLEARLY_FASTER * here:
        whose = "auto chooses" if precision == "auto" else "the recipe says"
        yield (
            "precision",
            f"precision.compute: {whose} {chosen}, whose products run at {flop_rate(here)} here, and those of {other} "
            f"at {flop_rate(there)}: train with --precision.compute {other}",
        )


def _of_cores(processor: Mapping[str, Any], processes: int) -> Iterator[tuple[str, str]]:
    cores, load, threads = processor["usable_cores"], processor["load"], processor["threads"]
    if load > _CROWDED * processor["cores"]:
        yield (
            "cores",
            f"other processes compute here, too: the load is {load:.1f} on "
            f"{counted(processor['cores'], 'core')}, so training is slower than it could be, and so are the speeds "
            "above: end what need not run",
        )
    if processes * threads > cores:
        which = "--processes" if threads == 1 else "--threads"
        yield (
            "cores",
            f"{processes * threads} threads in all share {counted(cores, 'core')} and wait for each other: "
            f"lower {which}",
        )


def _of_memory(memory: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    available = memory["available"]
    if available is not None and available < _LITTLE_MEMORY:
        yield "memory", f"only {format_bytes(available)} of memory is available: end other programs"


def _of_disk(disk: Mapping[str, Any]) -> Iterator[Finding]:
    if disk["error"]:
        yield Finding("error", "disk", disk["error"])
        return
    warnings = []
    if disk["free"] < _LITTLE_SPACE:
        warnings.append(f"{disk['folder']} has {format_bytes(disk['free'])} free: free some space, or choose --output")
    if disk["write"] < _SLOW_DISK:
        warnings.append(
            f"{disk['folder']} is written at {format_bytes(disk['write'])}/s, so a checkpoint takes long: choose an "
            "--output on a faster disk, or raise checkpoint.every_steps"
        )
    if disk["is_network"]:
        warnings.append(
            f"{disk['folder']} lies on a network file system ({disk['file_system']}): where it has no locks, or is "
            "slow, choose an --output on a local disk"
        )
    if disk["is_memory"]:
        warnings.append(
            f"{disk['folder']} lies in memory ({disk['file_system']}) and is gone when the machine stops: choose an "
            "--output on a disk"
        )
    yield from (Finding("warning", "disk", message) for message in warnings)


def _of_gpus(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    cuda = facts["cuda"]
    if facts["gpus"] or cuda["driver"] is None:
        return
    if cuda["build"] is None:
        yield (
            "GPUs",
            f"there is an NVIDIA driver ({cuda['driver']}), and this PyTorch is built without CUDA: install the build "
            "for CUDA, as https://pytorch.org/get-started tells",
        )
    else:
        yield (
            "GPUs",
            f"there is an NVIDIA driver ({cuda['driver']}), and PyTorch finds no GPU: check CUDA_VISIBLE_DEVICES, and "
            f"that the driver is new enough for CUDA {cuda['build']}",
        )
