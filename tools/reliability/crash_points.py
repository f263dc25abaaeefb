"""The death of the process between any two disk operations of each action, and in the middle of each write."""

import json
from functools import partial
from itertools import zip_longest
from pathlib import Path
from random import Random

from actions import ACTIONS
from crashes import crashes_in_child
from trials import Part, Trial

from hornbook.storage.faults import count_operations


def _prepare(shared: Path) -> None:
    """List all crash points, the actions in turn: the operations that each performs when nothing goes wrong."""
    points = []
    for name, action in ACTIONS.items():
        of_action = []
        (shared / name).mkdir()
        action.begin(shared / name)
        with count_operations() as operations:
            action.act(shared / name)
        for number, operation in enumerate(operations, 1):
            of_action.append((name, "any", number, "crash-before"))
            if operation.name == "write":
                writes = sum(other.name == "write" for other in operations[:number])
                of_action.append((name, "write", writes, "crash-middle"))
        of_action.append((name, "any", len(operations), "crash-after"))
        points.append(Random(name).sample(of_action, len(of_action)))
    in_turn = [point for column in zip_longest(*points) for point in column if point]
    (shared / "points.json").write_text(json.dumps(in_turn))


def _count(shared: Path) -> int:
    return len(json.loads((shared / "points.json").read_text()))


def _run(trial: Trial) -> str:
    points = json.loads((trial.shared / "points.json").read_text())
    name, operation, number, kind = points[trial.number]
    action = ACTIONS[name]
    action.begin(trial.folder)
    died = crashes_in_child(partial(action.act, trial.folder), operation, number, kind)
    assert died, f"{name} did not reach {operation}:{number}:{kind}"
    action.check(trial.folder)
    return str(name)


CRASH_POINTS = Part(
    name="crash-points",
    promise="a death between any two disk operations of a save, a prune, a replaced file or a build, or in the middle "
    "of a write, leaves the old state or the new one",
    run=_run,
    prepare=_prepare,
    count=_count,
    short=40,
)
