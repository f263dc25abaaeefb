import shutil

import numpy as np
import pytest
from tiny_formats import documents, instances
from tiny_text import build_tiny, one_line

from hornbook.errors import DataError, UserError
from hornbook.interop.convert.bert_tfrecord import write_plain, write_remasked
from hornbook.interop.convert.detect import detect_source, detect_target
from hornbook.interop.convert.stores import write_megatron
from hornbook.interop.convert.token_files import write_gpt2_tfrecords
from hornbook.interop.formats.protobuf import encode_example
from hornbook.interop.formats.tfrecord import write_records


def test_sources_by_their_content(tmp_path):
    build_tiny(tmp_path / "corpus")
    write_megatron(tmp_path / "pile", documents([[1]]))
    (tmp_path / "only").mkdir()
    for suffix in (".bin", ".idx"):
        shutil.copy(tmp_path / f"pile{suffix}", tmp_path / "only")
    write_gpt2_tfrecords(tmp_path / "a.tfrecord", documents([[1]]))
    write_gpt2_tfrecords(tmp_path / "many", documents([[1], [2]]), 1)
    write_plain(tmp_path / "b.tfrecord-00000-of-00001", instances())
    write_plain(tmp_path / "b", instances())
    write_remasked(tmp_path / "c", instances(), 2)
    (tmp_path / "ds").mkdir()
    (tmp_path / "ds" / "state.json").touch()
    for name in ("x.npy", "x.pkl", "x.pickle", "x.arrow"):
        (tmp_path / name).touch()
    found = {
        "corpus": "store",
        "corpus/train": "store",
        "corpus/train/tokens": "store",
        "pile": "megatron",
        "pile.bin": "megatron",
        "pile.idx": "megatron",
        "only": "megatron",
        "a.tfrecord": "tfrecord",
        "many": "tfrecord",
        "b.tfrecord-00000-of-00001": "bert-tfrecord",
        "b": "bert-tfrecord",
        "c": "bert-tfrecord-remasked",
        "ds": "bert-arrow",
        "x.npy": "npy",
        "x.pkl": "pickle",
        "x.pickle": "pickle",
        "x.arrow": "bert-arrow",
    }
    assert {name: detect_source(tmp_path / name) for name in found} == found


def test_sources_that_are_not_recognized(tmp_path):
    (tmp_path / "x.dat").touch()
    for path in (tmp_path, tmp_path / "x.dat"):
        with pytest.raises(UserError) as caught:
            detect_source(path)
        assert one_line(caught.value, "not recognized", "`source_format` to one of store, megatron")
    with pytest.raises(UserError, match="no such file"):
        detect_source(tmp_path / "y")
    write_records(tmp_path / "x.tfrecord", [encode_example({"image": np.array([1])})])
    with pytest.raises(DataError, match="the first record has the features 'image'; expected only input_ids"):
        detect_source(tmp_path / "x.tfrecord")
    (tmp_path / "x.tfrecord").write_bytes(b"")
    with pytest.raises(DataError, match="no records"):
        detect_source(tmp_path / "x.tfrecord")


def test_a_bin_without_an_idx_is_named(tmp_path):
    (tmp_path / "train.bin").write_bytes(bytes(2048))
    with pytest.raises(UserError) as caught:
        detect_source(tmp_path / "train.bin")
    assert one_line(caught.value, "train.bin has no train.idx beside it", "--from nanogpt")
    (tmp_path / "llmc").write_bytes(np.array([20240520, 1, 0] + 253 * [0], dtype="<i4").tobytes())
    assert detect_source(tmp_path / "llmc") == "llm.c"


def test_targets_by_their_names(tmp_path):
    for name, expected in (("x.npy", "npy"), ("x.pkl", "pickle"), ("x.bin", "megatron"), ("x.idx", "megatron")):
        assert detect_target(tmp_path / name, "store") == expected
    assert detect_target(tmp_path / "x.tfrecord", "store") == "tfrecord"
    assert detect_target(tmp_path / "x.tfrecord", "bert-arrow") == "bert-tfrecord"
    with pytest.raises(
        UserError, match=r"x: no format has this suffix; set it with `target_format` to one of store, .* npy$"
    ):
        detect_target(tmp_path / "x", "npy")
    with pytest.raises(
        UserError, match=r"`target_format` to one of bert-tfrecord, bert-tfrecord-remasked, bert-arrow$"
    ):
        detect_target(tmp_path / "x", "bert-arrow")
