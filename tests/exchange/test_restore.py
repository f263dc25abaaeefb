"""Models from checkpoints; other tests load them from folders of other systems."""

import sys

import pytest
import torch
from written_runs import save_run

import hornbook.exchange
from hornbook.exchange.restore import load_model


@pytest.mark.parametrize("name", [".", "checkpoints/step-00000001"], ids=["run", "checkpoint"])
def test_own_checkpoints_need_no_module_for_those_of_other_systems(tmp_path, monkeypatch, name):
    (save_run(tmp_path) / "run.json").write_text("{}")
    monkeypatch.delattr(hornbook.exchange, "huggingface", raising=False)
    monkeypatch.setitem(sys.modules, "hornbook.exchange.huggingface", None)
    assert load_model(tmp_path / name, torch.device("cpu")).step == 1
