"""How numbers are written for people, the same on the terminal and in the report.

    count(5_312_768) -> "5,312,768"      short(5_312_768) -> "5.31M"
    duration(3_725)  -> "1 h 02 min"     size(4_831_838)  -> "4.6 MiB"
    loss(5.20317)    -> "5.2032"         rate(0.0006)     -> "6.00e-04"

``number`` is the one door through which a value of unknown origin (a log line that anyone may have edited) becomes a
float: what is missing, not a number or not finite is ``None``, and ``None`` is written as a hyphen everywhere. The
price is that a string such as ``"3.5"`` is no number here.
"""

import math
from collections.abc import Mapping

LARGEST = 1e100  # float32 ends at 3.4e38; sums and ratios of such numbers stay finite
MISSING = "-"
_SUFFIXES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))


def number(row: Mapping[str, object], key: str) -> float | None:
    """The float at ``key``, or ``None``: missing, no number, not finite, or beyond what any training computes."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -LARGEST <= value <= LARGEST else None


def count(value: float | None) -> str:
    """A whole number with thousands apart."""
    return MISSING if value is None else f"{value:,.0f}"


def short(value: float | None) -> str:
    """Three significant digits and a suffix: 24.1k, 5.31M, 1.60B, 2.00T."""
    if value is None:
        return MISSING
    for scale, suffix in _SUFFIXES:
        if abs(value) >= scale:
            return f"{significant(value / scale)}{suffix}"
    return significant(value)


def significant(value: float, digits: int = 3) -> str:
    """``digits`` significant digits without an exponent, for 0.001 <= |value| < 1000; whole numbers stay whole."""
    if value == int(value) and abs(value) < 1000:
        return f"{value:.0f}"
    if not 1e-3 <= abs(value) < 1e15:
        return f"{value:.{digits - 1}e}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"


def progress(step: int, total_steps: int | None) -> str:
    """Steps made and, where it is known, of how many: ``720/2,000``."""
    return count(step) if total_steps is None else f"{count(step)}/{count(total_steps)}"


def tick(value: float) -> str:
    """A round value on an axis, as short as it goes: 0.0003, 1.5, 250, 1.5k, 20M."""
    for scale, suffix in _SUFFIXES:
        if abs(value) >= scale:
            return f"{value / scale:.4g}{suffix}"
    return f"{value:.4g}"


def loss(value: float | None) -> str:
    """A loss in nats, to four decimals, which is where two seeds of one recipe begin to agree by chance."""
    return MISSING if value is None else f"{value:.4f}"


def bits(value: float | None) -> str:
    """Bits per byte, to three decimals."""
    return MISSING if value is None else f"{value:.3f}"


def rate(value: float | None) -> str:
    """A learning rate."""
    return MISSING if value is None else f"{value:.2e}"


def duration(seconds: float | None) -> str:
    """The two largest units: ``48 s``, ``5 min 12 s``, ``1 h 02 min``, ``3 d 04 h``."""
    if seconds is None:
        return MISSING
    whole = max(0, round(seconds))
    for unit, name, part, part_name in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit:
            return f"{whole // unit} {name} {whole % unit // part:02d} {part_name}"
    return f"{whole} s"


def size(num_bytes: float | None) -> str:
    """Bytes in binary units."""
    if num_bytes is None:
        return MISSING
    value = float(num_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def flop_rate(flops: float) -> str:
    """FLOP/s: ``29.1 GFLOP/s``, ``312 TFLOP/s``."""
    unit, scale = ("TFLOP/s", 1e12) if flops >= 1e12 else ("GFLOP/s", 1e9)
    return f"{significant(flops / scale)} {unit}"
