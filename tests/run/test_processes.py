"""``--processes N`` is ``torchrun --nproc-per-node N``, bit for bit, with hornbook's exit codes."""

import json

import pytest
from ranks import TORCHRUN, python
from tiny_runs import RECIPE, digest, metrics_without_time

from hornbook.cli.main import main
from hornbook.run.processes import without

TRAIN = ("train", "tiny.toml", "--device", "cpu", "--threads", "1", "--training.micro-batch-size", "1")


def words(folder, name):
    folder.mkdir(exist_ok=True)
    (folder / "tiny.toml").write_text(RECIPE)
    return [str(folder / word) if word == "tiny.toml" else word for word in TRAIN] + ["--output", str(folder / name)]


@pytest.mark.slow
def test_processes_train_what_torchrun_trains(tmp_path):
    ours = python("-m", "hornbook", *words(tmp_path / "ours", "run"), "--processes", "2", "--json")
    theirs = python(*TORCHRUN, "2", "-m", "hornbook", *words(tmp_path / "theirs", "run"))
    assert (ours.returncode, theirs.returncode) == (0, 0), ours.stderr + theirs.stderr
    for step in (6, 8):
        assert digest(tmp_path / "ours", step) == digest(tmp_path / "theirs", step)
    assert metrics_without_time(tmp_path / "ours") == metrics_without_time(tmp_path / "theirs")
    assert json.loads(ours.stdout)["step"] == 8, "one rank's result alone"
    assert ours.stderr.count("step 1/8") == 1 and "2 ranks" in ours.stderr


@pytest.mark.slow
def test_the_ranks_of_a_script_have_its_parts(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text("import recording_tracker\nfrom hornbook import extend\n\nraise SystemExit(extend.main())\n")
    done = python(script, *words(tmp_path, "run"), "--tracking.trackers=recording", "--processes", "2")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "trackers.json").is_file()


@pytest.mark.slow
def test_a_user_error_of_all_ranks_is_one_line_with_its_exit_code(tmp_path):
    missing = ("--data.synthetic=false", f"--data.train={tmp_path / 'nothing'}")
    ours = python("-m", "hornbook", *words(tmp_path, "run"), *missing, "--processes", "2", "--json")
    assert ours.returncode == 2
    (line,) = [line for line in ours.stderr.splitlines() if "error" in line]
    said = json.loads(ours.stdout)
    assert said["exit_code"] == 2 and said["error"] in line and "nothing" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_typing_mistake_under_torchrun_is_one_line(tmp_path):
    theirs = python(*TORCHRUN, "2", "-m", "hornbook", *words(tmp_path, "run"), "--optimizer.learning-rate=-1")
    assert theirs.returncode == 1
    assert theirs.stderr.count("hornbook: error: ") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--processes", "3"], "global_batch_size 4 does not divide into micro-batches of 1 on 3 ranks"),
        (["--processes", "3", "--parallel.tensor-parallel", "2"], "[parallel] needs a multiple of 2 ranks"),
        (["--processes", "0"], "--processes"),
        (["--max-restarts", "1"], "--max-restarts applies only with --processes"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_starts(tmp_path, capfd, options, said):
    assert main([*words(tmp_path, "run"), *options]) == 2
    message = capfd.readouterr().err
    assert said in message and len(message.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_processes_under_torchrun_are_refused(tmp_path, capfd, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert main([*words(tmp_path, "run"), "--processes", "2"]) == 2
    assert "--processes starts the ranks itself" in capfd.readouterr().err


def test_options_of_the_launcher_are_not_passed_on():
    given = ["train", "--processes", "4", "demo", "--max-restarts=2", "--name", "x"]
    assert without(given, "--processes", "--max-restarts") == ["train", "demo", "--name", "x"]
