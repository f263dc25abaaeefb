"""Run the code cells of a notebook without Jupyter, and store or compare what they give.

    python tools/run_notebook.py examples/from_texts_to_a_model.ipynb            compare with what is stored
    python tools/run_notebook.py examples/from_texts_to_a_model.ipynb --write    store what the cells give now

Cells run in one namespace, in a fresh folder. A cell's output is what it prints on standard output and the value of its
last expression, as Jupyter shows them; standard error, where trainings report their progress, is not stored. The output
of a cell with the tag ``varies``, whose numbers depend on the machine, is compared without its digits, and that of one
with the tag ``random`` only by whether there is any.
"""

import argparse
import ast
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any


def run_cells(notebook: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Run the code cells in the working directory and return the outputs of each, as nbformat has them."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [_run("".join(cell["source"]), namespace, number) for number, cell in enumerate(code, 1)]


def _run(source: str, namespace: dict[str, Any], number: int) -> list[dict[str, Any]]:
    tree, last = ast.parse(source), None
    if tree.body and isinstance(end := tree.body[-1], ast.Expr):
        last = ast.Expression(end.value)
        tree.body.pop()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"<cell {number}>", "exec"), namespace)
        value = eval(compile(last, f"<cell {number}>", "eval"), namespace) if last else None  # noqa: S307 - our own
    outputs: list[dict[str, Any]] = []
    if text := printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        outputs.append({"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    return outputs


def differences(notebook: dict[str, Any], found: list[list[dict[str, Any]]]) -> list[str]:
    """Return a line for each code cell whose stored outputs are not those that were found."""
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    lines = []
    for number, (cell, outputs) in enumerate(zip(code, found, strict=True), 1):
        tags = cell["metadata"].get("tags", [])
        stored, now = (_shown(each, tags) for each in (cell["outputs"], outputs))
        if stored != now:
            lines.append(f"cell {number} has stored {stored!r} and gives {now!r}")
    return lines


def _shown(outputs: list[dict[str, Any]], tags: list[str]) -> list[str]:
    texts = ["".join(output.get("text") or output["data"]["text/plain"]) for output in outputs]
    if "random" in tags:
        return ["something" for _ in texts]
    return [re.sub(r"[-+]?[\d.,]*\d(e[-+]?\d+)?", "0", text) for text in texts] if "varies" in tags else texts


def main() -> int:
    """Run the notebook and return the exit code: 1 if it gives something else than what is stored."""
    parser = argparse.ArgumentParser(description="Run the code cells of a notebook without Jupyter.")
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--write", action="store_true", help="store the outputs")
    arguments = parser.parse_args()
    path = arguments.notebook.absolute()
    notebook = json.loads(path.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        found = run_cells(notebook)
        os.chdir(path.parent)
    if not arguments.write:
        lines = differences(notebook, found)
        sys.stdout.writelines(f"{line}\n" for line in lines)
        return int(bool(lines))
    outputs = iter(enumerate(found, 1))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["execution_count"], cell["outputs"] = next(outputs)
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
