import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tiny_huggingface import same, tiny_contents, tiny_folder
from tiny_text import tiny_tokenizer

from hornbook.checkpoint import Contents
from hornbook.errors import CheckpointError, HornbookError, StorageError, UserError
from hornbook.exchange.huggingface import read_folder, write_folder
from hornbook.storage.faults import count_operations, inject
from hornbook.storage.files import sha256_file

FILES = [
    "README.md",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
]


def changed(contents, **changes):
    fields = {name: getattr(contents, name) for name in ("step", "tensors", "documents", "files")}
    return Contents(**{**fields, **changes})


def test_the_files_of_a_folder(tmp_path):
    written = write_folder(tmp_path / "out", tiny_contents())
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == FILES == sorted(written)
    for name, file in written.items():
        path = tmp_path / "out" / name
        assert (path.stat().st_size, sha256_file(path)) == (file.size, file.sha256)
    with safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}, "transformers before 4.40 fails without it"
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118 - no mapping
        assert file.get_slice("transformer.wte.weight").get_shape() == [300, 16], "padding stays in memory"


def test_the_config_says_what_the_model_is(tmp_path):
    folder = tiny_folder(tmp_path / "out", activation="relu_squared", attention_dropout=0.25)
    config = json.loads((folder / "config.json").read_text())
    expected = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 16, "n_layer": 2, "n_head": 2}
    expected |= {"n_inner": None, "activation_function": "relu2", "attn_pdrop": 0.25, "torch_dtype": "float32"}
    expected |= {"bos_token_id": 299, "eos_token_id": 299, "n_positions": 24, "vocab_size": 300}
    assert expected.items() <= config.items()
    ends = {"bos_token_id": 299, "eos_token_id": 299, "pad_token_id": 299}
    assert json.loads((folder / "generation_config.json").read_text()) == ends


def test_vocabulary_and_merges_are_those_of_the_tokenizer(tmp_path):
    folder = tiny_folder(tmp_path / "out")
    pairs = tiny_tokenizer()
    vocab = json.loads((folder / "vocab.json").read_text())
    assert vocab == dict(pairs.vocab) and list(vocab.values()) == list(range(300))
    first, *lines = (folder / "merges.txt").read_text().split("\n")
    assert (first, lines[-1]) == ("#version: 0.2", "")
    assert [line.split(" ") for line in lines[:-1]] == pairs.settings["model"]["merges"]


def test_without_a_tokenizer_no_token_ends_a_text(tmp_path):
    write_folder(tmp_path / "out", changed(tiny_contents(), files={}))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
    ]
    assert json.loads((tmp_path / "out" / "config.json").read_text())["eos_token_id"] is None


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_smaller_dtypes(tmp_path, name, dtype):
    contents = tiny_contents()
    write_folder(tmp_path / "out", contents, dtype=name)
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert {tensor.dtype for tensor in found.values()} == {dtype}
    rounded = {key: tensor.to(dtype).float() for key, tensor in contents.tensors["model"].items()}
    assert same(read_folder(tmp_path / "out").tensors["model"], rounded)


def test_fp16_is_refused_where_it_overflows(tmp_path):
    contents = tiny_contents()
    contents.tensors["model"]["blocks.1.attention.out.bias"][0] = 1e5
    with pytest.raises(CheckpointError, match=r"larger values in transformer\.h\.1\.attn\.c_proj\.bias; export bf16"):
        write_folder(tmp_path / "out", contents, dtype="fp16")
    assert list(tmp_path.iterdir()) == []
    write_folder(tmp_path / "out", contents, dtype="bf16")


def test_what_is_there_stays(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match="exists already"):
        write_folder(tmp_path / "out", tiny_contents())
    assert list((tmp_path / "out").iterdir()) == []


def test_merges_that_a_text_file_cannot_hold(tmp_path):
    description = json.loads(tiny_tokenizer().to_json())
    vocab, merges = description["model"]["vocab"], description["model"]["merges"]
    vocab["a b"] = len(vocab)
    vocab["a bc"] = len(vocab)
    merges.append(["a b", "c"])
    contents = tiny_contents(vocab_size=310)
    files = {"tokenizer.json": json.dumps(description).encode()}
    with pytest.raises(CheckpointError, match="white space"):
        write_folder(tmp_path / "out", changed(contents, files=files))
    assert list(tmp_path.iterdir()) == []


def test_an_error_anywhere_leaves_nothing(tmp_path):
    contents = tiny_contents()
    with count_operations() as operations:
        write_folder(tmp_path / "whole", contents)
    for n in range(1, len(operations) + 1):
        target = tmp_path / str(n) / "out"
        target.parent.mkdir()
        with inject("any", n, "enospc") as struck, pytest.raises(StorageError):
            write_folder(target, contents)
        assert struck()
        left = [path.name for path in target.parent.iterdir()]
        assert left in ([], ["out"]), "the folder is whole or not there"
        if left:
            assert same(read_folder(target).tensors["model"], contents.tensors["model"])


def test_other_models_are_not_exported(tmp_path):
    contents = tiny_contents(head_size=6)
    with pytest.raises(HornbookError, match="this model cannot be exported"):
        write_folder(tmp_path / "out", contents)


def test_large_models_are_written_in_shards(tmp_path):
    contents = tiny_contents()
    written = write_folder(tmp_path / "out", contents, shard_size=8_000)
    shards = sorted(name for name in written if name.startswith("model-"))
    assert len(shards) > 2 and shards[0] == f"model-00001-of-{len(shards):05}.safetensors"
    assert "model.safetensors" not in written
    largest = max(tensor.nbytes for tensor in contents.tensors["model"].values())
    total = 0
    for name in shards:
        tensors = load_file(tmp_path / "out" / name)
        total += (size := sum(tensor.nbytes for tensor in tensors.values()))
        assert size <= 8_000 or (len(tensors) == 1 and size == largest)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == total
    again = read_folder(tmp_path / "out")
    assert same(again.tensors["model"], contents.tensors["model"])
