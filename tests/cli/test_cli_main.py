import errno
import io
import json
import logging
import os
import runpy
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from cases import mostly_slow
from terminals import on_terminal

from hornbook.__main__ import main
from hornbook.cli.main import COMMANDS
from hornbook.errors import (
    CheckpointError,
    DivergedError,
    HornbookError,
    PathError,
    RecipeError,
    StoppedBySignal,
    StorageError,
)

GENEROUS = 5
"""How much slower than the promise a loaded test machine may be."""


@pytest.fixture
def command(monkeypatch):
    """Install a command ``fake`` whose body is given by the test."""

    def install(run, add_arguments=lambda parser: None):
        module = types.ModuleType("hornbook.cli.fake_command")
        module.run, module.add_arguments = run, add_arguments
        monkeypatch.setitem(sys.modules, "hornbook.cli.fake_command", module)
        monkeypatch.setitem(COMMANDS, "fake", "does what a test wants")

    return install


def fail_with(error):
    def run(arguments):
        raise error

    return run


def test_a_result_is_printed_as_json_alone_on_the_last_line(command, capsys):
    def run(arguments):
        sys.stdout.write("for people\n")
        return {"path": Path("a/b"), "loss": float("nan"), "deep": [{"x": float("inf")}, (1, None)], "ok": True}

    command(run)
    assert main(["fake", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == "for people\n"
    assert out.count("\n") == 1
    assert json.loads(out) == {"path": "a/b", "loss": None, "deep": [{"x": None}, [1, None]], "ok": True}


def test_a_path_that_may_not_be_looked_at(command, capsys):
    command(fail_with(PermissionError(13, "Permission denied", "closed/a.txt")))
    assert main(["fake"]) == 2
    line = "hornbook: error: cannot read closed/a.txt: Permission denied; check the path and its permissions\n"
    assert capsys.readouterr().err == line


def test_a_socket_is_no_path(command, capsys):
    command(fail_with(PermissionError(1, "Operation not permitted")))
    assert main(["fake"]) == 1
    assert "error: PermissionError: [Errno 1] Operation not permitted; run again with" in capsys.readouterr().err


def test_a_path_that_is_too_long_to_be_looked_at(command, capsys):
    command(lambda arguments: Path("x" * 300).exists())
    assert main(["fake"]) == 2
    assert "xxx: File name too long; check the path" in capsys.readouterr().err


def test_scalars_of_numpy_become_numbers(command, capsys):
    import numpy as np

    command(lambda arguments: {"count": np.int64(3), "rate": np.float32("nan")})
    assert main(["fake", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"count": 3, "rate": None}


def test_without_json_only_what_the_command_printed(command, capsys):
    def run(arguments):
        sys.stdout.write("for people\n")
        return {"not": "shown"}

    command(run)
    assert main(["fake"]) == 0
    assert capsys.readouterr() == ("for people\n", "")


def test_what_an_encoding_lacks_is_escaped(command, monkeypatch):
    command(lambda arguments: sys.stdout.write("é → █\n") and None)
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="latin-1"))
    assert main(["fake"]) == 0
    assert raw.getvalue() == b"\xe9 \\u2192 \\u2588\n"


def test_no_result_is_an_empty_object(command, capsys):
    command(lambda arguments: None)
    assert main(["--json", "fake"]) == 0
    assert capsys.readouterr().out == "{}\n"


@pytest.mark.parametrize("words", [["fake"], ["--json", "fake"], ["fake", "--debug"], ["--debug", "fake", "--json"]])
def test_common_flags_are_accepted_anywhere(command, words, capsys):
    seen = []
    command(lambda arguments: seen.append((arguments.json, arguments.debug)))
    assert main(words) == 0
    assert seen == [("--json" in words, "--debug" in words)]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (HornbookError("try again"), 1),
        (StorageError("disk full"), 1),
        (PathError("no such folder"), 2),
        (CheckpointError("damaged"), 2),
        (DivergedError("not finite"), 3),
    ],
)
def test_errors_of_ours_are_one_line_and_their_code(command, error, code, capsys):
    command(fail_with(error))
    assert main(["fake"]) == code
    assert capsys.readouterr() == ("", f"hornbook: error: {error}\n")
    assert main(["fake", "--json"]) == code
    assert json.loads(capsys.readouterr().out) == {"error": str(error), "exit_code": code}


