import json
import subprocess
import sys
import types

import pytest

from hornbook.__main__ import main
from hornbook.config import load_recipe
from hornbook.run.initial_weights import InitFrom

RECIPE = """[model]
num_layers = 1
hidden_size = 8
num_heads = 2
vocab_size = 16
max_positions = 8

[data]
synthetic = true

[training]
steps = 2
"""


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(RECIPE)
    return "tiny.toml"


@pytest.fixture
def trained(monkeypatch):
    """Stand in for the engine; what it was called with is collected."""
    calls = []
    launch = types.ModuleType("hornbook.run.launch")
    launch.train = lambda resolved, **options: calls.append((resolved, options)) or {"step": 2}
    monkeypatch.setitem(sys.modules, "hornbook.run.launch", launch)
    return calls


def test_train_passes_the_resolved_recipe_to_the_engine(recipe, trained, capsys):
    words = [
        "train",
        recipe,
        "--output",
        "runs/a",
        "--device",
        "cpu",
        "--threads",
        "1",
        "--training.steps",
        "3",
        "--json",
    ]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out) == {"step": 2}
    ((resolved, options),) = trained
    assert resolved == load_recipe(recipe, ["--training.steps=3"])
    expected = {"device": "cpu", "threads": 1, "init_from": None, "allow_rate_change": False}
    assert (str(options.pop("output")), options) == ("runs/a", expected)


def test_defaults(recipe, trained):
    assert main(["train", recipe]) == 0
    expected = {
        "output": None,
        "device": "auto",
        "threads": None,
        "init_from": None,
        "allow_rate_change": False,
    }
    assert trained[0][1] == expected


@pytest.mark.parametrize("moments", [None, "fresh", "keep"])
def test_init_from_says_what_to_start_from(recipe, request, moments):
    assert main(["train", recipe, "--output", "runs/small", "--threads", "1"]) == 0
    trained = request.getfixturevalue("trained")
    words = ["--init-optimizer", moments] if moments else []
    assert main(["train", recipe, "--init-from", "runs/small", *words]) == 0
    assert trained[0][1]["init_from"] == InitFrom(source="runs/small", keep_optimizer=moments == "keep")


def test_init_optimizer_alone_means_nothing(recipe, trained, capsys):
    assert main(["train", recipe, "--init-optimizer", "fresh"]) == 2
    assert "add --init-from or remove it" in capsys.readouterr().err
    assert trained == []


def test_print_recipe_is_a_recipe(recipe, trained, tmp_path, capsys):
    assert main(["train", recipe, "--print-recipe", "--optimizer.learning-rate", "1e-3"]) == 0
    printed = capsys.readouterr().out
    assert "learning_rate = 0.001                   # command line\n" in printed
    assert "num_layers = 1                          # tiny.toml:2\n" in printed
    assert "seed = 1234                             # default\n" in printed
    (tmp_path / "printed.toml").write_text(printed)
    assert load_recipe("printed.toml").recipe == load_recipe(recipe, ["--optimizer.learning-rate", "1e-3"]).recipe
    assert trained == []


def test_print_recipe_as_json(capsys):
    assert main(["train", "gpt2-small", "--print-recipe", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["recipe"]["model"]["hidden_size"] == 768
    assert printed["sources"]["model.hidden_size"] == "gpt2-small:8"


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["gpt2-smal"], ['recipe "gpt2-smal": no such bundled recipe; did you mean "gpt2-small"?']),
        (
            ["qqq/missing.toml"],
            ["qqq/missing.toml: no such recipe file or run; `hornbook recipes` lists the bundled recipes"],
        ),
        (["."], [".: is a folder, neither a recipe file nor a run; to train on it: --data.train ."]),
        (
            ["tiny.toml", "--model.num-layrs", "3", "--training.seed=x"],
            [
                'model.num_layrs (command line): unknown key; did you mean "model.num_layers"?',
                "training.seed = x (command line): expected an integer, got a string",
            ],
        ),
        (
            ["tiny.toml", "--training.steps", "1,000", "--training.tokens", "10M", "--schedule.warmup-fraction=5%"],
            [
                'training.steps = 1,000 (command line): expected an integer or "none", got a string; '
                "did you mean 1000?",
                'training.tokens = 10M (command line): expected an integer or "none", got a string; '
                "did you mean 10000000?",
                'schedule.warmup_fraction = 5% (command line): expected a number or "none", got a string; '
                "did you mean 0.05?",
            ],
        ),
        (
            ["tiny.toml", "--data.synthetic", "maybe"],
            ['--data.synthetic: expected true or false, got "maybe" (see `hornbook train --help`)'],
        ),
        (
            ["gpt2-small"],
            ["data.train = [] (default): no training data; set --data.train PATH, or use --data.synthetic"],
        ),
    ],
)
def test_mistakes_are_a_line_each_and_nothing_starts(recipe, trained, words, lines, capsys):
    assert main(["train", *words]) == 2
    assert capsys.readouterr() == ("", "".join(f"hornbook: error: {line}\n" for line in lines))
    assert trained == []


def test_a_syntax_error_names_line_and_column(recipe, trained, tmp_path, capsys):
    (tmp_path / "bad.toml").write_text("[model]\nnum_layers = = 2\n")
    assert main(["train", "bad.toml"]) == 2
    assert capsys.readouterr().err == "hornbook: error: bad.toml:2:14: not TOML: Invalid value\n"


def test_mistakes_are_noticed_before_torch_is_imported(tmp_path):
    (tmp_path / "texts.txt").write_text("some text\n")
    code = (
        "import sys; from hornbook.__main__ import main; from hornbook.parallel import launched as names\n"
        "found = [main(['train', 'demo', '--data', name]) for name in ('texts.txt', 'corpora/mine')]\n"
        "start = ['train', 'demo', '--data.synthetic', '--model.vocab-size', '64']\n"
        "found.append(main([*start, '--output', 'texts.txt/run']))\n"
        "found.append(main([*start, '--init-from', 'missing/runs/mine']))\n"
        "found.append(main([*start, '--processes', '3']))\n"
        "found.append(main([*start, '--evaluation.tasks', 'lambda']))\n"
        "huge = ['--model.num-layers', '9999', '--model.hidden-size', '16384']\n"
        "found.append(main([*start, '--device', 'cpu', *huge]))\n"
        "found.append(main(['evaluate', '.', '--tasks', 'bits_per_bit']))\n"
        "found.append(main(['evaluate', '.', '--tasks', 'bits_per_byte', '--data', 'texts.txt']))\n"
        "names._has_only_cpu = lambda version: True\n"
        "for words in (start, ['evaluate', '.'], ['generate', '.']):\n"
        "    found.append(main([*words, '--device', 'cuda']))\n"
        "assert 'torch' not in sys.modules and found == [2] * 12, found"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "texts.txt: not a token store; to make one from text: `hornbook corpus build" in done.stderr
    assert "mine: no such token store" in done.stderr
    assert "texts.txt is a file: choose another --output" in done.stderr
    assert "no run or checkpoint at missing/runs/mine" in done.stderr
    assert "does not divide into micro-batches of 16 on 3 ranks: take a multiple of 3" in done.stderr
    assert "there is no task 'lambda', the tasks are bits_per_byte, " in done.stderr
    assert "parameters would fit, with smaller sizes in [model]; or keep the model in files" in done.stderr
    assert 'did you mean "bits_per_byte"?' in done.stderr
    assert done.stderr.count("texts.txt: not a token store") == 2
    assert done.stderr.count("has no device 'cuda:0'; available: cpu; choose another --device") == 3
