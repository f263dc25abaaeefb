"""``hornbook predict``: a line for each text or question, in the file's order; mistakes are reported before any."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_encoder_runs import encoder_contents
from tiny_labelled import CONTEXT, QUESTIONS, labelled_rows, question, word_pieces, write_jsonl, write_squad
from written_runs import save_run

from hornbook.__main__ import main
from hornbook.checkpoint import save
from hornbook.checkpoint.manifest import MANIFEST, Entry, read_manifest
from hornbook.cli.evaluate_command import _print_table
from hornbook.config import ClassificationConfig, SpanConfig
from hornbook.storage.files import sha256_file

CLASSES = ("emma", "moby", "pride")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random models of each kind, and files for them."""
    folder = tmp_path_factory.mktemp("home")
    heads = {
        "classes": (ClassificationConfig(labels=CLASSES), {"head": "classification", "num_labels": 3}),
        "nameless": (ClassificationConfig(labels=("a", "a")), {"head": "classification", "num_labels": 2}),
        "pairs": (ClassificationConfig(labels=CLASSES, second_text="b"), {"head": "classification", "num_labels": 3}),
        "spans": (SpanConfig(max_question_tokens=8, document_stride=8), {"head": "span", "max_positions": 24}),
        "masks": (None, {}),
    }
    for name, (objective, changes) in heads.items():
        save(folder / name / "checkpoints", encoder_contents("bert", word_pieces(), objective, **changes))
    save_run(folder / "gpt")
    write_jsonl(folder / "texts.jsonl", labelled_rows(3))
    (folder / "texts.txt").write_text("".join(f"{row['text']}\n" for row in labelled_rows(3)))
    write_squad(folder / "squad.json", QUESTIONS)
    write_jsonl(folder / "squad.jsonl", [{"question": asked["question"], "context": CONTEXT} for asked in QUESTIONS])
    (folder / "latin.txt").write_bytes(b"a\n\xe9\n")
    (folder / "empty.txt").write_text("")
    write_jsonl(folder / "numbers.jsonl", [{"text": "a"}, {"text": 7}])
    return folder


@pytest.fixture(autouse=True)
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)


def predict(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict]:
    capsys.readouterr()
    assert main(["predict", *words, "--threads", "1"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_line_for_each_text_in_the_order_of_the_file(capsys):
    found = predict(capsys, "classes", "texts.jsonl")
    rows = labelled_rows(3)
    assert len(found) == len(rows)
    for number in (0, 5, 11):
        write_jsonl(Path("one.jsonl"), [{"text": rows[number]["text"]}])
        (alone,) = predict(capsys, "classes", "one.jsonl", "--batch-size", "1")
        assert alone["label"] == found[number]["label"]
        assert alone["probabilities"] == pytest.approx(found[number]["probabilities"], abs=2e-6)
    assert all(sum(each["probabilities"].values()) == pytest.approx(1, abs=3e-6) for each in found)
    assert all(set(each["probabilities"]) == set(CLASSES) for each in found)
    assert len({each["probability"] for each in found}) > 3, "they differ, so the order is seen"


def test_all_inputs_and_outputs_say_the_same(capsys, monkeypatch):
    expected = predict(capsys, "classes", "texts.jsonl")
    assert predict(capsys, "classes", "texts.txt") == expected
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path("texts.txt").read_bytes())))
    assert predict(capsys, "classes", "-") == expected
    assert predict(capsys, "classes", "texts.jsonl", "--output", "out.jsonl") == []
    assert [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()] == expected
    (result,) = predict(capsys, "classes", "texts.jsonl", "--json")
    assert result["results"] == expected and result["count"] == len(expected)
    (short,) = predict(capsys, "classes", "texts.jsonl", "--json", "--output", "out.jsonl")
    assert short["output"] == "out.jsonl" and "results" not in short


def test_the_most_likely_classes_and_pairs(capsys):
    write_jsonl(Path("pairs.jsonl"), [{"one": "the whale", "two": "the ball"}])
    (found,) = predict(capsys, "pairs", "pairs.jsonl", "--text", "one", "--second-text", "two", "--top-k", "2")
    assert len(found["probabilities"]) == 2 and next(iter(found["probabilities"])) == found["label"]
    (other,) = predict(capsys, "pairs", "pairs.jsonl", "--text", "two", "--second-text", "one", "--top-k", "2")
    assert other != found