def test_a_stop_with_the_state_saved_is_no_error(command, capsys):
    command(fail_with(StoppedBySignal("stopped by SIGINT; saved")))
    assert main(["fake"]) == 75
    assert capsys.readouterr() == ("", "hornbook: stopped by SIGINT; saved\n")
    assert main(["fake", "--json"]) == 75
    assert json.loads(capsys.readouterr().out) == {"stopped": "stopped by SIGINT; saved", "exit_code": 75}


def test_a_logged_warning_is_one_line_too(capsys, monkeypatch):
    monkeypatch.setattr(logging.lastResort, "formatter", None)
    main(["--version"])
    logging.lastResort.handle(logging.makeLogRecord({"msg": "damaged: %s", "args": ("a\nforged\x1b[2J",)}))
    assert capsys.readouterr().err == "damaged: a\\nforged\\x1b[2J\n"


def test_an_error_line_shows_escape_sequences_and_obeys_none(command, capsys):
    command(fail_with(PathError("no such file: \x1b[2J\x9b31m\u202ename\x07")))
    assert main(["fake"]) == 2
    assert capsys.readouterr().err == "hornbook: error: no such file: \\x1b[2J\\x9b31m\\u202ename\\x07\n"


def test_a_long_error_line_keeps_its_start_and_its_end(command, capsys):
    command(fail_with(CheckpointError("tensors " + "name, " * 2000 + "are missing: export it again")))
    assert main(["fake"]) == 2
    line = capsys.readouterr().err
    assert line.startswith("hornbook: error: tensors name, ") and line.endswith("missing: export it again\n")
    assert len(line) < 1100


def test_a_recipe_error_is_a_line_for_each_problem(command, capsys):
    command(fail_with(RecipeError(["first", "sec\nond"])))
    assert main(["fake", "--json"]) == 2
    out, err = capsys.readouterr()
    assert err == "hornbook: error: first\nhornbook: error: sec ond\n"
    assert json.loads(out) == {"error": "first; sec ond", "exit_code": 2}


