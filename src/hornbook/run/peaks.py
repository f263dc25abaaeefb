"""Peak rates of this machine's matrix products, kept in the user's cache (`hornbook.storage.kept`).

A rate can only be measured too low: other processes take caches, the other half of a core, and its clock rate. So the
fastest rate that was ever measured is the peak, and runs of a machine are shares of the same one. A kept rate that is
not believable counts for nothing.
"""

from hornbook.storage.kept import keep, kept

_MOST_GAIN = 5.0
"""A kept rate that is higher than this, relative to a measured one, is not believed: no load slows a product so much,
as only processor time counts."""


def is_known(product: str) -> bool:
    """Return whether a rate of a product is kept."""
    return isinstance(kept("peaks", product), float)


def fastest(product: str, rate: float) -> float:
    """Return the fastest rate of a product that was measured on this machine, and keep it.

    Args:
        product: all that its speed depends on: processor, version of PyTorch, threads, dtype, shape.
        rate: FLOP/s measured now.
    """
    before = kept("peaks", product)
    if isinstance(before, float) and rate <= before <= _MOST_GAIN * rate:
        return before
    keep("peaks", product, rate)
    return rate
