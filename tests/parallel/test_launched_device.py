"""A device that is certainly not there is noticed without torch, and nothing else is."""

import sys
from importlib import metadata
from pathlib import Path

import pytest

from hornbook.errors import UserError
from hornbook.parallel import launched
from hornbook.parallel.launched import device_without_torch


@pytest.fixture
def machine(monkeypatch):
    """Return a function that pretends to be on a machine before torch is imported."""

    def pretend(version: str, *, system: str = "linux", has_driver: bool = False, has_amd: bool = False) -> None:
        def load(name: str) -> None:
            if not has_driver:
                raise OSError(name)

        monkeypatch.delitem(sys.modules, "torch")
        monkeypatch.setattr(sys, "platform", system)
        monkeypatch.setattr(metadata, "version", lambda name: version)
        monkeypatch.setattr(launched.ctypes, "CDLL", load)
        monkeypatch.setattr(Path, "exists", lambda path: has_amd)

    return pretend


@pytest.mark.parametrize(
    ("version", "facts"),
    [("2.13.0+cpu", {}), ("2.13.0+cpu", {"has_driver": True}), ("2.13.0", {}), ("2.13.0+cu130", {})],
)
def test_without_a_gpu_auto_is_the_cpu_and_cuda_an_error(machine, version, facts):
    machine(version, **facts)
    assert device_without_torch("auto") == "cpu"
    with pytest.raises(UserError, match=f"this PyTorch .{version.replace('+', '.')}. has no device 'cuda:0'"):
        device_without_torch("cuda")


@pytest.mark.parametrize(
    ("version", "facts"),
    [
        ("2.13.0", {"has_driver": True}),
        ("2.13.0+rocm7.1", {"has_amd": True}),
        ("2.13.0", {"system": "darwin"}),
        ("2.13.0+cpu", {"system": "win32"}),
    ],
)
@pytest.mark.parametrize("name", ["auto", "cuda", "mps"])
def test_where_only_torch_can_tell_nothing_is_refused(machine, version, facts, name):
    machine(version, **facts)
    assert device_without_torch(name) is None
    assert device_without_torch("cpu") == "cpu"


def test_an_imported_torch_is_asked_instead(machine):
    machine("2.13.0+cpu")
    sys.modules["torch"] = sys  # restored by the fixture
    assert device_without_torch("cuda") is None
