"""The collector is paused while torch is imported, and only then."""

import gc
import sys

import pytest

from hornbook.cli.imports import collector_paused


def test_a_later_command_keeps_no_garbage() -> None:
    assert "torch" in sys.modules, "imported for all tests"
    before = gc.get_freeze_count()
    with collector_paused():
        assert gc.isenabled()
    assert gc.get_freeze_count() == before


def test_the_import_of_torch_is_not_collected_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    try:
        with collector_paused():
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
