"""The Python of README.md and docs/python.md and the notebook in examples/, run as they stand there."""

import json
import sys
from pathlib import Path

import pytest
from pages import ROOT, Shell, blocks_of, write_texts

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_the_python_of_a_page(page: str, tmp_path: Path) -> None:
    write_texts(tmp_path / "my-texts")
    blocks = [block.body for block in blocks_of(ROOT / page) if block.language == "python"]
    assert blocks
    program = "\n".join(blocks).replace("\n", "\n    ")
    (tmp_path / "page.py").write_text(f"if __name__ == '__main__':\n    {program}\n")
    out = Shell(tmp_path).run(f"{sys.executable} page.py")
    assert "Once upon a time" in out


def test_readme_and_page_show_the_same_lines() -> None:
    (lines,) = [block.body for block in blocks_of(ROOT / "README.md") if block.language == "python"]
    assert lines == blocks_of(ROOT / "docs" / "python.md")[0].body
    assert len([line for line in lines.splitlines() if line]) <= 7


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_gives_what_it_shows(notebook: Path, tmp_path: Path) -> None:
    assert Shell(tmp_path).run(f"{sys.executable} {ROOT / 'tools' / 'run_notebook.py'} {notebook}") == ""


def test_notebooks_are_valid() -> None:
    """What the schema of nbformat 4.5 asks for, of the kinds of cells and outputs that there are."""
    assert NOTEBOOKS
    for notebook in NOTEBOOKS:
        content = json.loads(notebook.read_text(encoding="utf-8"))
        assert content.keys() == {"cells", "metadata", "nbformat", "nbformat_minor"}
        assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
        ids = [cell["id"] for cell in content["cells"]]
        assert len(set(ids)) == len(ids)
        counts = []
        for cell in content["cells"]:
            is_code = cell["cell_type"] == "code"
            fields = {"cell_type", "id", "metadata", "source"} | ({"execution_count", "outputs"} if is_code else set())
            assert cell.keys() == fields and all(isinstance(line, str) for line in cell["source"])
            if is_code:
                counts.append(cell["execution_count"])
                for output in cell["outputs"]:
                    kind = output["output_type"]
                    more = {"stream": {"name", "text"}, "execute_result": {"data", "metadata", "execution_count"}}[kind]
                    assert output.keys() == {"output_type"} | more
        assert counts == list(range(1, len(counts) + 1)), "stored outputs are of one run, from the top"


def test_a_stored_output_that_is_not_true_is_found(tmp_path: Path) -> None:
    cell = {"cell_type": "code", "metadata": {}, "source": ["print(6 * 7)"], "outputs": []}
    (tmp_path / "n.ipynb").write_text(json.dumps({"cells": [cell]}))
    tool = f"{sys.executable} {ROOT / 'tools' / 'run_notebook.py'} n.ipynb"
    shell = Shell(tmp_path)
    assert "gives ['42\\n']" in shell.run(f"! {tool}")
    shell.run(f"{tool} --write")
    assert shell.run(tool) == ""
