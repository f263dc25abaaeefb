import html.parser
import json
import re
import time
from pathlib import Path

import pytest
from browser import data_of
from fake_run import RECIPE, default_rows, make_run, train_row

from hornbook.errors import DataError, StorageError, UserError
from hornbook.storage import faults
from hornbook.track.charts import MAX_POINTS
from hornbook.track.figures import NUM_MEANS
from hornbook.track.metrics import MetricsLog
from hornbook.track.report import write_report

HOSTILE = "</pre></style><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\x1b[2J\x00\ud800\u202e"


class Page(html.parser.HTMLParser):
    """Elements, attributes and texts of a page; an element closed out of turn is a fault."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: set[str] = set()
        self.headings: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(source)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in ("style", "script"):
            return
        if self._open and self._open[-1] == "h2":
            self.headings.append(data)
        self.text += f"{data}\n"


def page_of(run: Path) -> Page:
    path = write_report(run)
    assert path == run / "report.html"
    return Page(path.read_text(encoding="utf-8"))


def test_a_whole_run_has_every_part(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run"))
    assert page.headings == [
        "Compared with compressors",
        "Curves",
        "Samples",
        "Evaluation",
        "Checkpoints",
        "Recipe",
        "Environment",
    ]
    for text in ("demo", "Finished", "2.5000", "at step 30", "1.790", "1.960", "1.640", "41.0k", "20 s", "2k", "def "):
        assert text in page.text, text
    for text in ("step-00000040", "2.0 KiB", "Test CPU, 2 threads", "every held-out byte scored", "f(x):"):
        assert text in page.text, text
    assert "[model]" in page.text
    assert "# recipe demo.toml:4" in page.text


def figures_in(run: Path) -> dict[str, list[str]]:
    """Titles of a report's charts, each with the labels of its lines."""
    (curves,) = data_of(write_report(run).read_text())["curves"]
    return {figure["title"]: [line["label"] for line in figure["lines"]] for figure in curves["figures"]}


def test_the_charts_hold_every_point(tmp_path: Path) -> None:
    rows = [row for row in default_rows() if int(str(row["step"])) <= 30]
    run = make_run(tmp_path / "run", rows=rows)
    assert figures_in(run) == {
        "Loss": ["training", "validation"],
        "Learning rate": [""],
        "Gradient norm": [""],
        "Speed": [""],
        "Bits per byte": [""],
    }
    series = data_of((run / "report.html").read_text())["curves"][0]["series"]
    assert [step for step, _ in series["train/loss"]["points"]] == list(range(1, 31))
    assert series["validation/loss"]["points"] == [[10, 2.7], [20, 2.6], [30, 2.5]]


def test_the_page_is_self_contained(tmp_path: Path) -> None:
    source = write_report(make_run(tmp_path / "run")).read_text()
    page = Page(source)
    assert page.names.count("script") == 2, "the page's data and its script"
    assert not {"link", "img", "iframe", "object", "base"} & set(page.names)
    assert not re.search(r"https?://(?!www.w3.org/2000/svg)|url\(|@import", source)
    assert "connect-src &#x27;none&#x27;" in source
    assert "prefers-color-scheme: dark" in source
    assert 'name="viewport"' in source


def test_hostile_strings_stay_strings(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run", recipe=f"name = {json.dumps(HOSTILE.replace(chr(0xD800), ''))}  # {'</pre><script>'}\n"
    )
    row = {"metric": HOSTILE, "value": HOSTILE, "convention": HOSTILE}
    compressor = {"metric": f"gzip {HOSTILE}", "value": 2.0}
    own = {"metric": "bits_per_byte", "value": 1.0}
    (run / "evaluation.json").write_text(json.dumps({"tasks": [{"name": HOSTILE, "rows": [row, own, compressor]}]}))
    session = dict.fromkeys(("from_step", "cpu", "command", "started", "platform", "torch", "threads"), HOSTILE)
    session |= {"gpus": [HOSTILE], "instruction_sets": [HOSTILE], "git": {"commit": HOSTILE, "dirty": HOSTILE}}
    (run / "environment.json").write_text(
        json.dumps({"sessions": [session, {**session, "gpus": HOSTILE, "git": HOSTILE}]})
    )
    with MetricsLog(run / "samples.jsonl") as log:
        log.append({"step": 50, "prompt": HOSTILE, "text": HOSTILE})
        log.append({"step": 60, "prompt": 5, "text": None})
    with MetricsLog(run / "metrics.jsonl") as log:
        log.append(train_row(41, skipped_steps=1, non_finite={HOSTILE: HOSTILE}))
        log.append({key: HOSTILE if key != "step" else 42 for key in train_row(42)})
    (run / "checkpoints" / "step-<b>").mkdir()
    (run / "checkpoints" / "step-<b>" / "manifest.json").write_text("{}")
    clean = page_of(make_run(tmp_path / "clean"))
    page = page_of(run)
    assert set(page.names) <= {*clean.names, "details", "summary"}  # further samples are folded
    assert page.attributes <= clean.attributes | {"aria-hidden"}
    assert not re.search("[\x00\x1b\u202e]", page.text)
    assert page.text.count("<script>alert(1)</script>") > 10


