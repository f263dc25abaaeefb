"""Tokenizers and corpora in Python: those of the commands, read back as a torch ``Dataset``."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import tiny_recipe
from tiny_text import READ_TEXTS, build_tiny, one_line, tiny_tokenizer, write_texts
from torch.utils.data import DataLoader

import hornbook
from hornbook.__main__ import main
from hornbook.corpora.store import open_store
from hornbook.engine.build_training import build_samples
from hornbook.errors import DataError, UserError
from hornbook.samples.sources import complete, open_sources


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build_tiny(tmp_path / "corpus")
    return tmp_path / "corpus"


def test_a_folder_of_texts_becomes_a_tokenizer_and_a_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_texts(tmp_path / "texts")
    tokenizer = hornbook.train_tokenizer("texts", vocab_size=300, validation=0.25, output="tok")
    words = ["texts", "--validation", "0.25"]
    assert main(["tokenizer", "train", *words, "--vocab-size", "300", "--output", "theirs"]) == 0
    assert tokenizer.digest == hornbook.Tokenizer.load("theirs").digest == hornbook.Tokenizer.load("tok").digest
    assert main(["corpus", "build", *words, "--tokenizer", "theirs", "--output", "expected"]) == 0
    for given, output in ((tokenizer, "one"), ("tok", Path("two"))):
        made = hornbook.build_corpus([Path("texts")], given, output=output, validation=0.25)
        assert made == Path(output).resolve()
        for split in ("train", "validation"):
            assert open_store(made, split).fingerprint == open_store("expected", split).fingerprint
    assert hornbook.build_corpus("texts", tokenizer, output="one", validation=0.25) == Path("one").resolve()


def test_what_cannot_be_read_is_skipped_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_texts(tmp_path / "texts")
    (tmp_path / "texts" / "bad.txt").write_bytes(b"\xff")
    options = {"suffixes": [".txt"], "exclude": ["1*"], "on_error": "skip"}
    tokenizer = hornbook.train_tokenizer(tmp_path / "texts", vocab_size=300, **options)
    built = hornbook.build_corpus(tmp_path / "texts", tokenizer, output=tmp_path / "corpus", **options)
    assert hornbook.corpus(built).num_documents == 9
    assert [record.message.count("bad.txt: not UTF-8") for record in caplog.records] == [1, 1]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"format": "pdf"}, "format is 'pdf'; expected one of"),
        ({"on_error": "ignore"}, "on_error is 'ignore'; expected one of stop, skip"),
        ({"suffixes": ".txt"}, "suffixes is a string, '.txt'; expected a list"),
        ({"suffixes": [b".txt"]}, "suffixes is [b'.txt']; expected a list of strings"),
        ({"kind": "bpe"}, "kind is 'bpe'; expected one of byte-bpe"),
        ({"vocab_size": 1}, "`vocab_size=1` is out of range"),
        ({"cased": True}, "applies only to `kind='wordpiece'`"),
    ],
)
def test_bad_options_are_one_line(tmp_path: Path, options: dict, part: str) -> None:
    write_texts(tmp_path / "texts")
    with pytest.raises(UserError) as caught:
        hornbook.train_tokenizer(tmp_path / "texts", **options)
    assert one_line(caught.value, part)


def test_bytes_are_no_path_of_texts() -> None:
    for texts in (b"texts", [b"texts"]):
        with pytest.raises(UserError) as caught:
            hornbook.train_tokenizer(texts)
        assert one_line(caught.value, "texts has an entry of type bytes; expected paths")


def test_items_are_documents(folder: Path) -> None:
    corpus, store = hornbook.corpus(folder), open_store(folder)
    assert isinstance(corpus, torch.utils.data.Dataset) and isinstance(corpus, hornbook.Corpus)
    assert len(corpus) == corpus.num_documents == store.num_documents and corpus.num_tokens == store.num_tokens
    for index, item in enumerate(corpus):
        assert item.keys() == {"tokens"} and item["tokens"].dtype == torch.int64
        assert item["tokens"].tolist() == store.document(index).tolist()
    assert torch.equal(corpus[-1]["tokens"], corpus[len(corpus) - 1]["tokens"])
    assert torch.equal(corpus[np.int64(2)]["tokens"], corpus[2]["tokens"])
    held_out = hornbook.corpus(folder, split="validation")
    texts = [data.text(index) for data in (corpus, held_out) for index in range(len(data))]
    assert sorted(texts) == sorted(READ_TEXTS)
    assert corpus.tokenizer is not None and corpus.tokenizer.digest == tiny_tokenizer().digest
    for index in (len(corpus), -len(corpus) - 1):
        with pytest.raises(IndexError):
            corpus[index]


def test_a_corpus_parses_its_tokenizer_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load, loaded = hornbook.Tokenizer.load, []
    monkeypatch.setattr(hornbook.Tokenizer, "load", lambda path: loaded.append(path) or load(path))
    corpus = hornbook.corpus(folder)
    texts = [corpus.text(index) for index in range(len(corpus))]
    assert len(set(texts)) > 1 and corpus.tokenizer is corpus.tokenizer
    assert loaded == [folder / "train" / "tokenizer.json"]


def test_items_are_the_samples_of_a_training(folder: Path, tmp_path: Path) -> None:
    overrides = ("--data.synthetic=false", f"--data.train={folder}", "--model.vocab-size=none", "--training.seed=5")
    recipe = tiny_recipe(tmp_path, *overrides, "--data.sequence-length=12").recipe
    sources = open_sources(recipe)
    samples = build_samples(complete(recipe, sources), sources, on_cpu=True)
    corpus = hornbook.corpus(folder, sequence_length=12, seed=5)
    assert len(corpus) == samples.num_samples > 20
    (batch,) = samples.maker.batches(np.arange(len(corpus))[None])
    for name in ("tokens", "targets"):
        assert torch.equal(torch.stack([item[name] for item in corpus]), batch[name])


@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes")  # on one core
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_shuffles_with_any_number_of_workers(folder: Path, num_workers: int) -> None:
    corpus = hornbook.corpus(folder, sequence_length=12)
    order = torch.Generator().manual_seed(1)
    loader = DataLoader(corpus, batch_size=4, shuffle=True, generator=order, num_workers=num_workers)
    batches = list(loader)
    assert {name: tensor.shape for name, tensor in batches[0].items()} == {"tokens": (4, 12), "targets": (4, 12)}
    found = torch.cat([batch["tokens"] for batch in batches])
    expected = torch.stack([item["tokens"] for item in corpus])
    assert not torch.equal(found, expected)
    assert sorted(found.tolist()) == sorted(expected.tolist())


def test_a_copy_for_a_worker_is_small_and_the_same(folder: Path) -> None:
    corpus = hornbook.corpus(folder, split="validation", sequence_length=8, seed=3)
    data = pickle.dumps(corpus)
    again = pickle.loads(data)  # noqa: S301 - our own
    assert len(data) < 1000 and repr(again) == repr(corpus)
    assert torch.equal(again[5]["tokens"], corpus[5]["tokens"])


def test_bad_corpora_are_one_line(folder: Path, tmp_path: Path) -> None:
    for error, part, options in (
        (UserError, "split is 'test'; expected one of train, validation", {"split": "test"}),
        (UserError, "sequence_length is 0", {"sequence_length": 0}),
        (UserError, "sequence_length is 1.5; expected an integer from 1", {"sequence_length": 1.5}),
        (UserError, "one sample needs", {"sequence_length": 10**6}),
    ):
        with pytest.raises(error) as caught:
            hornbook.corpus(folder, **options)
        assert one_line(caught.value, part)
    with pytest.raises(DataError) as caught:
        hornbook.corpus(tmp_path / "nothing")
    assert one_line(caught.value, "no such token store")
    with pytest.raises(UserError) as caught:
        hornbook.corpus([folder, folder])
    assert one_line(caught.value, "path is of type list; expected one path: open several corpora one by one")


def test_tokens_without_a_tokenizer_have_no_text(folder: Path, tmp_path: Path) -> None:
    for ending in ("bin", "idx"):
        (tmp_path / f"others.{ending}").write_bytes((folder / "train" / f"tokens.{ending}").read_bytes())
    corpus = hornbook.corpus(tmp_path / "others")
    assert corpus.tokenizer is None and torch.equal(corpus[3]["tokens"], hornbook.corpus(folder)[3]["tokens"])
    with pytest.raises(UserError) as caught:
        corpus.text(0)
    assert one_line(caught.value, "has no tokenizer")