def test_unexpected_errors_are_one_line_too(command, capsys):
    command(fail_with(KeyError("lost")))
    assert main(["fake"]) == 1
    assert capsys.readouterr().err == "hornbook: error: KeyError: 'lost'; run again with --debug for the traceback\n"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryError("Unable to allocate 1.00 EiB"),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("can't start new thread"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    ],
)
def test_memory_that_is_used_up_is_named(command, error, capsys):
    command(fail_with(error))
    assert main(["fake"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("hornbook: error: out of memory") and line.endswith("a smaller model, batch or file")
    assert str(error) in line


@pytest.mark.parametrize("error", [KeyError("lost"), CheckpointError("damaged")])
def test_debug_shows_the_traceback(command, error, capsys):
    command(fail_with(error))
    assert main(["fake", "--debug"]) == (2 if isinstance(error, CheckpointError) else 1)
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert err.splitlines()[-1].startswith("hornbook: error: ")


def test_ctrl_c(command, capsys):
    command(fail_with(KeyboardInterrupt()))
    assert main(["fake", "--json"]) == 130
    out, err = capsys.readouterr()
    assert err == "hornbook: error: interrupted\n"
    assert json.loads(out) == {"error": "interrupted", "exit_code": 130}


def test_other_signals_stop_any_command(command, capsys):
    def run(arguments):
        os.kill(os.getpid(), signal.SIGTERM)

    command(run)
    line = "stopped by SIGTERM; run the same command again"
    assert main(["fake", "--json"]) == 75
    out, err = capsys.readouterr()
    assert err == f"hornbook: {line}\n"
    assert json.loads(out) == {"stopped": line, "exit_code": 75}


def test_ctrl_c_after_the_last_line_prints_nothing():
    script = """
import atexit, os, signal, sys
atexit.register(os.kill, os.getpid(), signal.SIGINT)
from hornbook.__main__ import main
sys.argv = ["hornbook", "--version"]
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "hornbook 0.1.0\n", "")


def test_ctrl_c_while_the_command_line_is_imported(monkeypatch, capsys):
    class Interrupted(types.ModuleType):
        def __getattr__(self, name):
            raise KeyboardInterrupt if name == "main" else AttributeError(name)

    monkeypatch.setitem(sys.modules, "hornbook.cli.main", Interrupted("hornbook.cli.main"))
    with pytest.raises(SystemExit, match="130"):
        runpy.run_path(str(sys.modules["hornbook.__main__"].__file__))
    assert capsys.readouterr().err == "hornbook: error: interrupted\n"


def test_other_signals_while_the_command_line_is_imported(monkeypatch, capsys):
    class Stopped(types.ModuleType):
        def __getattr__(self, name):
            os.kill(os.getpid(), signal.SIGTERM) if name == "main" else None
            raise AttributeError(name)

    monkeypatch.setitem(sys.modules, "hornbook.cli.main", Stopped("hornbook.cli.main"))
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(SystemExit, match="75"):
            runpy.run_path(str(sys.modules["hornbook.__main__"].__file__))
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err == "hornbook: stopped by SIGTERM; run the same command again\n"


def test_a_reader_that_went_away_is_no_news():
    script = "import sys, time; from hornbook.__main__ import main; sys.stdin.readline(); sys.exit(main(['recipes']))"
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    child.stdout.close()
    _, err = child.communicate(b"\n", timeout=600)
    assert (child.returncode, err) == (141, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")  # noqa: PTH110
@pytest.mark.parametrize("words", [["recipes"], ["recipes", "--json"]])
def test_a_full_disk_under_standard_output(words):
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        done = subprocess.run(
            [sys.executable, "-m", "hornbook", *words], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(b"hornbook: error: ")
    assert b"No space left" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_stream_that_is_no_file(command, monkeypatch):
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    command(lambda arguments: {})
    monkeypatch.setattr(sys, "stdout", Gone())
    assert main(["fake", "--json"]) == 141


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: COMMAND (see `hornbook --help`)"),
        (["--json"], "the following arguments are required: COMMAND (see `hornbook --help`)"),
        (["trian"], '"trian" is not one of train, '),
        (["trian"], 'did you mean "train"?'),
        (["recipes", "more"], '"more" is not one of list, show, copy (see `hornbook recipes --help`)'),
        (["recipes", "--jsno"], 'unknown option "--jsno"; did you mean "--json"? (see `hornbook recipes --help`)'),
        (["--versoin"], "required: COMMAND"),
    ],
)
def test_mistakes_before_any_command_runs(words, message, capsys):
    assert main(words) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_subcommands_get_flags_and_suggestions_too(command, capsys):
    def add_arguments(parser):
        subcommands = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
        build = subcommands.add_parser("build")
        build.add_argument("--vocab-size", type=int)
        build.set_defaults(handler=lambda arguments: {"size": arguments.vocab_size, "json": arguments.json})

    command(lambda arguments: arguments.handler(arguments), add_arguments)
    assert main(["fake", "build", "--vocab-size", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"size": 5, "json": True}
    assert main(["fake", "biuld"]) == 2
    assert 'did you mean "build"?' in capsys.readouterr().err
    assert main(["fake", "build", "--vocab", "5"]) == 2
    assert 'unknown option "--vocab"; did you mean "--vocab-size"? (see `hornbook fake build' in capsys.readouterr().err
    assert main(["fake", "build", "--vocab-size", "x"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_version_and_help(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "hornbook 0.1.0\n"
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name:<12}{line}\n" in out for name, line in COMMANDS.items())


@pytest.mark.parametrize("words", mostly_slow([["--help"], *([name, "--help"] for name in COMMANDS)], 8), ids=" ".join)
def test_help_is_fast_and_imports_nothing_large(words):
    script = f"""
import sys
from hornbook.__main__ import main
code = main({words!r})
heavy = sorted({{"torch", "numpy", "tokenizers", "transformers", "rich", "safetensors"}} & set(sys.modules))
sys.exit(code or (f"imported {{heavy}}" if heavy else 0))
"""
    before = os.times()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=False)
    after = os.times()
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: hornbook")
    assert seconds < GENEROUS * (0.3 if words == ["--help"] else 0.5)


def test_python_m_and_the_console_script():
    module = subprocess.run([sys.executable, "-m", "hornbook", "--version"], capture_output=True, text=True, check=True)
    script = Path(sys.executable).with_name("hornbook")
    console = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert module.stdout == console.stdout == "hornbook 0.1.0\n"


@pytest.mark.parametrize(
    ("given", "expected"), [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)]
)
def test_threads_that_wait_do_not_spin_for_long_unless_asked(given, expected, monkeypatch):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    main(["--version"])
    assert os.environ.get("GOMP_SPINCOUNT") == expected


def test_an_error_breaks_between_words_on_a_terminal(tmp_path):
    words = [sys.executable, "-m", "hornbook", "train", "demo", "--training.stps", "3"]
    lines = on_terminal(words, columns=80, status=2).splitlines()
    first = "hornbook: error: training.stps (command line): unknown key; did you mean"
    assert lines[:2] == [first, '"training.steps"?']
    assert all(len(line) <= 80 for line in lines)
