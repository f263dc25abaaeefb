"""The death of the process between any two disk operations of each action, and in the middle of each write."""

import json
import os
from pathlib import Path

from actions import ACTIONS
from trials import Part, Trial, fork

from hornbook.storage.faults import CRASH_STATUS, count_operations, inject


def _prepare(shared: Path) -> None:
    """List all crash points; they are the operations that each action performs when nothing goes wrong."""
    points = []
    for name, action in ACTIONS.items():
        (shared / name).mkdir()
        action.begin(shared / name)
        with count_operations() as operations:
            action.act(shared / name)
        for number, operation in enumerate(operations, 1):
            points.append((name, "any", number, "crash-before"))
            if operation.name == "write":
                writes = sum(other.name == "write" for other in operations[:number])
                points.append((name, "write", writes, "crash-middle"))
        points.append((name, "any", len(operations), "crash-after"))
    (shared / "points.json").write_text(json.dumps(points))


def _count(shared: Path) -> int:
    return len(json.loads((shared / "points.json").read_text()))


def _run(trial: Trial) -> str:
    points = json.loads((trial.shared / "points.json").read_text())
    name, operation, number, kind = points[trial.number * _STRIDE % len(points)]
    action = ACTIONS[name]
    action.begin(trial.folder)
    child = fork()
    if child == 0:
        with inject(operation, number, kind):
            action.act(trial.folder)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == CRASH_STATUS, f"{name} ended with {status} at {operation}:{number}:{kind}"
    action.check(trial.folder)
    return str(name)


_STRIDE = 7919
"""A prime, so that the first trials are of all actions and all trials are of all points."""

CRASH_POINTS = Part(
    name="crash-points",
    promise="a death between any two disk operations of a save, a prune, a replaced file or a build, or in the middle "
    "of a write, leaves the old state or the new one",
    run=_run,
    prepare=_prepare,
    count=_count,
    short=60,
)
