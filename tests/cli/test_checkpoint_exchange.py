"""``hornbook checkpoint import`` and ``export`` as a user types them; every mistake is one line and exit code 2."""

import json
import os
import pickle
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from tiny_encoder_runs import encoder_contents
from tiny_encoders import tiny_encoder, tiny_encoder_config
from tiny_huggingface import (
    edit_config,
    edit_weights,
    same,
    shard,
    tiny_contents,
    tiny_folder,
    to_pickle,
    write_index,
)
from tiny_text import SHARED

from hornbook.__main__ import main
from hornbook.checkpoint import Contents, load, save
from hornbook.exchange.huggingface import write_folder
from hornbook.storage import faults


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tiny_folder(tmp_path / "theirs")


def ask(capsys, *words):
    """Run a command; return its exit code, its result and what it said on standard error."""
    code = main(["checkpoint", *map(str, words), "--json"])
    printed = capsys.readouterr()
    return code, json.loads(printed.out), printed.err.splitlines()


def refused(capsys, *words):
    code, result, said = ask(capsys, *words)
    assert code == result["exit_code"] == 2
    assert said == [f"hornbook: error: {result['error']}"]
    return result["error"]


def test_import_makes_a_checkpoint_that_every_command_takes(folder, capsys):
    code, result, said = ask(capsys, "import", "theirs", "--output", "runs/mine")
    assert code == 0
    assert result == {
        "source": "theirs",
        "checkpoint": "runs/mine/checkpoints/step-00000000",
        "parameters": 11776,
        "tokenizer": True,
        "warnings": [],
    }
    assert said == ["runs/mine/checkpoints/step-00000000: gpt, 2 layers, hidden 16, 11,776 parameters"]
    contents = load(Path(result["checkpoint"]))
    assert same(contents.tensors["model"], tiny_contents().tensors["model"])
    assert contents.documents["source"]["folder"] == str(folder)
    assert main(["checkpoint", "verify", "runs/mine"]) == 0
    capsys.readouterr()
    assert main(["generate", "runs/mine", "--prompt", "the cat", "--output-length", "2", "--threads", "1"]) == 0
    own = capsys.readouterr().out
    assert main(["generate", "theirs", "--prompt", "the cat", "--output-length", "2", "--threads", "1"]) == 0
    assert capsys.readouterr().out == own, "the folder itself will do, too"


@pytest.mark.parametrize("operation", ["open", "write"])
def test_an_import_on_a_full_disk_leaves_nothing(operation, folder, tmp_path, capsys):
    before, number, is_reached = {*tmp_path.rglob("*")}, 0, True
    while is_reached:
        number += 1
        with faults.inject(operation, number, "enospc", lasting=True) as reached:
            code, result, _ = ask(capsys, "import", "theirs", "--output", "runs/mine")
        is_reached = reached()
        assert (code, "No space left" in str(result.get("error"))) == ((1, True) if is_reached else (0, False))
        assert not is_reached or {*tmp_path.rglob("*")} == before
    assert number > 3


def test_an_import_without_space_for_it_leaves_nothing(folder, tmp_path, capsys, monkeypatch):
    before = {*tmp_path.rglob("*")}
    monkeypatch.setattr("hornbook.storage.system.free_bytes", lambda path: 1000)
    code, result, _ = ask(capsys, "import", "theirs", "--output", "runs/mine")
    assert code == 1 and "cannot save a checkpoint" in result["error"] and {*tmp_path.rglob("*")} == before


def test_import_without_a_tokenizer_says_so(folder, capsys):
    for name in ("tokenizer.json", "merges.txt"):
        (folder / name).unlink()
    code, result, said = ask(capsys, "import", "theirs", "--output", "mine")
    assert (code, result["tokenizer"]) == (0, False)
    assert said[0] == (
        "hornbook: warning: no tokenizer in theirs: add tokenizer.json, or vocab.json and merges.txt, and import it "
        "again to generate or evaluate"
    )


