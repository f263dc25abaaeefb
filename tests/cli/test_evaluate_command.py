"""``hornbook evaluate`` from words to a table, a JSON object, or one line that says what is wrong."""

import json
from pathlib import Path

import pytest
import torch
from tiny_text import build_tiny

from hornbook.__main__ import main
from hornbook.evaluate import wikitext_perplexity as wikitext
from hornbook.evaluate.tasks import find_task, task_names
from hornbook.parallel.device import compute_dtype, dtype_name
from hornbook.storage import faults

WIKI = " = A title = \n \n the cat sat on the mat , the cat sat on the mat ; the cat sat on the mat . \n"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of one step, a corpus, and data of tasks."""
    folder = tmp_path_factory.mktemp("home")
    build_tiny(folder / "corpus")
    sizes = "--model.num-layers 1 --model.hidden-size 32 --model.max-positions 48 --data.sequence-length 48"
    steps = "--training.steps 1 --schedule.warmup-steps 0 --tracking.sample-every-steps none --threads 1"
    assert main(f"train demo --data.train {folder}/corpus --output {folder}/run {sizes} {steps}".split()) == 0
    (folder / "wiki.tokens").write_text(WIKI)
    (folder / "lambada.jsonl").write_text('{"text": "the cat sat on the mat"}\n{"text": "the mat, the cat"}\n')
    return folder


@pytest.fixture(autouse=True)
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)


def evaluate(*words: str) -> int:
    return main(["evaluate", "run", *words, "--threads", "1"])


def test_one_table_of_all_conventions(capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate("--tasks", "wikitext103", "--data", "wiki.tokens") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("wikitext103 of run/checkpoints/step-")
    metrics = [line.split()[0] for line in lines[1:] if "= comparable" not in line]
    assert len(metrics) == len(set(metrics)) == 15
    assert len(metrics) == len(lines) - 1, "no published figure was measured on this file"


def test_published_figures_are_below_their_rows(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(wikitext.PUBLISHED_WORDS, "wikitext2", wikitext.count_words(WIKI))
    assert evaluate("--tasks", "wikitext2", "--data", "wiki.tokens") == 0
    lines = capsys.readouterr().out.splitlines()
    marked = {lines[at - 1].split()[0]: line for at, line in enumerate(lines) if "= comparable with" in line}
    assert marked.keys() == {"harness_word_perplexity", "harness_byte_perplexity", "harness_bits_per_byte"}
    assert marked["harness_word_perplexity"].endswith("word_perplexity of lm-evaluation-harness's wikitext")


@pytest.mark.parametrize("compute", ["fp32", "bf16", "fp16"])
def test_rows_and_table_name_the_precision(home: Path, capsys: pytest.CaptureFixture[str], compute: str) -> None:
    (home / "run" / "evaluation.json").unlink(missing_ok=True)
    assert evaluate("--compute", compute, "--json") == 0
    out, table = capsys.readouterr()
    rows = json.loads(out)["tasks"][0]["rows"]
    named = {row["metric"]: row["compute"] for row in rows}
    own = dict.fromkeys(("bits_per_byte", "nats_per_token", "token_perplexity"), compute)
    assert named == own | {"gzip -9": "none", "xz -9": "none"}
    assert " ".join(table.split()).count(f"; computed in {compute}") == 3
    assert main(["runs", "report", "run"]) == 0
    assert (home / "run" / "report.html").read_text().count(f"; computed in {compute}") == 3


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_numbers_that_cannot_be_kept_are_printed(
    home: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    with faults.inject("write", 1, "enospc"):
        assert evaluate(*flags) == 0
    out, err = capsys.readouterr()
    assert "bits_per_byte" in out
    (line,) = [line for line in err.splitlines() if "warning" in line]
    assert "the numbers are not saved for the run's report: " in line
    assert "evaluation.json" in line


def test_several_tasks_with_their_data(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--tasks", "lambada,wikitext2", "--data", "lambada=lambada.jsonl", "wikitext2=wiki.tokens")
    assert evaluate(*words, "--overlap", "3", "--window", "8", "--micro-batch-size", "2", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert [task["name"] for task in result["tasks"]] == ["lambada", "wikitext2"]
    rows = {row["metric"]: row["convention"] for row in result["tasks"][1]["rows"]}
    assert "windows of 8 tokens, overlap 3 (stride 5)" in rows["word_perplexity"]
    kept = json.loads((home / "run" / "evaluation.json").read_text())["tasks"]
    assert all(task in kept for task in result["tasks"])
    assert [task["data"]["name"] for task in result["tasks"]] == ["lambada.jsonl", "wiki.tokens"]
    compute = dtype_name(compute_dtype("auto", torch.device("cpu")))
    options = {"window": 8, "overlap": 3, "max_sequences": None, "compute": compute}
    assert result["tasks"][0]["options"] == options


def test_no_other_text_becomes_the_number_of_the_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """WikiText's bits per byte and those of the training text once stood in the list as the run's own."""

    def listed() -> dict[str, object]:
        assert main(["runs", "list", ".", "--json"]) == 0
        (run,) = json.loads(capsys.readouterr().out.splitlines()[-1])["runs"]
        return run

    (home / "run" / "evaluation.json").unlink(missing_ok=True)
    validation = listed()["bits_per_byte"]
    assert evaluate("--json") == 0
    own = json.loads(capsys.readouterr().out)["tasks"][0]
    assert (own["data"]["name"], own["data"]["split"]) == (f"{home}/corpus", "validation")
    assert (listed()["bits_per_byte"], listed()["bits_per_byte_by"]) == (own["rows"][0]["value"], "evaluation")
    (home / "run" / "evaluation.json").unlink()
    assert evaluate("--tasks", "wikitext2", "--data", "wiki.tokens") == 0
    assert evaluate("--data", "corpus/train") == 0
    assert evaluate("--window", "16") == 0
    assert (listed()["bits_per_byte"], listed()["bits_per_byte_by"]) == (validation, "validation")
    assert main(["runs", "report", "run"]) == 0
    page = (home / "run" / "report.html").read_text()
    assert "Compared with compressors" not in page
    for text in (
        "on wiki.tokens; after step 1",
        "on corpus/train, train split; after step 1",
        "window 16; after step 1",
    ):
        assert text in page, text
    assert evaluate("--data", "corpus") == 0, "the same text by another name"
    assert listed()["bits_per_byte"] == own["rows"][0]["value"]
    assert len(json.loads((home / "run" / "evaluation.json").read_text())["tasks"]) == 4
    assert evaluate() == 0
    assert len(json.loads((home / "run" / "evaluation.json").read_text())["tasks"]) == 4


def test_a_checkpoint_of_a_run_counts_for_the_run(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "run" / "evaluation.json").unlink(missing_ok=True)
    assert main(["evaluate", "run/checkpoints/step-00000001", "--threads", "1"]) == 0
    assert " of run/checkpoints/step-00000001, on " in capsys.readouterr().out.splitlines()[0]
    assert (home / "run" / "evaluation.json").exists()


def test_the_default_is_the_runs_own_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate("--overlap", "0", "--json") == 0
    rows = {row["metric"]: row for row in json.loads(capsys.readouterr().out)["tasks"][0]["rows"]}
    assert "overlap by 0" in rows["bits_per_byte"]["convention"]


def test_the_help_lists_all_tasks_of_hornbook(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--help"]) == 0
    listed = " ".join(capsys.readouterr().out.split())
    checks = {name: find_task(name).check for name in task_names()}
    own = [name for name, check in checks.items() if check and check.__module__.startswith("hornbook.")]
    assert len(own) >= 8 and all(name in listed for name in own)


def test_nothing_at_a_path(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "runs").mkdir()
    assert main(["evaluate", "runs/typo"]) == 2
    assert capsys.readouterr().err.startswith("hornbook: error: no run or checkpoint at runs/typo: no such folder;")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", "lambda"], "there is no task 'lambda', the tasks are * did you mean \"lambada\"?"),
        (["--tasks", "lambada"], "the task needs LAMBADA's passages, such as lambada_test.jsonl: pass --data FILE"),
        (["--tasks", "wikitext103"], "the task needs WikiText's test file"),
        (["--tasks", "lambada", "--data", "none.jsonl"], "none.jsonl: no such file or folder"),
        (["--tasks", "lambada", "--data", "lambda=x"], "--data names 'lambda', which is not among the tasks"),
        (["--tasks", "lambada", "--data", "bad.jsonl"], "bad.jsonl, line 2: "),
        (["--tasks", "wikitext2", "--data", "empty"], "empty: the file has no text"),
        (["--tasks", "wikitext2", "--data", "latin"], "latin: not UTF-8 at byte 3 (0xe9)"),
        (["--window", "49"], "a window of 49 tokens is longer than the model's 48 positions"),
        (["--tasks", "wikitext2", "--data", "wiki.tokens", "--overlap", "48"], "cannot overlap by 48"),
        (["--overlap", "-1"], "must be at least 0"),
        (["--tasks", "lambada", "--overlap", "3"], "--overlap does not apply to lambada"),
    ],
)
def test_mistakes_are_one_line(home: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "bad.jsonl").write_text('{"text": "the cat sat"}\n{"txt": "the cat sat"}\n')
    (home / "empty").write_text("\n")
    (home / "latin").write_bytes(b"caf\xe9 au lait")
    before = (home / "run" / "evaluation.json").read_bytes() if (home / "run" / "evaluation.json").exists() else None
    assert evaluate(*words) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.count("\n") == 1
    assert error.startswith("hornbook: error: ")
    assert all(part in error for part in message.split("*"))
    after = (home / "run" / "evaluation.json").read_bytes() if (home / "run" / "evaluation.json").exists() else None
    assert before == after
