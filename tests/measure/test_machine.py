"""The facts of the machine that the tests run on, and of one that is made up."""

import json
import os
import tomllib
from pathlib import Path

import pytest
import torch

from hornbook.measure import machine
from hornbook.storage.system import usable_cores

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def test_the_facts_are_json_and_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("HF_TOKEN", "secret")
    facts = machine.machine_facts(torch.device("cpu"), tmp_path / "runs")
    assert "secret" not in json.dumps(facts)
    assert facts["variables"]["OMP_NUM_THREADS"] == "3"
    assert facts["versions"]["torch"]["version"] == torch.__version__
    assert facts["processor"]["usable_cores"] == usable_cores()
    assert facts["memory"]["available"] <= facts["memory"]["total"]
    cache, reported = facts["operators"]["second_level_cache"], os.sysconf_names.get("SC_LEVEL2_CACHE_SIZE", 0)
    if cache is not None and reported and os.sysconf(reported) > 0:
        assert cache == min(max(os.sysconf(reported), 256 << 10), 2 << 20)
    assert set(facts["products"]["flops_per_second"]) == {"fp32", "bf16"}
    assert facts["products"]["auto"] in ("fp32", "bf16")
    assert facts["disk"]["folder"] == str(tmp_path) and facts["disk"]["error"] is None
    assert list(tmp_path.iterdir()) == []


def test_the_oldest_versions_are_those_of_the_package() -> None:
    declared = {line.partition(">=")[0]: line.partition(">=")[2] for line in PYPROJECT["dependencies"]}
    facts = machine._versions()
    assert {name: facts[name]["oldest"] for name in machine.LIBRARIES} == declared
    assert facts["python"]["oldest"] == PYPROJECT["requires-python"].removeprefix(">=")


def test_every_extra_for_users_is_reported() -> None:
    assert set(machine._EXTRAS) == set(PYPROJECT["optional-dependencies"]) - {"test", "docs", "dev"}


def test_the_compiler_that_a_variable_names_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "my-compiler"
    own.write_text("#!/bin/sh\necho my compiler 7.1\necho more\n")
    own.chmod(0o755)
    monkeypatch.setenv("CXX", str(own))
    assert machine.compiler() == "my compiler 7.1"
    monkeypatch.delenv("CXX")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.compiler() is None
