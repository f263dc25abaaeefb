"""Plug points: where the core asks rooms for what it does not know, such as the files of other systems.

    plug("sample sources", "hornbook.interop.instances.static_instances")     `hornbook/__init__`: a name, not an import
    for room in plugged("sample sources"): room.holds_instances(path)         `hornbook.samples.instances`, in the core

A room is a module with the functions that the point's users call, listed below; it is imported on first use. Nothing in
the core imports a room (`tests/test_architecture.py`), so hornbook without a room trains as before.
"""

import importlib
from types import ModuleType
from typing import Final, Literal, get_args

Point = Literal["store openers", "sample sources", "checkpoint readers", "document readers"]
"""What the core calls in a room, and where from:

store openers       how_to_convert(path): what to do with tokens that are no store (`hornbook.corpora.store`)
sample sources      holds_instances(path), open_instances(path, seed) (`hornbook.samples.instances`)
checkpoint readers  is_checkpoint, find_index, config_name, translate_config, read_weights
                    (`hornbook.exchange.huggingface.model_folder`)
document readers    STREAM_READERS and READERS by format (`hornbook.text.documents`)
"""

_ROOMS: Final[dict[str, list[str]]] = {point: [] for point in get_args(Point)}


def plug(point: Point, module: str) -> None:
    """Plug the module of this name into a point, once; later modules are asked later."""
    if module not in _ROOMS[point]:
        _ROOMS[point].append(module)


def plugged(point: Point) -> list[ModuleType]:
    """Return the modules that are plugged into a point, imported."""
    return [importlib.import_module(module) for module in _ROOMS[point]]