@pytest.mark.parametrize(
    ("head", "what"),
    [
        ({"head": "classification", "num_labels": 3}, "bert for 3 classes, 2 layers"),
        ({"head": "span"}, "bert for spans, 2 layers"),
        ({}, "bert, 2 layers"),
    ],
)
def test_import_says_what_the_model_is_for(folder, capsys, head, what):
    model, config = tiny_encoder("bert", **head), tiny_encoder_config("bert", **head)
    weights = {name: model.logical(name, parameter.detach()) for name, parameter in model.own_parameters()}
    labels = {"labels": ["a", "b", "c"]} if "num_labels" in head else {}
    document = {"model": asdict(config), "objective": {"name": head.get("head", "mlm"), **labels}}
    document |= {"name": "tiny", "training": {"steps": 1}}
    write_folder(Path("bert"), Contents(step=0, tensors={"model": weights}, documents={"recipe": document}))
    code, _, said = ask(capsys, "import", "bert", "--output", "runs/bert")
    assert code == 0 and "or vocab.txt, and import" in said[0] and f": {what}, hidden 32, " in said[1]


def test_export_reports_what_is_lost(folder, capsys):
    contents = encoder_contents("bert", embedding_dropout=0.3, residual_dropout=0.1)
    save(Path("run/checkpoints"), contents)
    code, result, said = ask(capsys, "export", "run", "--output", "lossy")
    assert code == 0 and said[0] == f"hornbook: warning: {result['warnings'][0]}"
    assert "model.embedding_dropout 0.3 is lost" in said[0]


def test_export_for_llama_cpp_and_what_it_refuses(folder, capsys, monkeypatch):
    write_folder(Path("plain"), tiny_contents(activation="gelu_tanh"))
    refused_size = refused(capsys, "export", "plain", "--output", "a.gguf", "--format", "gguf", "--shard-size", "1MB")
    assert "a GGUF file is not split" in refused_size
    refused_name = refused(capsys, "export", "plain", "--output", "a.gguf")
    assert "a.gguf has the suffix of a GGUF file" in refused_name and "; use --format gguf, or" in refused_name
    assert not Path("a.gguf").exists()
    pytest.importorskip("gguf", reason="hornbook[gguf] is not installed")
    code, result, _ = ask(capsys, "export", "plain", "--output", "mine.gguf", "--format", "gguf", "--dtype", "fp16")
    assert code == 0 and result["dtype"] == "fp16" and list(result["files"]) == ["mine.gguf"]
    assert Path("mine.gguf").read_bytes()[:4] == b"GGUF"
    monkeypatch.setitem(sys.modules, "gguf", None)
    message = refused(capsys, "export", "plain", "--output", "b.gguf", "--format", "gguf")
    assert "exporting GGUF needs gguf: " in message and "hornbook[gguf]" in message


def test_export_of_what_was_imported_is_the_same_again(folder, capsys):
    assert ask(capsys, "import", "theirs", "--output", "mine")[0] == 0
    code, result, _ = ask(capsys, "export", "mine", "--output", "again")
    assert code == 0
    assert result["checkpoint"] == "mine/checkpoints/step-00000000"
    for path in folder.iterdir():
        is_equal = path.read_bytes() == Path("again", path.name).read_bytes()
        assert is_equal != (path.name == "README.md"), "the card says where the weights are from"
    assert ask(capsys, "export", "theirs", "--output", "half", "--dtype", "bf16")[0] == 0
    assert Path("half/model.safetensors").stat().st_size < Path("again/model.safetensors").stat().st_size


def test_import_of_pickled_weights_needs_leave(folder, capsys):
    to_pickle(folder)
    assert "--allow-pickle" in refused(capsys, "import", "theirs", "--output", "mine")
    assert not Path("mine").exists()
    code, result, _ = ask(capsys, "import", "theirs", "--output", "mine", "--allow-pickle")
    assert code == 0
    assert same(load(Path(result["checkpoint"])).tensors["model"], tiny_contents().tensors["model"])


class Program:
    def __reduce__(self):
        return os.mkdir, ("canary",)


