"""The entry point: import and run the selected command, print its result or its error, and return the exit code.

    hornbook corpus build texts --json
        -> hornbook.cli.corpus_command.run(arguments) -> {"documents": 12, ...}
           printed text     -> standard error
           the result       -> {"documents": 12, ...}    the last line of standard output
           exit code        -> 0

A result may have an ``exit_code``. Errors are one line each on standard error, and with ``--json`` also
``{"error": ..., "exit_code": ...}``. A command that was stopped by a signal did not fail: its object has the key
``stopped`` instead of ``error``. Exit codes are those of ``hornbook.errors``, 130 after Ctrl-C, and 141 if the reader
of standard output has exited, as in a shell. Only the selected command is imported, so that ``--help`` does not import
torch.
"""

import argparse
import contextlib
import errno
import importlib
import io
import itertools
import json
import logging
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Literal

from hornbook.cli.arguments import CommandParser
from hornbook.cli.table import say
from hornbook.errors import HornbookError, PathError, RankError, RecipeError, StoppedBySignal, StorageError
from hornbook.parallel import launched
from hornbook.version import __version__
from hornbook.wording import one_line, spelling

Handler = Callable[[argparse.Namespace], dict[str, object] | None]
COMMANDS = {
    "train": "train a model from a recipe, or resume an interrupted run",
    "plan": "predict memory, time and cost of a training; search layouts",
    "doctor": "check this machine, and whether a recipe would train on it",
    "recipes": "list, show and copy the bundled recipes",
    "corpus": "build, convert, inspect and verify token stores",
    "tokenizer": "train a tokenizer, encode and decode text",
    "evaluate": "evaluate a trained model on held-out text",
    "generate": "generate text with a trained model",
    "predict": "predict classes or answers with a fine-tuned model",
    "embed": "write a vector for each text of a file",
    "checkpoint": "list and verify checkpoints; import and export models",
    "verify": "verify that a recipe resumes and scales with the same numbers",
    "runs": "list, compare and report runs, or show them on a live board",
    "sweep": "train a recipe with several values of its options; compare",
    "profile": "profile training steps as a page, or compare two profiles",
    "bench": "time steps, sparse products, generation, corpora; run benchmarks",
    "demo": "run the whole pipeline on Python's source files",
    "completion": "print a script that completes commands in bash, zsh or fish",
}
"""Help text of each command, which is implemented in ``hornbook.cli.<command>_command``."""

INTERRUPTED = 130
READER_GONE = 141
_LONGEST_LINE = 1000
_PATH_LOOKUP_ERRNOS = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
"""Errors of `Path.exists` and similar functions: no permission for a parent folder, or a name that is too long.

They count as path errors only with a file name, which errors of sockets, for example, do not have.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    Args:
        argv: the words after ``hornbook``; by default those of the process, which then ends silently on Ctrl-C while
            it exits: Python and PyTorch would print tracebacks of what they release.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):  # before other files get their descriptors
        if getattr(sys, name) is None:
            with contextlib.suppress(OSError):
                while os.open(os.devnull, os.O_RDWR) < number:
                    pass
            setattr(sys, name, open(os.devnull, "r+" if name == "stdin" else "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # escape characters that the encoding lacks
            stream.reconfigure(errors="backslashreplace")
    # OpenMP's threads spin for milliseconds when they wait for each other. If another process runs on the same cores, a
    # spinning thread takes time from the one it waits for. The runtime reads this variable when torch is imported.
    if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:
        os.environ["GOMP_SPINCOUNT"] = "1000"
    if logging.lastResort is not None:  # the handler of a program that configures no logging
        logging.lastResort.setFormatter(_OneLine())
    words = sys.argv[1:] if argv is None else list(argv)
    flags = set(itertools.takewhile(lambda word: word != "--", words))
    try:
        return _answer(words, as_json="--json" in flags, debug="--debug" in flags)
    except BrokenPipeError:
        _silence_stdout()
        return READER_GONE
    except KeyboardInterrupt:  # a second one, during the handling of the first
        return INTERRUPTED
    finally:
        if argv is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


class _OneLine(logging.Formatter):
    """Escape line ends and what moves the cursor in messages, which have names of files in them."""

    def format(self, record: logging.LogRecord) -> str:
        return one_line(super().format(record))


def _answer(words: Sequence[str], *, as_json: bool, debug: bool) -> int:
    """Run the command, print its result or its error, and return the exit code."""
    try:
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext(), launched.leave_cleanly():
            result = execute(words)
        _write_out(f"{json.dumps(_plain(result), default=_convert)}\n" if as_json and launched.rank() == 0 else "")
        return int(str(result.get("exit_code", 0)))
    except BrokenPipeError:
        raise
    except SystemExit as stop:  # raised by argparse after --help and --version
        return int(stop.code or 0)
    except KeyboardInterrupt:
        return _fail(["interrupted"], INTERRUPTED, as_json, is_reported=launched.rank() > 0)
    except RankError as error:
        if debug:
            traceback.print_exc()
        return _fail([str(error)], error.exit_code, as_json, is_reported=error.is_reported)
    except StoppedBySignal as stop:
        return _end([str(stop)], stop.exit_code, as_json, key="stopped", is_reported=launched.rank() > 0)
    except HornbookError as error:
        if debug:
            traceback.print_exc()
        return _fail(error.problems if isinstance(error, RecipeError) else [str(error)], error.exit_code, as_json)
    except Exception as error:  # the only such handler: every other error becomes one line
        if debug:
            traceback.print_exc()
        if isinstance(error, OSError) and error.errno in _PATH_LOOKUP_ERRNOS and error.filename is not None:
            line = f"cannot read {error.filename}: {error.strerror}; check the path and its permissions"
            return _fail([line], PathError.exit_code, as_json)
        if _is_out_of_memory(error):
            asked = f" ({error})" if str(error) else ""
            line = f"out of memory{asked}; close other programs, raise the limit, or use a smaller model, batch or file"
            return _fail([line], HornbookError.exit_code, as_json)
        hint = "" if debug else "; run again with --debug for the traceback"
        return _fail([f"{type(error).__name__}: {error}{hint}"], HornbookError.exit_code, as_json)


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether Python, the system, or PyTorch on a CPU or GPU could not allocate memory, such as a stack."""
    if isinstance(error, RuntimeError):
        return any(said in str(error) for said in ("can't allocate memory", "out of memory", "can't start new thread"))
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)