@pytest.mark.parametrize("num_rows", [0, 1, 2, 3])
def test_few_rows_are_enough(tmp_path: Path, num_rows: int) -> None:
    page = page_of(make_run(tmp_path / "run", rows=[train_row(step) for step in range(1, num_rows + 1)]))
    assert ("Curves" in page.headings) == (num_rows > 0)
    assert ("Last training loss" in page.text) == (num_rows > 0)
    assert f"Stopped · step {num_rows} of 40" in page.text


def test_a_run_that_only_began_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "environment.json").write_text("{}")
    page = page_of(tmp_path)
    assert page.headings == ["Recipe", "Environment"] or page.headings == ["Recipe"]
    assert "Stopped · step 0 of 40" in page.text


def test_resumes_show(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rows=default_rows())
    sessions = [{"from_step": 0, "cpu": "First CPU"}, {"from_step": 20, "cpu": "Second CPU"}]
    (run / "environment.json").write_text(json.dumps({"sessions": sessions}))
    source = write_report(run).read_text()
    page = Page(source)
    assert "resumed 1\N{MULTIPLICATION SIGN}" in page.text
    assert "From the start" in page.text
    assert "Resumed after step 20" in page.text
    assert "First CPU" in page.text
    assert data_of(source)["curves"][0]["marks"] == [[20, "resumed"]]


def test_skipped_steps_are_listed_where_they_happened(tmp_path: Path) -> None:
    rows = [train_row(10), train_row(20, skipped_steps=2, loss=float("nan")), train_row(30, skipped_steps=2)]
    page = page_of(make_run(tmp_path / "run", rows=rows))
    assert "Skipped steps" in page.headings
    assert "11 to 20" in page.text
    assert "loss nan" in page.text
    assert "21 to 30" not in page.text
    assert "2 steps skipped" in page.text


def test_many_skips_and_samples_are_cut_to_what_can_be_read(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rows=[train_row(step, skipped_steps=step) for step in range(1, 200)])
    with MetricsLog(run / "samples.jsonl") as log:
        for step in range(100, 1100):
            log.append({"step": step, "prompt": "", "text": f"sample number {step}."})
    page = page_of(run)
    assert "The first 50 of 199 places." in page.text
    last, *between = map(int, re.findall(r"sample number (\d+)\.", page.text))  # the first one is make_run's
    assert last == 1099 and between == sorted(between) and len(between) <= 24
    assert re.search(r"Samples between, 24 of 999", page.text)


