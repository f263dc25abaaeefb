"""The fastest rate of a product is kept in the user's cache; one that is not believable counts for nothing."""

from pathlib import Path

import pytest

from hornbook.run.utilization import fastest
from hornbook.storage.json_files import keep


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An own cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_the_fastest_rate_of_each_product_is_kept() -> None:
    assert [fastest("one", rate) for rate in (2e9, 1e9, 3e9)] == [2e9, 2e9, 3e9]
    assert fastest("another", 1e9) == 1e9


@pytest.mark.parametrize("value", [True, -2e9, 2e15])
def test_a_rate_that_is_not_believable_is_replaced(value: float) -> None:
    keep("peaks", "one", value)
    assert fastest("one", 1.5e9) == 1.5e9
    assert fastest("one", 1e9) == 1.5e9
