"""The rules of the house, held by a test: docs/internals/architecture.md draws them.

Every import is read from the syntax tree, those inside functions too: a lazy import is an arrow of the design like any
other.
"""

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from hornbook import plugs

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "hornbook"

LEVELS = {
    0: ("arrays", "errors", "extras", "plugs", "storage", "version", "wording"),
    1: ("config", "formats"),
    2: ("plan", "text"),
    3: ("corpora", "parallel"),
    4: ("samples",),
    5: ("ops", "checkpoint", "track"),
    6: ("model", "objective", "optim"),
    7: ("exchange", "generate"),
    8: ("engine", "evaluate"),
    9: ("run",),
    10: ("measure", "interop", "wikipedia", "peers"),
    11: ("api", "cli", "extend", "sparse", "__init__", "__main__"),
}
ROOMS = ("interop", "wikipedia", "peers")
"""Rooms for other systems' files and for other libraries: the core knows them by its plug points only."""
OUTSIDE = (*ROOMS, *LEVELS[11])
"""All that is not the core: the rooms, and those that call them by name."""
LEVEL_OF = {package: level for level, packages in LEVELS.items() for package in packages}

ASKED_FOR = {
    "store openers": ("how_to_convert",),
    "sample sources": ("holds_instances", "open_instances"),
    "checkpoint readers": ("is_checkpoint", "find_index", "config_name", "translate_config", "read_weights"),
    "document readers": ("STREAM_READERS", "READERS"),
}

LONGEST_FILE, LONGEST_FUNCTION = 400, 60
MAY_PRINT = ("cli/", "track/console.py", "__main__.py")
MAY_CATCH_ALL = (
    "cli/main.py",
    "run/callbacks.py",
    "storage/faults.py",
    "text/tokenizer.py",
    "track/trackers/delivery.py",
)
FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
MAY_UNPICKLE = "exchange/huggingface/torch_pickles.py"
FORBIDDEN_CALLS = {"eval", "exec", "compile", "torch.load", "torch.save", "torch.jit.load"}
WITHOUT_TORCH = (
    "errors",
    "extras",
    "plugs",
    "storage",
    "version",
    "wording",
    "config",
    "formats",
    "plan",
    "text",
    "corpora",
)
WITHOUT_TORCH += ("interop.formats", "interop.convert", "wikipedia")
OFTEN_IGNORED = {"build", "dist", "venv", "env", "node_modules", "target", "out", "bin", "lib"}
"""Names of folders that linters, editors, pytest and many .gitignore files skip."""
HEAVY = ("torch", "numpy", "tokenizers", "safetensors", "rich", "transformers")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def source_files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    """``src/hornbook/run/loop.py`` -> ``hornbook.run.loop``; a package's name is that of its folder."""
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


def package_of(module: str) -> str:
    """``hornbook.run.loop`` -> ``engine``."""
    return [*module.split("."), "__init__"][1]


def shown(path: Path, node: ast.AST | None = None) -> str:
    return str(path.relative_to(ROOT)) + (f":{node.lineno}" if node is not None else "")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def modules() -> frozenset[str]:
    return frozenset(map(name_of, source_files()))


def imports_of(path: Path) -> Iterator[tuple[ast.AST, str]]:
    """Every module that is imported, anywhere in a file; ``from hornbook.engine import loop`` is the module loop."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{shown(path, node)}: imports are absolute"
            for alias in node.names:
                longer = f"{node.module}.{alias.name}"
                yield node, longer if longer in modules() else node.module


def own_imports_of(path: Path) -> Iterator[tuple[ast.AST, str]]:
    for node, module in imports_of(path):
        if module.split(".")[0] == "hornbook":
            assert module in modules(), f"{shown(path, node)}: there is no {module}"
            yield node, module


def dotted(node: ast.expr) -> str:
    """``torch.load`` of the expression that says so; a name's prefix only where all of it is plain names."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def calls_of(path: Path) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call))


def functions_of(path: Path) -> Iterator[Function]:
    return (node for node in ast.walk(tree_of(path)) if isinstance(node, Function))


def public_definitions(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Function | ast.ClassDef]]:
    """Public classes and functions of a module, and the public methods of public classes; no overloads."""
    for node in body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_") and not _is_overload(node):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node.body, f"{prefix}{node.name}.")