def test_answers_with_their_places(capsys, monkeypatch):
    found = predict(capsys, "spans", "squad.json", "--num-best", "3", "--batch-size", "2")
    assert [each["id"] for each in found] == ["q0", "q1", "q2"]
    for each in found:
        assert len(each["n_best"]) == 3
        assert {name: each[name] for name in ("answer", "start", "end", "score")} == each["n_best"][0]
        assert all(CONTEXT[best["start"] : best["end"]] == best["answer"] for best in each["n_best"])
    plain = predict(capsys, "spans", "squad.json")
    assert [set(each) for each in plain] == [{"id", "answer", "start", "end", "score"}] * 3
    assert [each["answer"] for each in plain] == [each["answer"] for each in found]
    by_line = predict(capsys, "spans", "squad.jsonl")
    assert [each | {"id": ""} for each in by_line] == [each | {"id": ""} for each in plain]
    for name, options in (("squad.jsonl", []), ("squad.json", ["--format", "squad"])):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path(name).read_bytes())))
        assert [each["answer"] for each in predict(capsys, "spans", "-", *options)] == [e["answer"] for e in plain]


def test_no_answer_where_it_is_allowed(capsys):
    found = predict(capsys, "spans", "squad.json", "--num-best", "500", "--unanswerable")
    none = [[best for best in each["n_best"] if best["start"] is None] for each in found]
    assert [len(each) for each in none] == [1, 1, 1] and all(each[0]["answer"] == "" for each in none)


