import json
import sys
from pathlib import Path

import pytest
from tiny_text import one_line

from hornbook.errors import UserError
from hornbook.extras import require


def test_a_library_that_is_there_and_one_that_is_not():
    assert require("json", extra="none", purpose="this test") is json
    with pytest.raises(UserError) as caught:
        require("no_such_library.part", extra="arrow", purpose="reading Parquet files")
    assert one_line(caught.value, "reading Parquet files needs no_such_library: ", " -m pip install 'hornbook[arrow]'")


@pytest.mark.parametrize(
    ("python", "shown"),
    [
        ("home/.venv/bin/python", ".venv/bin/python"),
        ("elsewhere/bin/python", "{root}/elsewhere/bin/python"),
        ("home/python", "{root}/home/python"),
        ("home/my venv/bin/python", "'my venv/bin/python'"),
    ],
)
def test_the_command_is_of_the_python_that_runs(monkeypatch, tmp_path, python, shown):
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    root = Path.cwd().parent
    monkeypatch.setattr(sys, "executable", str(root / python))
    with pytest.raises(UserError) as caught:
        require("no_such_library", extra="arrow", purpose="this test")
    command = f"{shown.format(root=root)} -m pip install 'hornbook[arrow]'"
    assert str(caught.value) == f"this test needs no_such_library: {command}"
