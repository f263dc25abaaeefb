import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hornbook.cli.main import main
from hornbook.measure.bench_spec import bundled_specs, cases_of, read_spec

TINY = """
repeats = 2
[options.step]
rounds = 1
threads = 1
"model.num_layers" = 2
"model.hidden_size" = 32
"model.num_heads" = 2
"model.vocab_size" = 128
"data.sequence_length" = 16
"training.global_batch_size" = 2
[benchmarks.tiny]
kind = "step"
recipe = "demo"
[benchmarks.tiny.variants.deep]
"model.num_layers" = 3
"""


def runs_in(folder: Path) -> dict[str, list[dict[str, object]]]:
    results = json.loads((folder / "results.json").read_text())
    return {name: case["runs"] for name, case in results["cases"].items()}


def test_a_benchmark_of_an_old_name_runs_shrunk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "run", "tf1_bert_base_pretrain_real_pod16", "--shrunk", "--repeats", "1", "--json"]
    assert main([*words, "--output", str(tmp_path / "out")]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [row["measure"] for row in result["spreads"]] == ["step_seconds", "tokens_per_second"]
    assert result["failed"] == [] and result["spreads"][0]["median"] > 0
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"results.json", "results.csv", "results.md"}
    before = (tmp_path / "out" / "results.json").read_bytes()
    assert main([*words, "--output", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "results.json").read_bytes() == before, "all of it is there: nothing runs again"
    capsys.readouterr()
    assert main([*words, "--set", "rounds=2", "--output", str(tmp_path / "out")]) == 2
    assert "with other options: choose another --output" in capsys.readouterr().err
    assert main(["bench", "compare", str(tmp_path / "out"), str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "tf1_bert_base_pretrain_real_pod16  step_seconds" in shown and "one run: no interval" in shown


@pytest.mark.slow
@pytest.mark.parametrize("name", bundled_specs())
def test_all_benchmarks_of_the_old_systems_run_shrunk(name: str, tmp_path: Path) -> None:
    assert main(["bench", "run", name, "--shrunk", "--repeats", "1", "--output", str(tmp_path)]) == 0
    assert set(runs_in(tmp_path)) == set(read_spec(bundled_specs()[name]).benchmarks)


@pytest.mark.parametrize("name", bundled_specs())
def test_all_benchmarks_fit_the_devices_of_their_names(name: str) -> None:
    """As they are, not shrunk: recipes, layouts and batches are what ``hornbook bench`` takes."""
    from hornbook.cli.bench_command import _check_words

    spec = read_spec(bundled_specs()[name])
    for case in cases_of(spec, spec.benchmarks, shrunk=False, options={}):
        _check_words(case.words)


@pytest.mark.slow
def test_a_killed_run_keeps_its_results_and_resumes_after_them(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(TINY)
    command = [sys.executable, "-m", "hornbook", "bench", "run", "mine.toml", "--output", "out"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout
        assert run.stdout.readline().startswith("1/2  tiny  step_seconds")
        run.send_signal(signal.SIGKILL)
    (first,) = runs_in(tmp_path / "out")["tiny"]
    assert first["values"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    found = runs_in(tmp_path / "out")
    assert found["tiny"][0] == first
    assert {name: [run["repeat"] for run in runs] for name, runs in found.items()} == {
        "tiny": [0, 1],
        "tiny/deep": [0, 1],
    }


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("rounds = 1", "round = 1", 'benchmark tiny: unknown option "--round"; did you mean "--rounds"?'),
        ('"model.num_layers" = 3', '"model.num_layer" = 3', "benchmark tiny/deep: model.num_layer (command line)"),
        ('recipe = "demo"', 'recipe = "dmeo"', 'did you mean "demo"?'),
        ('kind = "step"', 'kind = "steps"', 'did you mean "step"?'),
        ("threads = 1", "processes = 3", "benchmark tiny: "),
    ],
)
def test_a_bad_spec_is_one_line_before_anything_runs(
    old: str, new: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.toml").write_text(TINY.replace(old, new))
    assert main(["bench", "run", str(tmp_path / "mine.toml"), "--output", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line
    assert not (tmp_path / "out").exists()


def test_mistakes_of_compare_and_set_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "results of `hornbook bench run` is missing" in capsys.readouterr().err
    assert main(["bench", "run", "tf1-bert", "--set", "rounds"]) == 2
    assert "expected KEY=VALUE" in capsys.readouterr().err
    (tmp_path / "taken").write_text("")
    (tmp_path / "mine.toml").write_text(TINY)
    assert main(["bench", "run", str(tmp_path / "mine.toml"), "--output", str(tmp_path / "taken")]) == 2
    assert "cannot create the folder" in capsys.readouterr().err


def test_list_names_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "list"]) == 0
    assert "pytorch_gpt2_small_train_gen_pod16" in capsys.readouterr().out
