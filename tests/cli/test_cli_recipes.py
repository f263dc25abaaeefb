import json

from hornbook.__main__ import main
from hornbook.config import bundled_recipes, load_recipe


def test_recipes_are_listed_by_size(capsys):
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines[1 : 1 + len(bundled_recipes())]]
    assert set(names) == set(bundled_recipes())
    ordered = [
        "bert-tiny",
        "demo",
        "bert-mini",
        "bert-base-phase1",
        "gpt2-small",
        "gpt2-medium",
        "gpt2-xl",
        "gpt3-2.7b",
    ]
    assert [name for name in names if name in ordered] == ordered
    small = lines[1 + names.index("gpt2-small")]
    assert small.split(maxsplit=4)[:4] == ["gpt2-small", "124M", "12", "768"]
    description = bundled_recipes()["gpt2-small"].read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
    assert small.endswith(f" {description}")


def test_recipes_as_json(capsys):
    assert main(["recipes", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["recipes"]
    small = next(row for row in rows if row["name"] == "gpt2-small")
    assert (small["parameters"], small["num_layers"], small["vocab_size"]) == (124_439_808, 12, 50257)
    assert [row["vocab_size"] for row in rows if row["name"] == "demo"] == [None]


def test_a_recipe_is_shown_with_its_comments(capsys):
    assert main(["recipes", "show", "demo"]) == 0
    shown = capsys.readouterr().out
    assert shown == bundled_recipes()["demo"].read_text(encoding="utf-8") and "# " in shown
    assert main(["recipes", "show", "demo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": "demo", "text": shown}


def test_a_recipe_is_copied_once(tmp_path, capsys):
    file = tmp_path / "mine.toml"
    assert main(["recipes", "copy", "gpt2-small", str(file)]) == 0
    assert file.read_bytes() == bundled_recipes()["gpt2-small"].read_bytes()
    file.write_text("# changed")
    assert main(["recipes", "copy", "demo", str(file)]) == 2
    assert "mine.toml exists already; choose another file, or replace it with --force" in capsys.readouterr().err
    assert file.read_text() == "# changed"
    assert main(["recipes", "copy", "demo", str(file), "--force"]) == 0
    assert load_recipe(str(file), require_data=False).recipe.model.num_layers == 4
    assert main(["recipes", "copy", "demo", str(tmp_path)]) == 2
    assert "is a folder; name the file, as in" in capsys.readouterr().err


def test_recipes_that_there_are_not(tmp_path, capsys):
    assert main(["recipes", "show", "dmo"]) == 2
    assert 'recipe "dmo": no such bundled recipe; did you mean "demo"?' in capsys.readouterr().err
    assert main(["recipes", "copy", "./demo.toml", str(tmp_path / "x")]) == 2
    assert "expected the name of a bundled recipe" in capsys.readouterr().err
