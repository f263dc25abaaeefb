"""The collector is paused while torch is imported, and only then; a training imports late what few runs need."""

import ast
import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hornbook
from hornbook.parallel.launched import collector_paused

SOURCE = Path(hornbook.__file__).parent
NOT_BEFORE_THE_FIRST_STEP = (
    *("evaluate", "generate", "exchange.huggingface", "interop", "wikipedia", "measure"),
    *("run.scheduled_tasks", "samples.encoder_samples", "samples.labelled_samples", "samples.squad"),
    *("text.documents", "text.reading", "text.readers", "track.report", "track.runs", "plan.devices", "plan.planner"),
)


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


def test_a_training_imports_little_before_its_first_step() -> None:
    """By the imports at the top of modules: the import itself takes seconds."""
    reached, pending = set[str](), ["cli.train_command", "run.launch"]
    while pending:
        module = pending.pop()
        if module not in reached and (path := path_of(module)) is not None:
            reached.add(module)
            pending += [module.rpartition(".")[0], *imports_at_the_top(path)]
    assert {"engine.step", "engine.validation", "exchange.restore", "corpora.store"} <= reached
    found = {module for module in reached for name in NOT_BEFORE_THE_FIRST_STEP if f"{module}.".startswith(f"{name}.")}
    assert found == set()
    assert [name for name in NOT_BEFORE_THE_FIRST_STEP if path_of(name) is None] == [], "no such modules"
    assert len(reached) < 200


def path_of(module: str) -> Path | None:
    path = SOURCE.joinpath(*module.split("."))
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)


def imports_at_the_top(path: Path) -> Iterator[str]:
    """``engine``, ``engine.step`` and ``engine.step.train_step`` of ``from hornbook.engine.step import train_step``."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names = [str(node.module), *(f"{node.module}.{name}" for name in names)]
        yield from (name.removeprefix("hornbook.") for name in names if name.startswith("hornbook."))
