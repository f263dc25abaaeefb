"""The tools of `make reliability`: its short form runs in .ci/run."""

import itertools
import sys
from pathlib import Path
from random import Random

import pytest

TOOLS = Path(__file__).parents[1] / "tools" / "reliability"


@pytest.fixture(autouse=True)
def import_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(TOOLS), str(TOOLS.parent), *sys.path])


def test_every_planted_fault_can_be_planted() -> None:
    from planted import read_faults

    stale = [fault.name for fault in read_faults() if fault.is_stale]
    assert not stale


def test_every_mutation_can_be_planted() -> None:
    import mutations

    assert not [mutation for mutation in mutations.read([]) if mutation.text.count(mutation.old) != 1]


def test_a_power_failure_loses_what_was_not_synced(tmp_path: Path) -> None:
    from power_loss import Node, write_after_failure

    durable, pending = Node(is_folder=False, data=b"durable"), Node(is_folder=False, writes=[b"written"])
    top = Node(is_folder=True, entries={"old": durable}, changes=[{"new": pending}, {"old": None}])
    seen = set()
    for number in range(200):
        folder = tmp_path / str(number)
        write_after_failure(top, folder, Random(number))
        seen.add(tuple(sorted((path.name, path.read_bytes()) for path in folder.iterdir())))
    assert (("old", b"durable"),) in seen, "nothing of what was pending"
    assert (("new", b"written"),) in seen, "all of it"
    assert (("new", b""), ("old", b"durable")) in seen, "a name without its content"
    assert any(("new", bytes(7)) in files for files in seen), "zeros"
    pending.sync()
    top.sync()
    write_after_failure(top, tmp_path / "synced", Random(0))
    assert {path.name: path.read_bytes() for path in (tmp_path / "synced").iterdir()} == {"new": b"written"}


def test_every_evil_pickle_does_harm_when_it_runs(tmp_path: Path) -> None:
    import pickles

    for number, (opcode, make) in enumerate(pickles.OPCODES.items()):
        canary = tmp_path / str(number)
        target = pickles.targets_of(opcode)[0]
        if not opcode.startswith("EXT"):  # they change a registry of the process
            pickles.unpickle(b"\x80\x04" + make(target, target.arguments(str(canary))) + b".")
            assert canary.exists(), opcode


def test_the_matrix_has_each_layout_family_and_precision_once() -> None:
    import layouts

    cells = [layouts.cell_of(number) for number in range(layouts.LAYOUTS_PART.trials or 0)]
    expected = itertools.product(layouts.LAYOUTS, layouts.FAMILIES, layouts.PRECISIONS)
    assert sorted(cells) == sorted(expected)


def test_what_the_matrix_expects_to_be_refused_is_refused() -> None:
    import layouts

    from hornbook.config import load_recipe
    from hornbook.config.build import refuse_misfit
    from hornbook.errors import UserError

    for (layout, (size, _)), family in itertools.product(layouts.LAYOUTS.items(), layouts.FAMILIES):
        name, *words = layouts.words_in(layout, family, "fp32")
        try:
            refuse_misfit(load_recipe(name, words).recipe, size)
        except UserError:
            assert layouts.why_refused(layout, family), (layout, family)
        else:
            assert not layouts.why_refused(layout, family), (layout, family)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 8])
def test_worlds_that_grow_and_shrink_have_layouts_that_fit(size: int, tmp_path: Path) -> None:
    import elastic

    from hornbook.config import load_recipe
    from hornbook.config.build import refuse_misfit

    for options, kind in itertools.product(elastic.layouts_of(size).values(), elastic.KINDS):
        steps = elastic.ELASTIC_STEPS if size < 8 else elastic.PAIR_STEPS
        _, name, *words = elastic.words_in(tmp_path, tmp_path / "run", kind, steps)
        settings = [word for word in words if "." in word.partition("=")[0]]
        refuse_misfit(load_recipe(name, (*settings, *options)).recipe, size)
