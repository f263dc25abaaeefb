"""Tokenizers by name, and in runs and corpora."""

import hashlib
import json
import sys
from pathlib import Path

import pytest
from tiny_text import SHARED, build_tiny, one_line, tiny_tokenizer

from hornbook.__main__ import main
from hornbook.errors import DataError, UserError
from hornbook.text import tokenizer_names
from hornbook.text.tokenizer import Tokenizer

GPT2 = SHARED / "tokenizers" / "gpt2"
FILES = ("encoder.json", "vocab.bpe")


@pytest.fixture(autouse=True)
def nothing_at_hand(tmp_path, monkeypatch):
    """An empty working folder, and empty caches."""
    monkeypatch.chdir(tmp_path)
    for name in ("HF_HUB_CACHE", "TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))


def write_pair(folder, names=FILES):
    """A byte-level BPE of 300 tokens in two files, as OpenAI wrote GPT-2's."""
    model = json.loads(tiny_tokenizer().to_json())["model"]
    contents = (
        json.dumps(model["vocab"]),
        "#version: 0.2\n" + "".join(" ".join(pair) + "\n" for pair in model["merges"]),
    )
    folder.mkdir(parents=True)
    for name, content in zip(names, contents, strict=True):
        (folder / name).write_text(content)


def cached(cache, repository="openai-community--gpt2"):
    return cache / f"models--{repository}" / "snapshots" / ("0" * 40)


def in_tiktokens_cache(name):
    return hashlib.sha1(f"https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/{name}".encode()).hexdigest()


@pytest.mark.parametrize("repository", ["openai-community--gpt2", "gpt2"])
@pytest.mark.parametrize("variable", ["HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"])
def test_gpt2_is_taken_from_the_cache_of_the_hub(tmp_path, monkeypatch, repository, variable):
    cache = {"HF_HOME": "x/hub", "HF_HUB_CACHE": "x", "XDG_CACHE_HOME": "x/huggingface/hub"}[variable]
    if variable == "XDG_CACHE_HOME":
        monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv(variable, str(tmp_path / "x"))
    (cached(tmp_path / cache, repository).with_name("1" * 40)).mkdir(parents=True)  # of the weights alone
    write_pair(cached(tmp_path / cache, repository), ("vocab.json", "merges.txt"))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert Tokenizer.load("gpt2").digest == tiny_tokenizer().digest


def test_a_user_without_a_home_folder_has_no_cache(monkeypatch):
    def unknown(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("HF_HOME")
    monkeypatch.setattr(Path, "expanduser", unknown)
    with pytest.raises(UserError, match="the tokenizer gpt2 was not found"):
        Tokenizer.load("gpt2")


def test_gpt2_is_taken_from_a_folder_here(tmp_path):
    write_pair(tmp_path / "tokenizers" / "gpt2")
    assert Tokenizer.load("gpt2").digest == tiny_tokenizer().digest
    Tokenizer.train(["abc"], 260).save(tmp_path / "gpt2")
    assert Tokenizer.load("gpt2").vocab_size < 262, "a path of this name comes first"


@pytest.mark.parametrize("variable", ["TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR", None])
def test_gpt2_is_taken_from_tiktokens_cache(tmp_path, monkeypatch, variable):
    cache = tmp_path / "tmp" / "data-gym-cache"
    if variable:
        monkeypatch.setenv(variable, str(cache := tmp_path / "cache"))
    write_pair(cache, tuple(map(in_tiktokens_cache, FILES)))
    with pytest.raises(UserError, match="the tokenizer gpt2 was not found"):
        Tokenizer.load("gpt2")  # other bytes than OpenAI's
    sums = {name: hashlib.sha256((cache / in_tiktokens_cache(name)).read_bytes()).hexdigest() for name in FILES}
    monkeypatch.setattr(tokenizer_names, "_OPENAI_FILES", sums)
    assert Tokenizer.load("gpt2").digest == tiny_tokenizer().digest
    (cache / in_tiktokens_cache("vocab.bpe")).unlink()
    with pytest.raises(UserError, match="the tokenizer gpt2 was not found"):
        Tokenizer.load("gpt2")


@pytest.mark.skipif(not GPT2.exists(), reason="../shared/data is not there")
def test_openais_files_as_tiktoken_caches_them(tmp_path, monkeypatch):
    (tmp_path / "cache").mkdir()
    for name in FILES:
        (tmp_path / "cache" / in_tiktokens_cache(name)).write_bytes((GPT2 / name).read_bytes())
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))
    tiktoken = pytest.importorskip("tiktoken")
    tokenizer = Tokenizer.load("gpt2")
    assert tokenizer.digest == Tokenizer.load(GPT2).digest
    assert tokenizer.encode("Hi there, é") == tiktoken.get_encoding("gpt2").encode("Hi there, é")


def test_without_gpt2_one_line_says_how_to_get_it(capsys):
    assert main(["tokenizer", "encode", "--tokenizer", "gpt2"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "--tokenizer openai-community/gpt2 to download it" in error
    assert "pip install 'hornbook[hub]'" in error


def test_names_of_the_hub(tmp_path, monkeypatch):
    """From the cache alone; `tests/exchange/test_huggingface_hub_models.py` has a hub that answers."""
    with pytest.raises(UserError) as caught:
        Tokenizer.load("someone/tiny")
    assert one_line(caught.value, "no tokenizer at someone/tiny; ", "HF_HUB_OFFLINE")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"no tokenizer at someone/tiny; .*pip install 'hornbook\[hub\]'"):
        Tokenizer.load("hf://someone/tiny")
    (tmp_path / "someone").mkdir()
    for path in ("someone/tiny", "nothing", "a/b.json", "./a/b", "/a/b"):
        with pytest.raises(UserError, match=f"no tokenizer at {path}.*; make one with `hornbook tokenizer train`"):
            Tokenizer.load(path)
    with pytest.raises(UserError, match=r'no tokenizer at \./someoen/tiny; did you mean "someone"'):
        Tokenizer.load("./someoen/tiny")


def test_those_of_corpora_and_runs(tmp_path):
    build_tiny(tmp_path / "corpus")
    assert Tokenizer.load("corpus").digest == tiny_tokenizer().digest
    other = Tokenizer.train(["abc"], 260)
    for step, tokenizer in (("step-00000400", other), ("step-00000500", tiny_tokenizer())):
        tokenizer.save(tmp_path / "run" / "checkpoints" / step)
    for torn in ("step-00000600.tmp-4711", "step-00000300-diverged"):
        other.save(tmp_path / "run" / "checkpoints" / torn)
    assert Tokenizer.load(tmp_path / "run").digest == tiny_tokenizer().digest
    with pytest.raises(DataError, match="has no tokenizer"):
        Tokenizer.load(tmp_path / "texts")
