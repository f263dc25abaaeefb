import re
from pathlib import Path

import pytest
from fake_run import RECIPE, make_run, train_row

from hornbook.track.report import write_report
from hornbook.track.run_tables import stage_table
from hornbook.track.runs import read_run

PIPELINE = """
name = "staged"
[model]
family = "gpt"
num_layers = 6
hidden_size = 64
num_heads = 2
vocab_size = 512
max_positions = 64
[data]
synthetic = true
sequence_length = 32
[training]
steps = 10
global_batch_size = 16
micro_batch_size = 2
[parallel]
pipeline_parallel = 2
"""


def rows_of(folder: Path, recipe: str) -> list[list[str]]:
    table = stage_table(read_run(make_run(folder / "run", recipe=recipe)))
    found = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", table)]
    return [[re.sub(r"<[^>]*>", "", cell) for cell in row] for row in found if row]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("layers_per_stage = [4, 2]", [("0", "0", "embedding, layers 0 to 3"), ("1", "1", "layers 4 to 5, head")]),
        ("layers_per_stage = [5, 1]", [("0", "0", "embedding, layers 0 to 4"), ("1", "1", "layer 5, head")]),
        (
            'layers_per_stage = [0, 3, 3, 0]\npipeline_schedule = "v-shaped"',
            [("0", "0", "embedding"), ("1", "1", "layers 0 to 2"), ("2", "1", "layers 3 to 5"), ("3", "0", "head")],
        ),
    ],
)
def test_each_stage_has_its_rank_and_what_it_holds(
    options: str, expected: list[tuple[str, ...]], tmp_path: Path
) -> None:
    rows = rows_of(tmp_path, f"{PIPELINE}{options}\n")
    assert [tuple(row[:3]) for row in rows] == expected
    work = [float(row[3]) for row in rows]
    assert work[-1] > 0.3, "the head counts as its share of a layer"


def test_balanced_stages_are_those_of_the_run_and_the_report_shows_them(tmp_path: Path) -> None:
    assert [row[2] for row in rows_of(tmp_path, PIPELINE)] == ["embedding, layers 0 to 2", "layers 3 to 5, head"]
    assert "<h2>Pipeline stages</h2>" in write_report(tmp_path / "run").read_text()


def test_the_measured_idle_share_of_each_rank_is_shown_with_its_stages(tmp_path: Path) -> None:
    recipe = f'{PIPELINE}layers_per_stage = [0, 3, 3, 0]\npipeline_schedule = "v-shaped"\n'
    shares = [(0.9, 0.1), (0.25, 0.15), (0.2, 0.2)]
    rows = [train_row(step, **{"idle/0": first, "idle/1": last}) for step, (first, last) in enumerate(shares, 1)]
    run = make_run(tmp_path / "run", recipe=recipe, rows=rows)
    cells = re.findall(r'<td class="num">(\d+%)</td>', stage_table(read_run(run)))
    assert cells == ["25%", "15%", "15%", "25%"]
    assert ">Idle<" not in stage_table(read_run(make_run(tmp_path / "unmeasured", recipe=recipe)))


@pytest.mark.parametrize("recipe", [RECIPE, PIPELINE.replace("pipeline_parallel = 2", "pipeline_parallel = 1"), ""])
def test_without_a_pipeline_or_with_a_strange_recipe_there_is_nothing(recipe: str, tmp_path: Path) -> None:
    assert rows_of(tmp_path, recipe) == []
