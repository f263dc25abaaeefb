"""Collect facts of this machine: versions, cores, speed of matrix products, memory, disk, GPUs.

    machine_facts(torch.device("cpu"), Path("runs"))
        -> {"versions": ..., "processor": ..., "products": ..., "memory": ..., "disk": ..., "gpus": ..., ...}

All values are valid in JSON; sizes are in bytes, speeds in bytes or FLOP per second. This takes about two seconds,
mostly for products and the disk, and leaves no files. `hornbook.measure.machine_findings` evaluates the facts.
"""

import os
import platform
import re
import shutil
from importlib import metadata, util
from pathlib import Path
from typing import Any

import torch

from hornbook.errors import StorageError
from hornbook.ops.native.choice import choose
from hornbook.parallel.device import compute_dtype, dtype_name, physical_cores
from hornbook.run.utilization import Product, measure_rates
from hornbook.storage.disk import disk_speed, file_system
from hornbook.storage.system import existing_parent, free_bytes, usable_cores
from hornbook.track.environment import (
    available_memory_bytes,
    cpu_model,
    instruction_sets,
    memory_bytes,
    memory_limit,
    output_of,
)
from hornbook.version import __version__

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
    "transformers": "transformers",
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
    """Return the version line of the C++ or C compiler, ``CXX`` and ``CC`` first; None without a compiler."""
    for name in (os.environ.get("CXX"), os.environ.get("CC"), "c++", "g++", "clang++", "cc"):
        path = shutil.which(name) if name else None
        if path and (version := _first_line(path, "--version")):
            return version
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
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "backends": [name for name, is_there in backends.items() if is_there],
    }


def _products(device: torch.device) -> dict[str, Any]:
    """Return the rate of a product in fp32 and bf16, and the dtype that ``precision.compute = "auto"`` selects."""
    shape = _SHAPE_ON_CPU if device.type == "cpu" else _SHAPE_ON_GPU
    dtypes = torch.float32, torch.bfloat16
    rates = measure_rates([Product.of_shape(*shape, dtype, device) for dtype in dtypes], device, _SECONDS)
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