def program(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"wte.weight": Program()}, protocol=2))


def path_that_leaves(folder):
    index = shard(folder)
    index["weight_map"]["transformer.wte.weight"] = "../../etc/passwd"
    write_index(folder, index)


def no_weights(folder):
    (folder / "model.safetensors").unlink()


def other_shape(folder):
    edit_config(folder, n_positions=99)


def other_keys(folder):
    def change(tensors):
        del tensors["transformer.ln_f.bias"], tensors["transformer.wpe.weight"]
        tensors["classifier.weight"] = torch.ones(2)

    edit_weights(folder, change)


@pytest.mark.parametrize(
    ("damage", "shown"),
    [
        (program, ["is rejected, and no code in it was run"]),
        (path_that_leaves, ["'../../etc/passwd' is not a plain file name"]),
        (no_weights, ["has no weights"]),
        (other_shape, ["transformer.wpe.weight is [24, 16], expected [99, 16]"]),
        (
            other_keys,
            [
                "transformer.ln_f.bias is missing",
                "transformer.wpe.weight is missing",
                "'classifier.weight' is not expected",
            ],
        ),
    ],
)
def test_bad_folders_are_one_line_and_leave_nothing(folder, capsys, damage, shown):
    damage(folder)
    message = refused(capsys, "import", "theirs", "--output", "mine", "--allow-pickle")
    assert all(part in message for part in shown)
    assert [path.name for path in folder.parent.iterdir()] == ["theirs"]


def test_where_an_import_may_not_go(folder, capsys):
    save(Path("used/checkpoints"), tiny_contents())
    assert refused(capsys, "import", "theirs", "--output", "used") == (
        "used already contains a run or checkpoints; choose another --output"
    )
    Path("run").mkdir()
    Path("run/run.json").touch()
    assert "already contains a run" in refused(capsys, "import", "theirs", "--output", "run")
    Path("corpus").mkdir()
    Path("corpus/build.json").touch()
    assert refused(capsys, "import", "theirs", "--output", "corpus") == "corpus is a corpus: choose another --output"


def test_what_is_no_source(folder, capsys):
    assert "no such folder" in refused(capsys, "import", "./missing", "--output", "mine")
    assert "no such folder" in refused(capsys, "import", "theirs/missing", "--output", "mine")
    assert "--revision applies only to hub models" in refused(
        capsys, "import", "theirs", "--output", "mine", "--revision", "main"
    )
    path = save(Path("used/checkpoints"), tiny_contents())
    assert "is already a hornbook checkpoint" in refused(capsys, "import", path, "--output", "mine")
    assert "exists already" in refused(capsys, "export", "used", "--output", "theirs")
    assert "no such folder" in refused(capsys, "export", "theirs/missing", "--output", "mine")


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is not here")
@pytest.mark.parametrize(("name", "parameters"), [("hf_tiny_gpt2", 2168), ("hf_fake_gpt2_50257", 102640)])
def test_strangers_models(folder, capsys, name, parameters):
    code, result, _ = ask(capsys, "import", SHARED / "checkpoints" / name, "--output", "mine")
    assert (code, result["parameters"], result["tokenizer"]) == (0, parameters, False)
    messages = ["245 of the 256 bytes have no token" if name == "hf_tiny_gpt2" else "no tokenizer in"]
    assert len(result["warnings"]) == len(messages)
    assert all(part in warning for part, warning in zip(messages, result["warnings"], strict=True))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data folder is not here")
def test_a_strangers_bert(folder, capsys):
    """A classifier stays one: trunk, pooler and its own layer of classes, and nothing is drawn."""
    source = SHARED / "checkpoints" / "hf_tiny_bert_cls"
    assert "hf_tiny_bert_cls has its weights only in pytorch_model.bin" in refused(
        capsys, "import", source, "--output", "mine"
    )
    code, result, _ = ask(capsys, "import", source, "--output", "mine", "--allow-pickle")
    assert (code, result["parameters"]) == (0, 87_995)
    assert not result["warnings"]
