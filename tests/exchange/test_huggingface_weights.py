import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_huggingface import INDEX, WEIGHTS, refusal, same, shard, tiny_contents, tiny_folder, to_pickle, write_index

from hornbook.errors import CheckpointError
from hornbook.exchange.contents import inside
from hornbook.exchange.huggingface import read_folder

EXPECTED = tiny_contents().tensors["model"]
FIRST = "model-00001-of-00003.safetensors"


@pytest.fixture
def folder(tmp_path):
    return tiny_folder(tmp_path / "hf")


def test_shards_are_put_together(folder):
    shard(folder)
    assert not (folder / WEIGHTS).exists()
    assert same(read_folder(folder).tensors["model"], EXPECTED)


def test_one_file_counts_before_shards(folder):
    kept = (folder / WEIGHTS).read_bytes()
    shard(folder)
    (folder / WEIGHTS).write_bytes(kept)
    write_index(folder, "not even an index")
    assert same(read_folder(folder).tensors["model"], EXPECTED)


@pytest.mark.parametrize("legacy", [False, True])
def test_pickled_weights_only_with_leave(folder, legacy):
    path = to_pickle(folder, legacy=legacy)
    message = refusal(folder)
    assert "has its weights only in pytorch_model.bin" in message and "--allow-pickle" in message
    assert same(read_folder(folder, allow_pickle=True).tensors["model"], EXPECTED)
    path.rename(folder / "pytorch_model-00001-of-00001.bin")
    weight_map = dict.fromkeys(
        torch.load(folder / "pytorch_model-00001-of-00001.bin"), "pytorch_model-00001-of-00001.bin"
    )
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert "--allow-pickle" in refusal(folder)
    assert same(read_folder(folder, allow_pickle=True).tensors["model"], EXPECTED)


@pytest.mark.parametrize("name", [WEIGHTS, "config.json", "tokenizer.json"])
def test_a_pointer_of_git_lfs_is_named_as_such(folder, name):
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 523\n")
    assert f"{folder / name} is a pointer of Git LFS, not the file: run `git lfs pull` in {folder}" in refusal(folder)


def test_safetensors_are_taken_even_if_pickles_may_be(folder):
    (folder / "pytorch_model.bin").write_bytes(b"never opened")
    assert same(read_folder(folder, allow_pickle=True).tensors["model"], EXPECTED)


@pytest.mark.parametrize(
    "name",
    [
        "../outside.safetensors",
        "/etc/passwd",
        "sub/model.safetensors",
        "..",
        ".hidden.safetensors",
        "model.safetensors\n",
        "C:\\model.safetensors",
        "",
        "a" * 300 + ".safetensors",
        "model\x00.safetensors",
        "config.json",
    ],
)
def test_an_index_names_files_of_its_own_folder_alone(folder, name):
    save_file({"transformer.wte.weight": torch.ones(300, 16)}, folder.parent / "outside.safetensors")
    index = shard(folder)
    index["weight_map"]["transformer.wte.weight"] = name
    write_index(folder, index)
    message = refusal(folder)
    assert "names files that cannot be used" in message
    assert "not a plain file name" in message or "is not a .safetensors file" in message


def test_an_index_cannot_smuggle_a_pickle(folder):
    index = shard(folder)
    (folder / "evil.bin").write_bytes(b"\x80\x02.")
    index["weight_map"]["transformer.wte.weight"] = "evil.bin"
    write_index(folder, index)
    assert "'evil.bin' is not a .safetensors file" in refusal(folder, allow_pickle=True)


@pytest.mark.parametrize("name", ["config.json", WEIGHTS, "tokenizer.json"])
def test_links_do_not_leave_the_folder(folder, name):
    outside = folder.parent / "outside"
    (folder / name).rename(outside)
    (folder / name).symlink_to(outside)
    assert "is a link out of its folder" in refusal(folder)


def test_links_of_the_hubs_cache_are_fine(folder):
    blobs, snapshot = folder.parent / "models--a--b" / "blobs", folder.parent / "models--a--b" / "snapshots" / "0123"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(folder.iterdir())):
        path.rename(blobs / str(number))
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    assert same(read_folder(snapshot).tensors["model"], EXPECTED)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_what_is_no_file_is_not_opened(folder, make):
    (folder / WEIGHTS).unlink()
    make(folder / WEIGHTS)
    assert "is missing or not a plain file" in refusal(folder)


def test_a_link_to_nothing(folder):
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to("gone")
    assert "is missing or not a plain file" in refusal(folder)


def test_missing_shards_are_reported_together(folder):
    index = shard(folder)
    for name in sorted(set(index["weight_map"].values()))[:2]:
        (folder / name).unlink()
    message = refusal(folder)
    assert FIRST in message and "model-00002-of-00003.safetensors is missing" in message


def test_an_index_that_disagrees_with_its_files(folder):
    index = shard(folder)
    shards = sorted(set(index["weight_map"].values()))
    first, second = load_file(folder / shards[0]), load_file(folder / shards[1])
    moved = sorted(first)[0]
    second[sorted(first)[1]] = first[sorted(first)[1]]
    del first[moved]
    save_file(first, folder / shards[0])
    save_file(second, folder / shards[1])
    message = refusal(folder)
    assert f"{moved} is not in {shards[0]}" in message
    assert f"is in {shards[1]} and in another file" in message


@pytest.mark.parametrize("index", [[], {}, {"weight_map": {}}, {"weight_map": []}, {"weight_map": {"a": 3}}, "text"])
def test_a_malformed_index(folder, index):
    shard(folder)
    write_index(folder, index)
    assert str(folder / INDEX) in refusal(folder)


def test_an_index_that_is_no_json(folder):
    shard(folder)
    (folder / INDEX).write_text('{"weight_map": {"a": "b", "a": "c"}}')
    assert "not valid JSON" in refusal(folder)


def test_no_weights(folder):
    (folder / WEIGHTS).unlink()
    assert refusal(folder) == (
        f"{folder} has no weights; expected one of model.safetensors, model.safetensors.index.json, "
        "pytorch_model.bin, pytorch_model.bin.index.json"
    )


@pytest.mark.parametrize("keep", [0, 4, 7, 8, 300, -1])
def test_cut_weights(folder, keep):
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[:keep])
    message = refusal(folder)
    assert message.startswith(f"{folder / WEIGHTS} is not a valid safetensors file: it ")
    assert message.endswith("; the download or copy is incomplete: remove the file, then fetch it again")


def test_inside_takes_plain_names(tmp_path):
    (tmp_path / "a-1_b.json").touch()
    assert inside(tmp_path, "a-1_b.json") == tmp_path / "a-1_b.json"
    with pytest.raises(CheckpointError, match="is missing"):
        inside(tmp_path, "missing")
