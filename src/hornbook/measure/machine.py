"""Facts of this machine, such as versions, speeds, memory, disk and GPUs, and what is wrong or slow in them.

    machine_facts(torch.device("cpu"), Path("runs"))
        -> {"versions": ..., "processor": ..., "products": ..., "memory": ..., "disk": ..., "gpus": ..., ...}

All values are valid in JSON; sizes are in bytes, speeds in bytes or FLOP per second. This takes about two seconds,
mostly for products and the disk, and leaves no files. ``machine_findings`` evaluates the facts.
"""

import os
import platform
import re
from collections.abc import Iterator, Mapping
from importlib import metadata, util
from pathlib import Path
from typing import Any

import torch

from hornbook.errors import StorageError
from hornbook.ops.native.build import find_compiler
from hornbook.ops.native.cache import BuildError
from hornbook.ops.native.choice import choose
from hornbook.ops.native.kernels import form_states, second_level_cache
from hornbook.parallel.device import compute_dtype, dtype_name, physical_cores
from hornbook.run.preflight import Finding
from hornbook.run.utilization import Product, measure_rates
from hornbook.storage.disk import disk_speed, file_system
from hornbook.storage.system import cpu_model, existing_parent, format_bytes, free_bytes, output_of, usable_cores
from hornbook.track.environment import available_memory_bytes, instruction_sets, memory_bytes, memory_limit
from hornbook.track.units import flop_rate
from hornbook.version import __version__
from hornbook.wording import counted

LIBRARIES = ("torch", "numpy", "tokenizers", "safetensors", "rich")
"""Required packages."""

_EXTRAS = {
    "zstd": "zstandard",
    "hub": "huggingface_hub",
    "arrow": "pyarrow",
    "fast": "tiktoken",
    "sentences": "sentencex",
    "patterns": "re2",
    "language": "py3langid",
    "warc": "resiliparse",
    "ray": "ray",
    "remote": "s3fs",
    "transformers": "transformers",
    "gguf": "gguf",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "trackio": "trackio",
}
"""The module of each extra in ``pyproject.toml``."""

_VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "KMP_AFFINITY", "GOMP_CPU_AFFINITY", "ONEDNN_MAX_CPU_ISA",
    "ATEN_CPU_CAPABILITY", "RAYON_NUM_THREADS", "TOKENIZERS_PARALLELISM", "CUDA_VISIBLE_DEVICES",
    "PYTORCH_CUDA_ALLOC_CONF", "CUDA_LAUNCH_BLOCKING", "NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME",
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "HF_HUB_OFFLINE", "HF_HOME", "TMPDIR",
)  # fmt: skip
"""Environment variables that affect a training; none of them contains a secret."""

_SECONDS = 0.5  # short products find moments in which shared cores are idle
_SHAPE_ON_CPU, _SHAPE_ON_GPU = (256, 768, 768), (4096, 4096, 4096)
_CLEARLY_FASTER = 1.15
_CROWDED = 0.75
"""Load per core that indicates other processes."""
_OLDEST_DRIVERS = {11: 450, 12: 525, 13: 580}
"""Of each CUDA release, NVIDIA's oldest driver for Linux."""
_LITTLE_SPACE, _LITTLE_MEMORY = 1 << 30, 1 << 30
_SLOW_DISK = 20e6
"""Bytes per second, at which a checkpoint of GPT-2 small takes more than a minute."""


