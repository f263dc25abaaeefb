"""Format numbers for people, identically in the terminal and in the report.

    count(5_312_768) -> "5,312,768"      short(5_312_768) -> "5.31M"
    duration(3_725)  -> "1 h 02 min"     size(4_831_838)  -> "4.6 MiB"
    loss(5.20317)    -> "5.2032"         rate(0.0006)     -> "6.00e-04"

``number`` is the only conversion of values of unknown origin (a log line that anyone may have edited) to float: a
missing, non-numeric or non-finite value is ``None``, which is formatted as a hyphen. The price: a string such as
``"3.5"`` is not a number.
"""

import math
from collections.abc import Mapping

from hornbook.storage.system import format_bytes

LARGEST = 1e100  # float32 ends at 3.4e38; sums and ratios of such numbers stay finite
MISSING = "-"
_SCORED = {"classification": "texts", "span": "windows"}
"""What the validation loss with a term is a mean over, other than tokens."""
_SUFFIXES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))


def number(row: Mapping[str, object], key: str) -> float | None:
    """Return the float at ``key``; ``None`` if it is missing, not a number, not finite or implausibly large."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -LARGEST <= value <= LARGEST else None


def count(value: float | None) -> str:
    """Format an integer with thousands separators."""
    return MISSING if value is None else f"{value:,.0f}"


def short(value: float | None) -> str:
    """Format with three significant digits and a suffix: 24.1k, 5.31M, 1.60B, 2.00T."""
    if value is None:
        return MISSING
    rounded = float(f"{value:.2e}")  # 999.9 million are 1.00B
    for scale, suffix in _SUFFIXES:
        if abs(rounded) >= scale:
            return f"{significant(value / scale)}{suffix}"
    return significant(value)


def significant(value: float, digits: int = 3) -> str:
    """Format with ``digits`` significant digits, without an exponent for 0.001 <= |value| < 1000."""
    if value == int(value) and abs(value) < 1000:
        return f"{value:.0f}"
    if not 1e-3 <= abs(value) < 1e15:
        return f"{value:.{digits - 1}e}"
    rounded = float(f"{value:.{digits - 1}e}")  # 9.999 has the decimals of 10.0
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{value:.{decimals}f}"


def progress(step: int, total_steps: int | None) -> str:
    """Format the finished steps and, if known, their total: ``720/2,000``."""
    return count(step) if total_steps is None else f"{count(step)}/{count(total_steps)}"


def tick(value: float) -> str:
    """Format a round axis value as short as possible: 0.0003, 1.5, 250, 1.5k, 20M."""
    for scale, suffix in _SUFFIXES:
        if abs(value) >= scale:
            return f"{value / scale:.4g}{suffix}"
    return f"{value:.4g}"


def loss(value: float | None) -> str:
    """Format a loss in nats with four decimals; further ones differ even less than two seeds of one recipe."""
    return MISSING if value is None else f"{value:.4f}"


def bits(value: float | None) -> str:
    """Format bits per byte with three decimals."""
    return MISSING if value is None else f"{value:.3f}"


def rate(value: float | None) -> str:
    """Format a learning rate."""
    return MISSING if value is None else f"{value:.2e}"


def duration(seconds: float | None) -> str:
    """Format a duration in its two largest units: ``48 s``, ``5 min 12 s``, ``1 h 02 min``, ``3 d 04 h``."""
    if seconds is None:
        return MISSING
    whole = max(0, round(seconds))
    for unit, name, part, part_name in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit:
            return f"{whole // unit} {name} {whole % unit // part:02d} {part_name}"
    return f"{whole} s"


def short_time(seconds: float) -> str:
    """Format seconds with three significant digits: ``1.25 s``, ``12.3 ms``."""
    return f"{significant(seconds)} s" if seconds >= 1 else f"{significant(1e3 * seconds)} ms" if seconds else "0 s"


def size(num_bytes: float | None) -> str:
    """Format bytes in binary units."""
    return MISSING if num_bytes is None else format_bytes(num_bytes)


def flop_rate(flops: float) -> str:
    """Format FLOP/s: ``29.1 GFLOP/s``, ``312 TFLOP/s``."""
    unit, scale = ("TFLOP/s", 1e12) if flops >= 1e12 else ("GFLOP/s", 1e9)
    return f"{significant(flops / scale)} {unit}"


def at_step(text: str, measured: int | None, newest: int) -> str:
    """Return a formatted value with the step at which it was measured, if that is not the newest: ``1.790 @120``."""
    return text if measured is None or measured == newest or text == MISSING else f"{text} @{count(measured)}"


def scored(row: Mapping[str, object]) -> str:
    """Format what a validation loss is a mean of: ``27,054 tokens`` or ``16,383 tokens, 14% of the text, ± 0.049``.

    That of a fine-tuned model is one over texts, or over windows of texts.
    """
    tokens, share, error = (number(row, key) for key in ("tokens", "share", "standard_error"))
    noun = next((noun for term, noun in _SCORED.items() if term in row), "tokens")
    parts = [] if tokens is None else [f"{count(tokens)} {noun}"]
    if share is not None and share < 1.0:
        parts.append(f"{share:.0%} of the text" if share >= 0.01 else f"{share:.1%} of the text")
        parts += [] if error is None else [f"± {significant(error, 2)}"]
    return ", ".join(parts)
