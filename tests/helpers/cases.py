"""Cases of a test, of which the first ones run by default."""

from collections.abc import Iterable
from typing import Any

import pytest


def mostly_slow(cases: Iterable[Any], num_fast: int = 1) -> list[Any]:
    """Return the cases of a parameter; those after the first ones run with ``make test-slow`` only."""
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*value, marks=[pytest.mark.slow] * (n >= num_fast)) for n, value in enumerate(values)]
