"""Peak rates of this machine's matrix products, kept from run to run in the user's cache.

::

    ~/.cache/hornbook/peaks/3f0c....json  {"product": "AMD EPYC 9R14, PyTorch 2.13.0, 1 thread, a 32 × 32 × 128 product
                                           in fp32", "flops_per_second": 9.1e10}

A rate can only be measured too low: other processes take caches, the other half of a core, and its clock rate. So the
fastest rate that was ever measured is the peak, and runs of a machine are shares of the same one. A file that
is missing, damaged or not believable is as good as none, and the price of one that cannot be written is that the next
run measures for itself.
"""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from hornbook.errors import HornbookError
from hornbook.storage.files import temporary_beside
from hornbook.storage.json_files import dump_json, read_json

_MOST_GAIN = 5.0
"""A kept rate that is higher than this, relative to a measured one, is not believed: no load slows a product so much,
as only processor time counts."""
_MOST_BYTES = 4096


def folder() -> Path:
    """Return the user's folder of peak rates."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "hornbook" / "peaks"


def fastest(product: str, rate: float) -> float:
    """Return the fastest rate of a product that was measured on this machine, and keep it.

    Args:
        product: all that its speed depends on: processor, version of PyTorch, threads, dtype, shape.
        rate: FLOP/s measured now.
    """
    with suppress(RuntimeError):  # without a home folder
        path = folder() / f"{hashlib.sha256(product.encode()).hexdigest()[:16]}.json"
        kept = _kept(path, product)
        if kept is not None and rate <= kept <= _MOST_GAIN * rate:
            return kept
        _keep(path, {"product": product, "flops_per_second": rate})
    return rate


def _keep(path: Path, content: dict[str, object]) -> None:
    partial = temporary_beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(dump_json(content))
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink()


def _kept(path: Path, product: str) -> float | None:
    """Return the rate in a file; None if it has none for this product."""
    try:
        found = read_json(path, "a peak rate") if path.stat().st_size <= _MOST_BYTES else None
    except (HornbookError, OSError):
        return None
    if not isinstance(found, dict) or found.get("product") != product:
        return None
    rate = found.get("flops_per_second")
    return rate if isinstance(rate, float) else None
