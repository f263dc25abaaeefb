"""Evaluate the facts of a machine: problems and slow components, each with a remedy.

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
"""Load per core that indicates other processes."""
_OLDEST_DRIVERS = {11: 450, 12: 525, 13: 580}
"""Of each CUDA release, NVIDIA's oldest driver for Linux."""
_LITTLE_SPACE, _LITTLE_MEMORY = 1 << 30, 1 << 30
_SLOW_DISK = 20e6
"""Bytes per second, at which a checkpoint of GPT-2 small takes more than a minute."""


def machine_findings(facts: Mapping[str, Any], precision: str = "auto", processes: int = 1) -> list[Finding]:
    """Return the findings.

    Args:
        facts: from `hornbook.measure.machine.machine_facts`.
        precision: ``precision.compute`` of the recipe.
        processes: number of processes that train on this machine.
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
    for name, found in versions.items():
        version, oldest = found["version"], found["oldest"]
        if oldest and _numbers(version) < _numbers(oldest):
            remedy = "install a newer Python" if name == "python" else f"pip install '{name}>={oldest}'"
            yield (
                "versions",
                f"{name} {version} is older than {oldest}, the oldest supported version: {remedy}",
            )


def _numbers(version: str) -> list[int]:
    """Return the numbers of a version: ``[2, 13, 0]`` for ``2.13.0+cpu``."""
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]


def _of_precision(products: Mapping[str, Any], forms: Mapping[str, str], precision: str) -> Iterator[tuple[str, str]]:
    """Yield a warning if products in the other dtype are clearly faster and PyTorch computes them.

    If the recipe sets fp32, that is for precision, so there is no warning.
    """
    chosen = products["auto"] if precision == "auto" else precision
    other = {"bf16": "fp32", "fp32": "bf16"}.get(chosen)
    if other is None or f"linear_{chosen}" in forms:  # fp16 is not measured
        return
    here, other_rate = (products["flops_per_second"][dtype] for dtype in (chosen, other))
    if precision != "fp32" and other_rate > _CLEARLY_FASTER * here:
        whose = "auto chooses" if precision == "auto" else "the recipe says"
        yield (
            "precision",
            f"precision.compute: {whose} {chosen}, whose products run at {flop_rate(here)} here, but those of {other} "
            f"run at {flop_rate(other_rate)}: train with `precision.compute='{other}'`",
        )


def _of_cores(processor: Mapping[str, Any], processes: int) -> Iterator[tuple[str, str]]:
    cores, load, threads = processor["usable_cores"], processor["load"], processor["threads"]
    if load > _CROWDED * processor["cores"]:
        yield (
            "cores",
            f"other processes use this machine: the load is {load:.1f} on "
            f"{counted(processor['cores'], 'core')}, which slows down training and the measurements above: "
            "stop other processes",
        )
    if processes * threads > cores:
        which = "`processes`" if threads == 1 else "`threads`"
        yield (
            "cores",
            f"{processes * threads} threads in total share {counted(cores, 'core')} and wait for each other: "
            f"decrease {which}",
        )


def _of_memory(memory: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    available = memory["available"]
    if available is not None and available < _LITTLE_MEMORY:
        yield "memory", f"only {format_bytes(available)} of memory is available: stop other processes"


def _of_disk(disk: Mapping[str, Any]) -> Iterator[Finding]:
    if disk["error"]:
        yield Finding("error", "disk", disk["error"])
        return
    warnings = []
    if disk["free"] < _LITTLE_SPACE:
        warnings.append(f"{disk['folder']} has {format_bytes(disk['free'])} free: free some space, or choose `output`")
    if disk["write"] < _SLOW_DISK:
        warnings.append(
            f"{disk['folder']} is on a slow disk, {format_bytes(disk['write'])}/s, so checkpoints take long: choose an "
            "`output` on a faster disk, or increase checkpoint.every_steps"
        )
    if disk["is_network"]:
        warnings.append(
            f"{disk['folder']} is on a network file system ({disk['file_system']}): if it does not support locks or is "
            "slow, choose an `output` on a local disk"
        )
    if disk["is_memory"]:
        warnings.append(
            f"{disk['folder']} is in memory ({disk['file_system']}) and will be lost when the machine stops: choose an "
            "`output` on a disk"
        )
    yield from (Finding("warning", "disk", message) for message in warnings)


def _of_gpus(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    cuda = facts["cuda"]
    if facts["gpus"] or cuda["driver"] is None:
        return
    if cuda["build"] is None:
        yield (
            "GPUs",
            f"there is an NVIDIA driver ({cuda['driver']}), but this PyTorch is built without CUDA: install a CUDA "
            "build, see https://pytorch.org/get-started",
        )
    elif _version(cuda["driver"]) < (oldest := _OLDEST_DRIVERS.get(_version(cuda["build"]), 0)):
        yield (
            "GPUs",
            f"the NVIDIA driver is {cuda['driver']}, but CUDA {cuda['build']} of this PyTorch requires {oldest} or "
            "newer: update the driver, or install a build for an older CUDA, such as `make venv TORCH=cuda "
            "TORCH_CUDA_INDEX=https://download.pytorch.org/whl/cu126`",
        )
    else:
        yield (
            "GPUs",
            f"there is an NVIDIA driver ({cuda['driver']}), but PyTorch finds no GPU: check CUDA_VISIBLE_DEVICES, and "
            f"that the driver is new enough for CUDA {cuda['build']}",
        )


def _version(words: str) -> int:
    """Return the first number of a version such as ``580.65.06``."""
    return int(words.partition(".")[0])
