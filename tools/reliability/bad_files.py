"""A command that meets a bad file among genuine ones, and how it ends: in one line, with the exit code of a refusal."""

import contextlib
import io
import shutil
from dataclasses import dataclass
from pathlib import Path

from fake_run import make_run
from tiny_checkpoints import saved
from tiny_huggingface import WEIGHTS, tiny_folder, to_pickle
from tiny_text import tiny_tokenizer, write_texts
from trials import Trial

import hornbook
from hornbook.cli.main import main

_COPIED = ("hf", "corpus", "checkpoints", "run")


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A command that meets the file, and the exit codes with which it may end.

    Attributes:
        file: where the bad file is put, in the trial's folder.
        command: ``{file}`` and other names stand for paths.
        codes: 2 is a refusal; 0 where the file is not needed, or has little effect.
        keeps: whether genuine safetensors stay beside the file.
    """

    file: str
    command: str
    codes: tuple[int, ...] = (2,)
    keeps: bool = False


def make_genuine(shared: Path) -> None:
    """Write a small model, its weights as a pickle, texts, a tokenizer, a corpus, a checkpoint and a run's folder."""
    tiny_folder(shared / "hf")
    shutil.copytree(shared / "hf", shared / "pickled")
    to_pickle(shared / "pickled")
    write_texts(shared / "texts")
    tiny_tokenizer().save(shared / "tokenizer")
    hornbook.build_corpus(shared / "texts", shared / "tokenizer", output=shared / "corpus")
    saved(shared / "checkpoints", 5)
    make_run(shared / "run")


def put(trial: Trial, reader: Reader, data: bytes) -> Path:
    """Copy what the command may need, write the bad file and return its path."""
    for name in _COPIED:
        if f"{name}/" in reader.file or f"{{{name}}}" in reader.command:
            shutil.copytree(trial.shared / name, trial.folder / name)
    if not reader.keeps and (trial.folder / "hf").exists():
        (trial.folder / "hf" / WEIGHTS).unlink()
    path = trial.folder / reader.file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def require_one_line(trial: Trial, reader: Reader, what: str) -> None:
    """Run the command; raise AssertionError unless it ends with one of its codes and, if it refuses, in one line."""
    places = {name: trial.shared / name for name in ("corpus", "texts", "tokenizer")}
    places |= {name: trial.folder / name for name in ("hf", "output")}
    words = [
        word.format(**places, file=trial.folder / reader.file, folder=trial.folder) for word in reader.command.split()
    ]
    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        code = main(words)
    said = errors.getvalue()
    assert code in reader.codes, f"{what} ended with {code}: {said[:300]}"
    num_lines = sum("hornbook: error:" in line for line in said.splitlines())
    assert (num_lines > 0) == (code == 2) and "Traceback" not in said, f"{what} said {said[:300]}"
    may_have_more = words[0] in ("plan", "train")  # a line for each mistake in a recipe
    assert num_lines < 2 or may_have_more, f"{what} said {said[:300]}"
