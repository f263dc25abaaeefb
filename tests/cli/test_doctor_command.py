"""``hornbook doctor`` as a user runs it: on a terminal of 80 columns, in a pipe, and for a program."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from tiny_runs import RECIPE, run_tiny

from hornbook.__main__ import main
from hornbook.cli import doctor_command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tiny.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def answer_of(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict]:
    code = main(["doctor", *words, "--threads", "1", "--json"])
    (line,) = capsys.readouterr().out.splitlines()
    return code, json.loads(line)


def test_the_machine_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--threads", "1"]) == 0
    shown = capsys.readouterr().out
    names = [line.split()[0] for line in shown.splitlines() if line and not line.startswith(" ")]
    for name in ("hornbook", "python", "torch", "processor", "products", "memory", "disk", "GPUs", "variables"):
        assert name in names
    assert re.search(
        r"in an hour +\d+ layers of \d+ columns, \S+M parameters, on \S+M tokens: hornbook train auto --time 1h", shown
    )
    assert "`hornbook doctor RECIPE` checks whether a recipe would train here" in shown.splitlines()[-1]
    assert [path.name for path in folder.iterdir()] == ["tiny.toml"]


def test_one_object_with_all_facts_and_findings(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = answer_of(capsys, "tiny.toml")
    assert code == found["exit_code"] == 0
    assert found["products"]["threads"] == 1 and found["output"] == "runs/tiny" and found["processes"] == 1
    assert not [finding for finding in found["findings"] if finding["level"] == "error"]
    assert [path.name for path in folder.iterdir()] == ["tiny.toml"]


def test_training_would_not_start(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = answer_of(capsys, "tiny.toml", "--processes", "3", "--device", "mps")
    errors = [finding["about"] for finding in found["findings"] if finding["level"] == "error"]
    assert code == found["exit_code"] == 2
    assert errors == ["device", "ranks"]


def test_every_mistake_of_a_recipe_is_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "bad.toml").write_text(RECIPE.replace("steps = 8", "stesp = 8").replace("num_heads = 2", "num_heads = 3"))
    code, found = answer_of(capsys, "bad.toml", "--device", "cpu")
    errors = [finding["message"] for finding in found["findings"] if finding["level"] == "error"]
    assert code == 2
    assert any("stesp" in message for message in errors) and any("num_heads" in message for message in errors)
    assert found["processor"]["threads"] == 1, "the machine is described all the same"
    code, found = answer_of(capsys, "tiny.toml", "--init-optimizer", "keep")
    assert code == 2 and "--init-optimizer applies only with --init-from" in found["findings"][0]["message"]
    code, found = answer_of(capsys, "absent.toml")
    assert code == 2 and found["findings"][0]["about"] == "recipe"


def test_the_folder_of_a_run_is_accepted_as_its_recipe(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_tiny(folder / "mine")
    code, found = answer_of(capsys, "mine/run", "--training.steps", "9")
    assert code == 0 and found["output"] == "mine/run"
    code, found = answer_of(capsys, "mine/run", "--training.seed", "5")
    assert code == 2 and "training.seed was 1234 and is now 5" in found["findings"][0]["message"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--training.steps", "9"], "recipe options need a recipe: add RECIPE"),
        (["--init-from", "x"], "recipe options need a recipe: add RECIPE"),
        (["tiny.toml", "--processes", "0"], "must be at least 1"),
    ],
)
def test_words_that_do_not_go_together(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["doctor", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_pipe_gets_a_line_a_row(folder: Path) -> None:
    words = [sys.executable, "-m", "hornbook", "doctor", "tiny.toml", "--processes", "3", "--threads", "1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr == ""
    errors = [line for line in done.stdout.splitlines() if line.startswith("error ")]
    assert len(errors) == 1 and errors[0].endswith("take a multiple of 6, such as 6")
    assert "\x1b" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Training would not start: 1 error, ")


@pytest.mark.slow
def test_a_terminal_of_80_columns_gets_a_table_that_fits(folder: Path) -> None:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    words = [sys.executable, "-m", "hornbook", "doctor", "tiny.toml", "--processes", "3", "--threads", "1"]
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    with subprocess.Popen(words, stdout=follower, stderr=follower, env=environment) as process:
        os.close(follower)
        shown = b""
        while True:
            try:
                piece = os.read(leader, 65536)
            except OSError:  # EIO: the other end is closed
                break
            if not piece:
                break
            shown += piece
    os.close(leader)
    lines = shown.decode().splitlines()
    assert process.returncode == 2
    assert all(len(line) <= 80 for line in lines if str(folder) not in line), "a path is never broken"
    start = next(number for number, line in enumerate(lines) if line.startswith("error "))
    assert lines[start + 1].startswith(" " * lines[start].index("global_batch_size")), "wrapped below its text"


def test_gpus_are_listed_one_by_one_with_their_driver() -> None:
    card = {"name": "NVIDIA H100", "memory": 80 << 30, "free": 70 << 30, "capability": "9.0", "bf16": True}
    cuda = {"build": "13.0", "driver": "580.1", "nccl": "2.27.3"}
    assert [*doctor_command._gpus({"gpus": [card, {**card, "bf16": False}], "cuda": cuda})] == [
        ("GPU", "NVIDIA H100, 80.0 GiB, 70.0 GiB free, compute capability 9.0, bf16"),
        ("GPU", "NVIDIA H100, 80.0 GiB, 70.0 GiB free, compute capability 9.0, no bf16"),
        ("CUDA", "PyTorch is built for CUDA 13.0, driver 580.1, NCCL 2.27.3"),
    ]
    nothing = {"build": None, "driver": None, "nccl": None}
    assert [*doctor_command._gpus({"gpus": [], "cuda": nothing})] == [
        ("GPUs", "none; PyTorch is built without CUDA, no NVIDIA driver")
    ]


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (["avx2", "fma", "avx512f"], "AVX2, AVX-512; without AVX512-BF16, AMX"),
        (["avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16"], "AVX2, AVX-512, AVX512-BF16, AMX"),
        (["asimd", "bf16", "sve"], "asimd, bf16, sve"),
    ],
)
def test_instruction_sets_are_named_as_readers_know_them(found: list[str], shown: str) -> None:
    assert doctor_command._instructions(found) == shown
