import json

from hornbook.__main__ import main
from hornbook.config import bundled_recipes, load_recipe


def names_in(capsys, *words):
    """The names in the table that ``hornbook recipes`` prints, with its lines."""
    assert main(["recipes", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    return [line.split()[1] for line in lines[1 : lines.index("")] if line[0].isalpha()], lines


def test_recipes_are_listed_by_family_and_size(capsys):
    names, lines = names_in(capsys)
    ordered = [
        "demo",
        "gpt2-small",
        "gpt2-medium",
        "gpt2-xl",
        "gpt3-2.7b",
        "bert-tiny",
        "bert-mini",
        "bert-base-phase1",
    ]
    assert [name for name in names if name in ordered] == ordered
    small = lines[1 + names.index("gpt2-small")]
    assert small.split(maxsplit=5)[:5] == ["gpt", "gpt2-small", "124M", "12", "768"]
    description = bundled_recipes()["gpt2-small"].read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
    assert small.endswith(f" {description}")


def test_recipes_of_old_systems_are_listed_on_demand(capsys):
    names, lines = names_in(capsys)
    every, _ = names_in(capsys, "--all")
    assert set(every) == set(bundled_recipes())
    hidden = set(every) - set(names)
    assert hidden >= {"gpt2-small-4-stages", "gpt2-small-mnli", "bert-base-wikitext2", "demo-tensor-4"}
    assert any(f"`hornbook recipes --all` also lists {len(hidden)} " in line for line in lines)
    assert names_in(capsys, "list", "--all")[0] == every
    assert names_in(capsys, "list")[0] == names
    assert main(["recipes", "--all", "show", "demo"]) == 2
    assert "--all is an option of `hornbook recipes list`, not of show: leave it out" in capsys.readouterr().err


def test_recipes_as_json(capsys):
    assert main(["recipes", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["recipes"]
    small = next(row for row in rows if row["name"] == "gpt2-small")
    assert (small["family"], small["parameters"], small["num_layers"]) == ("gpt", 124_439_808, 12)
    assert [row["vocab_size"] for row in rows if row["name"] in ("demo", "gpt2-small")] == [None, 50257]


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