def test_a_huge_log_makes_a_small_page_in_little_time(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    rows = [json.dumps(train_row(step)) for step in range(1, 30_001)]
    (run / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    begun = time.process_time()
    source = write_report(run).read_text()
    assert time.process_time() - begun < 10
    series = data_of(source)["curves"][0]["series"]
    assert max(len(part) for line in series.values() for part in line.values()) <= MAX_POINTS
    assert len(series["train/loss"]["means"]) == NUM_MEANS
    assert len(source) < 400_000


def test_a_truncated_log_is_reported_and_a_malformed_one_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    assert "Finished" in page_of(run).text
    (run / "samples.jsonl").write_text('nonsense\n{"step": 1}\n')
    with pytest.raises(DataError, match=r"samples\.jsonl:1"):
        write_report(run)


def test_no_run_and_a_full_disk_are_one_line_and_the_old_page_stays(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run in"):
        write_report(tmp_path)
    run = make_run(tmp_path / "run")
    write_report(run)
    before = (run / "report.html").read_bytes()
    with faults.inject("write", 1, "enospc"), pytest.raises(StorageError):
        write_report(run)
    assert (run / "report.html").read_bytes() == before


def test_a_checkpoint_that_was_not_committed_is_not_listed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "checkpoints" / "step-00000099").mkdir()
    assert "step-00000099" not in page_of(run).text


def task_row(step: int, metric: str, value: float | None, **more: object) -> dict[str, object]:
    row = {"kind": "task", "step": step, "task": "lambada", "metric": metric, "value": value, "convention": "of 7"}
    row["data"] = "lambada_test.jsonl"
    return {**row, **more}


def test_tasks_on_the_way_have_a_chart_and_their_last_numbers(tmp_path: Path) -> None:
    rows = default_rows()
    for step in (10, 20, 30):
        rows += [task_row(step, "accuracy", step / 100, comparable_with="45.99"), task_row(step, "perplexity", 90.0)]
    run = make_run(tmp_path / "run", rows=rows)
    page = page_of(run)
    assert figures_in(run)["lambada"] == [""] and len(figures_in(run)) == 6, "one, of the task's first metric"
    assert "on lambada_test.jsonl; after step 30\n" in page.text
    assert page.text.count("Comparable with 45.99.") == 1
    assert "on lambada_test.jsonl; after step 20\n" not in page.text


def test_long_names_and_errors_break_where_they_may(tmp_path: Path) -> None:
    rows = [*default_rows(), task_row(30, "next_sentence_accuracy", 0.5)]
    held_out = next(row for row in rows if row["kind"] == "validation")
    rows.append({**held_out, "step": 40, "tokens": 9, "share": 0.1, "standard_error": 0.29})
    page = write_report(make_run(tmp_path / "run", rows=rows)).read_text(encoding="utf-8")
    assert "next_<wbr/>sentence_<wbr/>accuracy" in page
    assert "±\N{NO-BREAK SPACE}0.29" in page


def test_hostile_task_rows_stay_text(tmp_path: Path) -> None:
    hostile = dict.fromkeys(("task", "metric", "value", "convention", "comparable_with"), HOSTILE)
    rows = [
        *default_rows(),
        task_row(10, "x", 1.0),
        {"kind": "task", "step": 20, **hostile},
        {"kind": "task", "step": 5},
    ]
    page = page_of(make_run(tmp_path / "run", rows=rows))
    assert page.names.count("script") == 2 and "img" not in page.names
    assert "<script>alert(1)</script>" in page.text


def encoder_rows(*, with_pairs: bool) -> list[dict[str, object]]:
    """Ten steps of an encoder, one validation."""
    masked = {"mlm": 7.0, "mlm_accuracy": 0.0213}
    terms = masked | ({"nsp": 0.5, "nsp_accuracy": 0.75} if with_pairs else {})
    train = [train_row(step, **terms, padding=0.1 * (not with_pairs)) for step in range(1, 11)]
    return [*train, {"kind": "validation", "step": 10, "loss": 7.5, "tokens": 9, "bits_per_byte": None, **terms}]


@pytest.mark.parametrize("with_pairs", [True, False])
def test_an_encoder_has_its_terms_and_no_bits_per_byte(tmp_path: Path, with_pairs: bool) -> None:
    run = make_run(tmp_path / "run", rows=encoder_rows(with_pairs=with_pairs))
    (run / "evaluation.json").unlink()
    text, titles = page_of(run).text, figures_in(run)
    for title in ("NSP loss", "NSP accuracy", "MLM loss"):
        assert (title in titles) == with_pairs, "one loss is enough where there is one term"
    assert titles["MLM accuracy"] == ["training", "held out"]
    assert ("Padding" in titles) is not with_pairs, "none is no curve"
    assert "Bits per byte" not in titles and "nats per token" not in text
    also = ", NSP accuracy 75.0%" if with_pairs else "\n"
    assert re.search(rf"MLM accuracy\n+2\.1%\n+held out at step 10{also}", text)


def test_shares_of_a_run_without_validation_are_of_the_training(tmp_path: Path) -> None:
    rows = [row for row in encoder_rows(with_pairs=True) if row["kind"] == "train"]
    assert "in training at step 10, NSP accuracy 75.0%" in page_of(make_run(tmp_path / "run", rows=rows)).text
