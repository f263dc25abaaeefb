"""One thread, no network, ordinary arithmetic and signals for all tests: they share a machine, and some a process."""

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# By default, an example that takes more than 200 ms on the wall clock fails; on a busy machine, any may.
settings.register_profile("quick", deadline=None, max_examples=25)
settings.register_profile("thorough", deadline=None, max_examples=400)  # of make test-slow
settings.load_profile("quick")
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
# Some containers set it; each of some hundred processes that the tests start would compile hornbook's modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# The tests sync files thousands of times, which costs nothing in memory, and a process dies there as anywhere. They
# take less than 200 MB, and run programs there; containers often have a /dev/shm of 64 MB, or one without programs.
_MEMORY = Path("/dev/shm")
if (
    _MEMORY.is_dir()
    and os.access(_MEMORY, os.W_OK)
    and not os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC
    and shutil.disk_usage(_MEMORY).free > 1 << 30
):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))
# A shell's ``&`` and ``nohup`` let what they start ignore these, and all processes that the tests start after it.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _handler)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Let torch compute on one thread, whoever imported it first."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def denormals_are_back() -> Iterator[None]:
    """Undo what a training run did to the arithmetic of this process: it flushes denormal numbers to zero."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


@pytest.fixture(autouse=True)
def kernels_are_back() -> Iterator[None]:
    """Undo the choice of operators of training runs, those of fixtures and of the test."""
    name = "hornbook.ops.native.kernels"
    if module := sys.modules.get(name):
        module.use(module.NOT_CHOSEN)
    yield
    if module := sys.modules.get(name):
        module.use(module.NOT_CHOSEN)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU where there is none."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
