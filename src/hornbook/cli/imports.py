"""Import torch, and load what else stays until the process ends, faster."""

import gc
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector in the ``with`` block, and never look at what it left, such as modules.

    Modules are not garbage, but their objects would be visited again and again while more are made, and twice at exit.
    Without this, importing torch and exiting takes 1.3 to 1.45 times as long. If torch was there before, nothing is
    done: what earlier commands of the process left would be kept for good.

    Torch asks `inspect.getmodule` 230 times for the module of a frame, which compares the files of all modules: 4 % of
    the import. In the block, the name in the frame answers.
    """
    if "torch" in sys.modules:
        yield
        return
    was_enabled, search = gc.isenabled(), inspect.getmodule

    def module_of(item: object, *filename: Any) -> ModuleType | None:
        if isinstance(item, FrameType):
            return sys.modules.get(item.f_globals.get("__name__", ""))
        return search(item, *filename)

    gc.disable()
    inspect.getmodule = module_of  # type: ignore[assignment]
    try:
        yield
    finally:
        inspect.getmodule = search
        gc.freeze()
        if was_enabled:
            gc.enable()