def execute(words: Sequence[str]) -> dict[str, object]:
    """Import the command that the words name, run it and return its result; errors and exits propagate."""
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    parser, parsers = build_parsers()
    chosen = next((word for word in words if not word.startswith("-")), None)
    if chosen is None or chosen not in COMMANDS:
        parser.parse_args(words)  # exits for --help and --version, or raises an error for an unknown command
        raise AssertionError("argparse took a command line without a command")
    module = importlib.import_module(f"hornbook.cli.{chosen}_command")
    module.add_arguments(parsers[chosen])
    arguments = parser.parse_args(words, argparse.Namespace(words=words))
    run: Handler = getattr(arguments, "handler", None) or module.run
    with spelling(arguments.actions):
        return run(arguments) or {}


def build_parsers() -> tuple[CommandParser, dict[str, CommandParser]]:
    """Return the parser of the whole command line, and each command's parser, still without arguments."""
    parser = CommandParser(
        prog="hornbook",
        usage="hornbook [options] COMMAND ...",
        description="From raw text to a pre-trained, evaluated language model.",
        epilog="`hornbook COMMAND --help` shows the options of a command; `hornbook demo` runs the whole pipeline.",
    )
    parser.add_argument(
        "--version", action="version", version=f"hornbook {__version__}", help="show the version and exit"
    )
    parser.set_defaults(json=False, debug=False)
    commands = parser.add_subparsers(
        prog="hornbook",
        title="commands",
        description="\n".join(f"{name:<12}{line}" for name, line in COMMANDS.items()),
        dest="command",
        metavar="COMMAND",
        required=True,
        help=argparse.SUPPRESS,
    )
    return parser, {name: commands.add_parser(name, description=line) for name, line in COMMANDS.items()}


def _fail(lines: list[str], exit_code: int, as_json: bool, *, is_reported: bool = False) -> int:
    """Print the error lines, unless another process does, and return the exit code."""
    return _end(lines, exit_code, as_json, key="error", is_reported=is_reported)


def _end(
    lines: list[str], exit_code: int, as_json: bool, *, key: Literal["error", "stopped"], is_reported: bool = False
) -> int:
    """Print the lines with which the command ends, unless another process does, and return the exit code."""
    lead = "hornbook: error: " if key == "error" else "hornbook: "
    lines = [_shortened(one_line(" ".join(line.split()))) for line in lines]
    with contextlib.suppress(OSError, ValueError):  # standard error may be closed or full; the exit code remains
        say(*(f"{lead}{line}" for line in lines if not is_reported), error=True)
    with contextlib.suppress(StorageError):  # standard output may be closed or full; the exit code remains
        is_heard = as_json and launched.rank() == 0
        _write_out(f"{json.dumps({key: '; '.join(lines), 'exit_code': exit_code})}\n" if is_heard else "")
    return exit_code


def _shortened(line: str) -> str:
    """Shorten a long line in the middle, since the problem is at its start and the remedy at its end."""
    half = _LONGEST_LINE // 2
    return line if len(line) <= _LONGEST_LINE else f"{line[:half]} ... {line[-half:]}"


def _plain(value: object) -> object:
    """Replace numbers that are not finite, which JSON lacks, by None."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _convert(value: object) -> object:
    """Convert scalars of NumPy and torch to Python's, and anything else (paths) to text."""
    return _plain(value.item()) if hasattr(value, "item") else str(value)


def _write_out(text: str = "") -> None:
    """Write to standard output and flush it, so that a full disk is detected here rather than when Python exits."""
    try:
        if text:  # writing "" to /dev/full fails as well
            print(text, end="")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _silence_stdout()
        raise StorageError(f"standard output cannot be written: {error.strerror}") from None


def _silence_stdout() -> None:
    """Redirect standard output to the null device, so that the interpreter's flush at exit does not fail."""
    with contextlib.suppress(OSError, ValueError):  # the stream may not be a file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