def _is_overload(node: Function | ast.ClassDef) -> bool:
    return any(dotted(decorator) in ("overload", "typing.overload") for decorator in node.decorator_list)


def test_every_package_has_a_level() -> None:
    packages = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in source_files()}
    assert packages == set(LEVEL_OF), "the table above and src/hornbook differ"


def test_every_folder_of_modules_is_a_package_that_no_ignore_rule_skips() -> None:
    folders = {path.parent for path in source_files()}
    assert [shown(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []
    tested = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    assert [shown(folder) for folder in folders | tested if folder.name in OFTEN_IGNORED] == []


def test_imports_point_downwards() -> None:
    upwards = [
        f"{shown(path, node)}: {package_of(name_of(path))} imports {module}, which is above it"
        for path in source_files()
        for node, module in own_imports_of(path)
        if LEVEL_OF[package_of(module)] > LEVEL_OF[package_of(name_of(path))]
    ]
    assert upwards == []


def test_the_core_imports_no_room_of_other_systems() -> None:
    core = [path for path in source_files() if package_of(name_of(path)) not in OUTSIDE]
    assert {"corpora", "samples", "text", "exchange", "evaluate", "run", "measure"} <= {
        package_of(name_of(path)) for path in core
    }
    imported = [
        f"{shown(path, node)}: {module}"
        for path in core
        for node, module in own_imports_of(path)
        if package_of(module) in ROOMS
    ]
    assert imported == []


def test_every_plugged_room_exists_and_has_what_its_point_asks_for() -> None:
    for point in get_args(plugs.Point):
        rooms = plugs.plugged(point)
        assert rooms, f"no room for {point}"
        for room in rooms:
            assert package_of(room.__name__) in ROOMS
            assert [name for name in ASKED_FOR[point] if not hasattr(room, name)] == []


def test_no_import_cycles() -> None:
    graph = {name_of(path): {module for _, module in own_imports_of(path)} for path in source_files()}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail("modules import each other: " + " <- ".join(error.args[1]))


def test_files_are_short() -> None:
    files = source_files() + sorted((ROOT / "tests").rglob("*.py"))
    lengths = {shown(path): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert {path: length for path, length in lengths.items() if length > LONGEST_FILE} == {}


def test_functions_are_short() -> None:
    lengths = {
        f"{shown(path, node)} {node.name}": node.end_lineno - node.lineno + 1
        for path in source_files()
        for node in functions_of(path)
    }
    assert {name: length for name, length in lengths.items() if length > LONGEST_FUNCTION} == {}


def test_only_commands_and_the_console_print() -> None:
    prints = [
        shown(path, call)
        for path in source_files()
        if not str(path.relative_to(SOURCE)).startswith(MAY_PRINT)
        for call in calls_of(path)
        if dotted(call.func) in ("print", "sys.stdout.write", "sys.stderr.write")
    ]
    assert prints == []


def test_nothing_that_runs_code_from_data() -> None:
    imported = [
        f"{shown(path, node)}: {module}"
        for path in source_files()
        for node, module in imports_of(path)
        if module.split(".")[0] in FORBIDDEN_MODULES and str(path.relative_to(SOURCE)) != MAY_UNPICKLE
    ]
    called = [
        f"{shown(path, call)}: {dotted(call.func)}"
        for path in source_files()
        for call in calls_of(path)
        if (dotted(call.func) in FORBIDDEN_CALLS or _may_unpickle(call)) and not _is_the_one_load(path, call)
    ]
    assert imported + called == []


def test_one_place_opens_pickles_and_takes_its_error_alone() -> None:
    loads = [call for path in source_files() for call in calls_of(path) if _is_the_one_load(path, call)]
    assert len(loads) == 1
    imported = [node for node, module in imports_of(SOURCE / MAY_UNPICKLE) if module == "pickle"]
    assert [[alias.name for alias in node.names] for node in imported] == [["UnpicklingError"]]


def _is_the_one_load(path: Path, call: ast.Call) -> bool:
    """``torch.load(..., weights_only=True)`` in the file that may."""
    guarded = any(
        keyword.arg == "weights_only" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True
        for keyword in call.keywords
    )
    return str(path.relative_to(SOURCE)) == MAY_UNPICKLE and dotted(call.func) == "torch.load" and guarded


def _may_unpickle(call: ast.Call) -> bool:
    """``np.load`` without ``allow_pickle=False``; it is the default, and here it has to be said."""
    refused = any(
        keyword.arg == "allow_pickle" and isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        for keyword in call.keywords
    )
    return dotted(call.func) in ("np.load", "numpy.load") and not refused


def test_no_error_is_swallowed_whole() -> None:
    """``except Exception`` hides slips; two places answer for everything: the dispatcher and a forked child's end."""
    broad = [
        shown(path, node)
        for path in source_files()
        if str(path.relative_to(SOURCE)) not in MAY_CATCH_ALL
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")))
        and not any(_passes_on(inner) for inner in ast.walk(node))
    ]
    assert broad == []


def _passes_on(node: ast.AST) -> bool:
    """A bare ``raise``, or an error that the result of a thread raises where it is awaited."""
    is_given = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "set_exception"
    return is_given or (isinstance(node, ast.Raise) and node.exc is None)


def inherited(cls: ast.ClassDef) -> Iterator[ast.ClassDef]:
    """The classes of the house from which one is derived, directly or not, by their names."""
    for base in map(dotted, cls.bases):
        for other in classes().get(base.rpartition(".")[2], ()):
            if other is not cls:
                yield from (other, *inherited(other))


@cache
def classes() -> dict[str, list[ast.ClassDef]]:
    found: dict[str, list[ast.ClassDef]] = {}
    for path in source_files():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


def signature(node: Function) -> tuple[str, str]:
    return node.name, ast.unparse(node.args)


def test_everything_public_has_a_docstring_its_own_or_that_of_its_protocol_or_base() -> None:
    described = {
        signature(method)
        for path in source_files()
        for cls in ast.walk(tree_of(path))
        if isinstance(cls, ast.ClassDef) and any(dotted(base) == "Protocol" for base in cls.bases)
        for method in cls.body
        if isinstance(method, Function) and ast.get_docstring(method) is not None
    }
    overriding = {
        method
        for cls in (cls for found in classes().values() for cls in found)
        for base in inherited(cls)
        for documented in base.body
        for method in cls.body
        if isinstance(documented, Function) and ast.get_docstring(documented) is not None
        if isinstance(method, Function) and signature(method) == signature(documented)
    }
    bare = [shown(path) for path in source_files() if ast.get_docstring(tree_of(path)) is None]
    bare += [
        f"{shown(path, node)} {name}"
        for path in source_files()
        for name, node in public_definitions(tree_of(path).body)
        if ast.get_docstring(node) is None
        and not ("." in name and isinstance(node, Function) and (signature(node) in described or node in overriding))
    ]
    assert bare == []


def test_nothing_is_left_for_later() -> None:
    words = ("TO" + "DO", "FIX" + "ME", "X" * 3, "Not" + "ImplementedError")
    files = [*source_files(), *sorted((ROOT / "tests").rglob("*.py")), *sorted(ROOT.glob("docs/*.md"))]
    left = [
        f"{shown(path)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if any(word in line for word in words)
    ]
    assert left == []


def imported_by(program: str) -> set[str]:
    """Import or run something in a fresh interpreter and return the top-level names of all that was imported."""
    tail = "; import sys; sys.stdout.write('\\n' + ' '.join({name.split('.')[0] for name in sys.modules}))"
    run = [sys.executable, "-c", program + tail]
    finished = subprocess.run(run, capture_output=True, text=True, timeout=600, check=True)
    return set(finished.stdout.splitlines()[-1].split())


def test_the_lower_levels_import_no_torch() -> None:
    packages = tuple(f"hornbook.{package}" for package in WITHOUT_TORCH)
    names = sorted(
        name for name in modules() if name in packages or name.startswith(tuple(f"{package}." for package in packages))
    )
    assert {package for package in packages if package not in modules()} == set(), "no such packages"
    assert "torch" not in imported_by(f"import {', '.join(names)}")


def test_recipes_need_nothing_but_the_standard_library() -> None:
    names = sorted(name for name in modules() if package_of(name) in ("config", "errors"))
    assert imported_by(f"import {', '.join(names)}").isdisjoint(HEAVY)


def test_help_imports_nothing_heavy() -> None:
    program = (
        "from hornbook.cli.main import COMMANDS, main\n"
        "codes = [main(['--help']), main(['--version']), *(main([command, '--help']) for command in COMMANDS)]\n"
        "assert not any(codes), codes"
    )
    assert imported_by(program).isdisjoint(HEAVY)
