import json

from hornbook.__main__ import main
from hornbook.config import bundled_recipes


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
