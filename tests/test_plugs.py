"""Plug points: rooms are imported on first use, and the core says what it cannot read without them."""

from pathlib import Path

import numpy as np
import pytest

from hornbook import plugs
from hornbook.corpora.store import open_store
from hornbook.errors import DataError, UserError
from hornbook.exchange.huggingface import is_folder
from hornbook.samples.instances import holds_instances, open_instances
from hornbook.text.documents import ReadOptions, read_documents


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any room."""
    monkeypatch.setattr(plugs, "_ROOMS", {point: [] for point in plugs._ROOMS})


def test_a_room_is_plugged_once_and_imported_when_it_is_asked(bare: None) -> None:
    plugs.plug("sample sources", "no.such.module")
    plugs.plug("document readers", "hornbook.wikipedia.reader")
    plugs.plug("document readers", "hornbook.wikipedia.reader")
    assert [room.__name__ for room in plugs.plugged("document readers")] == ["hornbook.wikipedia.reader"]
    with pytest.raises(ModuleNotFoundError):
        plugs.plugged("sample sources")


def test_without_rooms_files_of_other_systems_are_refused(bare: None, tmp_path: Path) -> None:
    array = tmp_path / "tokens.npy"
    np.save(array, np.arange(8))
    with pytest.raises(DataError, match="not a token store"):
        open_store(array)
    assert not holds_instances(array)
    with pytest.raises(UserError, match=r"train on a token store$"):
        open_instances(array, seed=0)
    (tmp_path / "bert_config.json").write_text("{}")
    (tmp_path / "bert_model.ckpt.index").write_bytes(b"")
    assert not is_folder(tmp_path)
    (tmp_path / "dump.xml").write_text("<mediawiki/>")
    with pytest.raises(UserError, match="the format wikipedia cannot be read here; expected one of text, lines"):
        list(read_documents([tmp_path / "dump.xml"], ReadOptions(format="wikipedia")))


def test_with_rooms_they_are_known(tmp_path: Path) -> None:
    array = tmp_path / "tokens.npy"
    np.save(array, np.arange(8))
    with pytest.raises(DataError, match="is an array; if it has tokens, convert it with `hornbook corpus convert"):
        open_store(array)
    (tmp_path / "bert_config.json").write_text("{}")
    (tmp_path / "bert_model.ckpt.index").write_bytes(b"")
    assert is_folder(tmp_path)