def machine_facts(device: torch.device, output: Path) -> dict[str, Any]:
    """Return the facts, with the process's current number of threads.

    Args:
        device: of the training; its matrix products are timed.
        output: the folder whose disk is measured; it need not exist.
    """
    load = os.getloadavg()[0]  # before this process adds to it
    return {
        "versions": _versions(),
        "extras": {extra: util.find_spec(module) is not None for extra, module in _EXTRAS.items()},
        "processor": _processor(load),
        "compiler": compiler(),
        "operators": _operators(device),
        "products": _products(device),
        "memory": {
            "total": memory_bytes(),
            "available": available_memory_bytes(),
            "limit": memory_limit(),
        },
        "disk": _disk(output),
        "gpus": _gpus(),
        "cuda": _cuda(),
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


def _versions() -> dict[str, dict[str, str | None]]:
    """Return the version of each package, and the oldest supported one according to ``pyproject.toml``."""
    oldest = _oldest_versions()
    found: dict[str, dict[str, str | None]] = {
        "hornbook": {"version": __version__, "oldest": None},
        "python": {"version": platform.python_version(), "oldest": oldest.get("python")},
    }
    for name in LIBRARIES:
        version = torch.__version__ if name == "torch" else metadata.version(name)  # torch's includes the build
        found[name] = {"version": str(version), "oldest": oldest.get(name)}
    return found


def _oldest_versions() -> dict[str, str]:
    """Return the lower bounds that the installed package declares; none if it is not installed."""
    try:
        declared = metadata.metadata("hornbook")
    except metadata.PackageNotFoundError:
        return {}
    bounds = [f"python{declared['Requires-Python'] or ''}", *(metadata.requires("hornbook") or ())]
    matches = (re.fullmatch(r"([\w.-]+)\s*>=\s*([\d.]+)", bound) for bound in bounds)
    return {match[1]: match[2] for match in matches if match}


def _processor(load: float) -> dict[str, Any]:
    return {
        "name": cpu_model(),
        "cores": os.cpu_count() or 1,
        "usable_cores": usable_cores(),
        "physical_cores": physical_cores(),
        "threads": torch.get_num_threads(),
        "instruction_sets": instruction_sets(),
        "load": round(load, 2),
    }


def compiler() -> str | None:
    """Return the version line of the C++ compiler that builds native operators; None without one."""
    try:
        return find_compiler()[1].splitlines()[1]  # after its command
    except (BuildError, IndexError):
        return None


def _operators(device: torch.device) -> dict[str, Any]:
    """Return the operators that ``auto`` selects, and the libraries that PyTorch uses on a CPU."""
    kernels = choose("auto", device, compute_dtype("auto", device))
    backends = {
        "oneDNN": torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]
        "MKL": torch.backends.mkl.is_available(),  # type: ignore[no-untyped-call]
        "OpenMP": torch.backends.openmp.is_available(),  # type: ignore[no-untyped-call]
    }
    return {
        "kernels": str(kernels),
        "native_forms": dict(kernels.forms),
        "form_states": form_states() if device.type == "cpu" else {},
        "second_level_cache": second_level_cache() if device.type == "cpu" else None,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "backends": [name for name, is_there in backends.items() if is_there],
    }


def _products(device: torch.device) -> dict[str, Any]:
    """Return the rate of a product in fp32 and bf16, and the dtype that ``precision.compute = "auto"`` selects."""
    shape = _SHAPE_ON_CPU if device.type == "cpu" else _SHAPE_ON_GPU
    dtypes = torch.float32, torch.bfloat16
    rates = measure_rates([Product.of_shape(*shape, dtype, device) for dtype in dtypes], device, seconds=_SECONDS)
    return {
        "device": str(device),
        "threads": torch.get_num_threads(),
        "shape": list(shape),
        "flops_per_second": {dtype_name(dtype): rate for dtype, rate in zip(dtypes, rates, strict=True)},
        "auto": dtype_name(compute_dtype("auto", device)),
    }


def _disk(output: Path) -> dict[str, Any]:
    """Return free space and speed of the disk of ``output``; ``error`` says why the folder cannot be written."""
    system = file_system(output)
    facts: dict[str, Any] = {
        "folder": str(existing_parent(output)),
        "file_system": system.kind if system else None,
        "mount": system.mount if system else None,
        "is_network": system.is_network if system else None,
        "is_memory": system.is_memory if system else None,
        "free": None,
        "write": None,
        "read": None,
        "error": None,
    }
    try:
        facts["free"] = free_bytes(output)
        speed = disk_speed(output)
    except StorageError as error:
        return facts | {"error": str(error)}
    return facts | {"write": speed.write, "read": speed.read}


def _gpus() -> list[dict[str, Any]]:
    """Return the GPUs that this PyTorch can use."""
    if not torch.cuda.is_available():
        is_apple = torch.backends.mps.is_available()
        return [{"name": "Apple MPS", "memory": torch.mps.recommended_max_memory()}] if is_apple else []
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append(
            {
                "name": properties.name,
                "memory": properties.total_memory,
                "free": torch.cuda.mem_get_info(index)[0],
                "capability": f"{properties.major}.{properties.minor}",
                "bf16": compute_dtype("auto", torch.device("cuda", index)) == torch.bfloat16,
            }
        )
    return found


def _cuda() -> dict[str, Any]:
    """Return PyTorch's CUDA version, the driver and NCCL; each None if absent."""
    has_nccl = torch.cuda.is_available() and torch.distributed.is_nccl_available()
    nccl = torch.cuda.nccl.version() if has_nccl else ()  # type: ignore[no-untyped-call]
    return {
        "build": torch.version.cuda,
        "driver": _first_line("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "nccl": ".".join(map(str, nccl)) or None,
    }


def _first_line(*command: str) -> str | None:
    return next(iter(output_of(*command).splitlines()), None)


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