@pytest.mark.parametrize(
    ("run", "rows", "what"),
    [
        ("classes", [{"text": "the whale " * 30}, {"text": "a ship"}], "1 of 2 texts is longer than 8 tokens"),
        ("pairs", [{"text": "the whale " * 9, "b": "a ship"}] * 3, "3 of 3 pairs are longer than 8 tokens"),
    ],
)
def test_truncated_texts_are_told_and_counted(capsys, run, rows, what):
    write_jsonl(Path("long.jsonl"), rows)
    assert main(["predict", run, "long.jsonl", "--window", "8", "--json", "--threads", "1"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["truncated"] == int(what[0])
    assert f"{what}, special tokens included: classified without the end" in " ".join(printed.err.split())
    write_jsonl(Path("short.jsonl"), [{"text": "a", "b": "b"}])
    assert main(["predict", run, "short.jsonl", "--json", "--threads", "1"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["truncated"] == 0 and "longer than" not in printed.err


@pytest.mark.parametrize(
    ("labels", "count", "what"),
    [
        (("a", "emma", "moby", "pride"), 3, "has 3 classes but the names a, emma, moby, pride"),
        (("emma", "moby"), 3, "has 3 classes but the names emma, moby"),
        (CLASSES, None, "model.num_labels is missing; restore the file"),
    ],
)
@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_labels_that_do_not_fit_the_head(tmp_path, capsys, command, labels, count, what):
    path = save(
        tmp_path / "checkpoints",
        encoder_contents(
            "bert", word_pieces(), ClassificationConfig(labels=CLASSES), head="classification", num_labels=3
        ),
    )
    recipe = json.loads((path / "recipe.json").read_text())
    recipe["objective"]["labels"], recipe["model"]["num_labels"] = labels, count
    (path / "recipe.json").write_text(json.dumps(recipe))
    manifest = read_manifest(path)
    size, sha256 = (path / "recipe.json").stat().st_size, sha256_file(path / "recipe.json")
    entry = Entry(kind=manifest.files["recipe.json"].kind, size=size, sha256=sha256)
    (path / MANIFEST).write_bytes(replace(manifest, files={**manifest.files, "recipe.json": entry}).to_bytes())
    write_jsonl(tmp_path / "texts.jsonl", [{"text": "the whale", "label": label} for label in ("moby", "emma")])
    data = ["--data"] if command == "evaluate" else []
    assert main([command, str(tmp_path), *data, str(tmp_path / "texts.jsonl"), "--threads", "1"]) == 2
    told = capsys.readouterr().err
    assert what in told and "Error:" not in told and len(told.splitlines()) == 1


def test_predictions_are_those_that_evaluate_scores(capsys):
    scored = ["--threads", "1", "--compute", "fp32", "--json"]
    assert main(["evaluate", "classes", "--data", "texts.jsonl", *scored]) == 0
    rows = {row["metric"]: row for row in json.loads(capsys.readouterr().out)["tasks"][0]["rows"]}
    found, labels = predict(capsys, "classes", "texts.jsonl"), [row["label"] for row in labelled_rows(3)]
    right = [each["label"] == label for each, label in zip(found, labels, strict=True)]
    assert rows["accuracy"]["value"] == pytest.approx(sum(right) / len(right))
    matrix = rows["accuracy"]["table"]
    assert matrix["columns"] == ["", *CLASSES] and [row[0] for row in matrix["rows"]] == list(CLASSES)
    for label, *counts in matrix["rows"]:
        expected = [
            sum(each["label"] == other for each, own in zip(found, labels, strict=True) if own == label)
            for other in CLASSES
        ]
        assert counts == expected
    by_class = {row[0]: row[1:] for row in rows["macro_f1"]["table"]["rows"]}
    assert rows["macro_f1"]["table"]["columns"] == ["class", "precision", "recall", "f1", "support", "predicted"]
    assert [by_class[label][3] for label in CLASSES] == [labels.count(label) for label in CLASSES]
    assert "table" not in rows["cross_entropy"]
    best = [each["answer"] for each in predict(capsys, "spans", "squad.json")]
    asked = [question(n, "?", (text, CONTEXT.index(text))) for n, text in enumerate(best)]
    asked = [{**entry, "question": own["question"]} for entry, own in zip(asked, QUESTIONS, strict=True)]
    assert main(["evaluate", "spans", "--data", write_squad(Path("best.json"), asked), *scored]) == 0
    assert json.loads(capsys.readouterr().out)["tasks"][0]["rows"][0]["value"] == 1.0


def test_the_table_of_evaluate(capsys):
    assert main(["evaluate", "classes", "--data", "texts.jsonl", "--threads", "1"]) == 0
    out = capsys.readouterr().out
    assert "confusion matrix: label by row, predicted class by column" in out
    assert all(word in out for word in ("precision", "recall", "support", *CLASSES))


def test_an_unused_matrix_is_not_printed(capsys):
    for count in (24, 25):
        names = [f"class-{number}" for number in range(count)]
        rows = [(name, *range(count)) for name in names]
        _print_table({"title": "confusion matrix", "columns": ["", *names], "rows": rows})
        out = capsys.readouterr().out
        assert ("class-23" in out) == (count == 24) and ("26 columns, see --json" in out) == (count == 25)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["gpt", "texts.jsonl"],
            "was trained with 'causal_lm' and has no labels: fine-tune it (docs/fine-tuning.md)",
        ),
        (["masks", "texts.jsonl"], "was trained with 'mlm' and has no labels: fine-tune it (docs/fine-tuning.md)"),
        (["nameless", "texts.jsonl"], "has 2 classes but the names a, a; expected a name for each, all different"),
        (["classes", "empty.txt"], "empty.txt: the file has no examples; expected a text per line"),
        (["classes", "latin.txt"], "latin.txt, line 2: not UTF-8 at byte 0"),
        (["classes", "numbers.jsonl"], "numbers.jsonl, line 2: 'text' has no text"),
        (["classes", "nowhere.txt"], "nowhere.txt: the file of texts is missing"),
        (
            ["classes", "texts.jsonl", "--text", "txt"],
            "'txt' is missing (columns: 'text', 'label'); name the right one by",
        ),
        (["classes", "texts.jsonl", "--num-best", "2"], "--num-best does not apply: classes/"),
        (["classes", "texts.jsonl", "--unanswerable"], "--unanswerable does not apply: classes/"),
        (["classes", "texts.jsonl", "--format", "squad"], "--format squad does not apply"),
        (["classes", "texts.jsonl", "--output", "texts.jsonl"], "--output texts.jsonl is the input file"),
        (["classes", "texts.jsonl", "--window", "65"], "a window of 65 tokens is longer than the model's 64 positions"),
        (["classes", "texts.jsonl", "--output", "no/file"], "cannot open no/file"),
        (["pairs", "texts.txt"], "the model reads pairs of texts, but a line of text has only one"),
        (["spans", "squad.json", "--top-k", "2"], "--top-k does not apply: spans/"),
        (["spans", "squad.json", "--text", "x"], "--text does not apply: spans/"),
        (["spans", "texts.jsonl"], "texts.jsonl, line 1: no field 'question'"),
        (["spans", "empty.txt"], "empty.txt is not valid JSON"),
        (["spans", "texts.txt", "--format", "csv"], "--format csv does not apply"),
    ],
)
def test_what_cannot_be_predicted_is_reported_on_one_line(capsys, words, message):
    before = Path("texts.jsonl").read_bytes()
    assert main(["predict", *words, "--threads", "1"]) == 2
    found = capsys.readouterr()
    assert found.out == "" and message in found.err and len(found.err.splitlines()) == 1
    assert Path("texts.jsonl").read_bytes() == before
