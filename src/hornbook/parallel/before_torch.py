"""What commands do before torch is imported: choose a device, if there is surely no GPU, and import torch faster."""

import ctypes
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from hornbook.errors import UserError


def choose_name(name: str, present: Sequence[str], version: str) -> str:
    """Return the device ``name``: auto, cpu, cuda (that of this local rank), cuda:N or mps.

    Args:
        name: as asked for.
        present: the devices, fastest first.
        version: of PyTorch.

    Raises:
        UserError: the device is not present.
    """
    wanted = present[0].partition(":")[0] if name == "auto" else name
    if wanted == "cuda":
        wanted = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    if wanted not in present:
        raise UserError(
            f"this PyTorch ({version}) has no device {wanted!r}; available: {', '.join(present)}; choose another "
            "`device`"
        )
    return wanted


def device_without_torch(name: str) -> str | None:
    """Return what ``choose_name`` does if it is certain without importing torch, as on a machine without a GPU.

    Raises:
        UserError: the device is certainly not present.
    """
    if name == "cpu":
        return name
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:  # built from source
        return None
    return choose_name(name, ["cpu"], version) if "torch" not in sys.modules and _has_only_cpu(version) else None


def _has_only_cpu(version: str) -> bool:
    """Return whether Linux has no GPU that this PyTorch could use: none of NVIDIA's driver, nor AMD's device."""
    if sys.platform != "linux":
        return False
    if version.endswith("+cpu"):
        return True
    try:
        ctypes.CDLL("libcuda.so.1")  # as PyTorch does
    except OSError:
        return not Path("/dev/kfd").exists()
    return False


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector in the ``with`` block, and never look at what it left, such as modules.

    Modules are not garbage, but their objects would be visited again and again while more are made, and twice at exit.
    Without this, importing torch and exiting takes 1.3 to 1.45 times as long. If torch was there before, nothing is
    done: what earlier commands of the process left would be kept for good.
    """
    if "torch" in sys.modules:
        yield
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
