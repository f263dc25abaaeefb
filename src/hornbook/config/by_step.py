"""A value that changes at given updates, written as a list of STEP=VALUE.

    read(("0=128", "2000=64")) -> {0: 128.0, 2000: 64.0}        at(that, 1999) -> 128.0, at(that, 2000) -> 64.0

A list of texts is what files and the command line can both say (``0=128,2000=64``); a TOML table could not be given on
one line of words.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress

from hornbook.config.values import Mistake, show


def read(entries: Sequence[str]) -> dict[int, float]:
    """Return positive values by the number of the update, from 0, that they begin with; in order.

    Args:
        entries: ``STEP=VALUE`` each, in any order.

    Raises:
        Mistake: an entry that is no such pair, a value that is not positive, a step twice, or none for step 0.
    """
    values: dict[int, float] = {}
    for entry in entries:
        step, value = _pair(entry)
        if step in values:
            raise Mistake(f"step {step} has two values; leave one")
        values[step] = value
    if 0 not in values:
        raise Mistake("no value for the first updates; begin with 0=VALUE")
    return dict(sorted(values.items()))


def at(values: Mapping[int, float], step: int) -> float:
    """Return the value of the largest key that is at most ``step``; the keys are in order and begin with 0."""
    steps = list(values)
    return values[steps[bisect_right(steps, step) - 1]]


def _pair(entry: str) -> tuple[int, float]:
    if match := re.fullmatch(r"\s*(?P<step>[0-9][0-9_]{0,18})\s*=(?P<value>.+)", entry):
        with suppress(ValueError):
            value = float(match["value"])
            if 0.0 < value < math.inf:
                return int(match["step"]), value
    raise Mistake(f"{show(entry)}: expected STEP=VALUE with a positive value, as in 2000=0.5")
