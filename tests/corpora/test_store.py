import random
import shutil

import numpy as np
import pytest
from tiny_text import SHARED, TEXTS, build_tiny, one_line, tiny_tokenizer

from hornbook.corpora.folders import STORE_FILES, splits_of
from hornbook.corpora.megatron import IndexedWriter
from hornbook.corpora.store import open_store
from hornbook.errors import DataError
from hornbook.text.tokenizer import Tokenizer

MEGATRON = SHARED / "megatron"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A corpus that tests may read but not change."""
    folder = tmp_path_factory.mktemp("built") / "corpus"
    build_tiny(folder)
    return folder


@pytest.fixture
def corpus(built, tmp_path):
    """A corpus of the test's own."""
    return shutil.copytree(built, tmp_path / "corpus")


def write(prefix, documents):
    with IndexedWriter(prefix, "uint16") as writer:
        for document in documents:
            writer.add_document(document)
    return prefix


def test_a_store_says_what_it_is(built):
    store = open_store(built)
    assert (store.end_of_text, store.end_of_text_id, store.vocab_size) == ("stored", 299, 300)
    assert store.tokenizer().digest == tiny_tokenizer().digest
    assert store.document_lengths.dtype == np.int64
    assert store.document_lengths.sum() == store.num_tokens
    assert store.rows["num_bytes"].sum() == store.num_bytes
    for number in (0, 7, store.num_documents - 1):
        document = store.document(number)
        assert (len(document), document.dtype) == (store.document_lengths[number], np.uint16)
        assert np.array_equal(store.read(number, 2, 5), document[2:7])
        assert len(store.tokenizer().decode(document[:-1]).encode()) == store.rows[number]["num_bytes"]
    with pytest.raises(IndexError):
        store.document(store.num_documents)
    with pytest.raises(IndexError):
        store.read(0, 0, len(store.document(0)) + 1)


def test_a_store_is_named_by_folder_corpus_or_prefix(built):
    store = open_store(built / "train")
    for name in (built, str(built), built / "train" / "tokens", built / "train" / "tokens.bin"):
        assert open_store(name).fingerprint == store.fingerprint
        assert open_store(name).path == built / "train"
    assert open_store(built / "train" / "tokens.idx", "validation").path == built / "train", "it is a store by itself"
    assert open_store(built, "validation").path == built / "validation"
    assert (splits_of(built), splits_of(built / "train")) == (("train", "validation"), ())


def test_the_fingerprint_is_that_of_the_contents(built, tmp_path):
    original = open_store(built).fingerprint
    assert open_store(shutil.copytree(built, tmp_path / "moved")).fingerprint == original
    assert open_store(built, "validation").fingerprint != original
    build_tiny(tmp_path / "inserted", end_of_text="inserted")
    assert open_store(tmp_path / "inserted").fingerprint != original


@pytest.mark.skipif(not MEGATRON.exists(), reason="../shared/data/megatron is not there")
def test_a_real_store_of_others():
    store = open_store(MEGATRON)
    assert (store.num_documents, store.num_tokens, store.indexed.dtype) == (1000, 1_361_845, np.uint16)
    assert (store.end_of_text, store.end_of_text_id) == ("stored", 4999)
    unknown = (store.num_bytes, store.rows, store.vocab_size, store.manifest, store.tokenizer())
    assert unknown == (None,) * 5 and store.source(0) is None
    tokenizer = Tokenizer.load(MEGATRON)
    assert tokenizer.end_of_text_id == 4999
    decoded = tokenizer.decode(store.document(3)[:-1])
    assert tokenizer.encode(decoded) == store.document(3)[:-1].tolist()
    assert open_store(MEGATRON / "meg-gpt2-openwebtext_text_document").fingerprint == store.fingerprint


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ([[1, 2, 0], [3, 0], [0]], ("stored", 0)),
        ([[1, 2, 9]] * 3000, ("stored", 9)),
        ([[1, 2, 0], [3, 0, 4, 0]], ("absent", None)),
        ([[1, 2, 0], [3, 4]], ("absent", None)),
        ([[1, 2, 0], []], ("absent", None)),
        ([[1, 2, 0]], ("absent", None)),
    ],
)
def test_the_end_of_text_of_others(tmp_path, documents, expected):
    store = open_store(write(tmp_path / "x", documents))
    assert (store.end_of_text, store.end_of_text_id) == expected


def test_the_fingerprint_of_others(tmp_path):
    fingerprints = {
        open_store(write(tmp_path / f"x{number}", documents)).fingerprint
        for number, documents in enumerate([[[1, 2], [3]], [[1, 2], [4]], [[1], [2, 3]], [[1, 2], [3], [5]]])
    }
    assert len(fingerprints) == 4
    assert open_store(write(tmp_path / "again", [[1, 2], [3]])).fingerprint in fingerprints


def test_documents_of_several_sequences(tmp_path):
    with IndexedWriter(tmp_path / "x", "uint16") as writer:
        for document in ([[1, 2], [3]], [[4]]):
            for sentence in document:
                writer.add_sequence(sentence)
            writer.end_document()
    store = open_store(tmp_path / "x")
    assert store.document_lengths.tolist() == [3, 1]
    assert store.document(0).tolist() == [1, 2, 3]


def test_what_is_no_store(tmp_path, built):
    for folder in ("two", "none"):
        (tmp_path / folder).mkdir()
    write(tmp_path / "two" / "a", [[1]])
    write(tmp_path / "two" / "b", [[1]])
    write(tmp_path / "empty", [])
    for name, part in [
        ("nothing", "no such token store"),
        ("none", "found 0 .idx"),
        ("two", "found 2 .idx"),
        ("empty", "the store is empty"),
    ]:
        with pytest.raises(DataError) as caught:
            open_store(tmp_path / name)
        assert one_line(caught.value, str(tmp_path / name), part)
    with pytest.raises(DataError) as caught:
        open_store(built, "test")
    assert one_line(caught.value, "the corpus has no test split", f"such as {built / 'train'}")
    with pytest.raises(DataError) as caught:
        open_store(built.parent)
    assert one_line(caught.value, f"{built.parent}: not a token store, but a folder of some: name one of {built}")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").touch()
    with pytest.raises(DataError) as caught:
        open_store(tmp_path / "run")
    assert one_line(caught.value, f"{tmp_path / 'run'}: a run, not a token store; its recipe.toml names")
    with pytest.raises(DataError) as caught:
        open_store(tmp_path / "hf:owner/name")
    assert one_line(caught.value, "hf:owner/name has texts on", "`hornbook corpus build hf:owner/name --tokenizer")


@pytest.mark.parametrize("name", [*STORE_FILES, "manifest.json"])
def test_a_missing_file(corpus, name):
    (corpus / "train" / name).unlink()
    with pytest.raises(DataError) as caught:
        open_store(corpus / "train")
    assert one_line(caught.value, str(corpus / "train" / name), "missing")


@pytest.mark.parametrize("name", [*STORE_FILES, "manifest.json"])
def test_a_file_cut_at_any_place(corpus, name):
    path = corpus / "train" / name
    data = path.read_bytes()
    for size in {0, 1, len(data) // 2, len(data) - 2, *random.Random(3).sample(range(len(data) - 1), 5)}:
        path.write_bytes(data[:size])
        with pytest.raises(DataError) as caught:
            open_store(corpus)
        assert one_line(caught.value, str(path))


def test_files_of_two_stores_are_not_mixed(corpus):
    for name in ("tokens.bin", "tokens.idx", "documents.npy"):
        original = (corpus / "train" / name).read_bytes()
        shutil.copy(corpus / "validation" / name, corpus / "train" / name)
        with pytest.raises(DataError) as caught:
            open_store(corpus)
        assert one_line(caught.value, name, "the manifest expects")
        (corpus / "train" / name).write_bytes(original)


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        (b'"num_documents": 4', b'"num_documents": 3', "disagree"),
        (b'"dtype": "uint16"', b'"dtype": "int32"', "disagree"),
        (b'"num_bytes": ', b'"num_bytes": 1', "do not sum"),
        (b'"sources": [\n', b'"sources": [], "options": {}, "rest": [\n', "a source that the manifest does not list"),
    ],
)
def test_a_manifest_that_does_not_fit(corpus, old, new, part):
    path = corpus / "train" / "manifest.json"
    data = path.read_bytes()
    assert old in data
    data = data.replace(b'"checksum": ', b'"none": ')  # one that agrees with the rest says nothing of the sense
    data = data.replace(b'"options": {', b'"was": {') if b"options" in new else data
    path.write_bytes(data.replace(old, new))
    with pytest.raises(DataError) as caught:
        _ = open_store(corpus).rows
    assert one_line(caught.value, part)


def test_rows_with_mutated_bytes_are_refused_in_one_line_or_read(corpus):
    rng = random.Random(4)
    path = corpus / "train" / "documents.npy"
    original = path.read_bytes()
    refused = 0
    for _ in range(400):
        data = bytearray(original)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data) if rng.random() < 0.5 else 128)] = rng.randrange(256)
        path.write_bytes(data)
        try:
            store = open_store(corpus)
            assert all(store.source(number)[0] in store.manifest.sources for number in range(store.num_documents))
        except DataError as error:
            refused += 1
            assert one_line(error, str(path))
    assert refused > 200


def test_open_stores_of_one_tokenizer_load_it_once(built, tmp_path, monkeypatch):
    loads, load = [], Tokenizer.load
    monkeypatch.setattr(Tokenizer, "load", lambda path: loads.append(path) or load(path))
    stores = [open_store(built, split) for split in ("train", "validation", "train")]
    assert len({id(store.tokenizer()) for store in stores}) == len(loads) == 1
    corpus = shutil.copytree(built, tmp_path / "corpus")
    other = corpus / "train" / "tokenizer.json"
    shorter = Tokenizer.train(TEXTS[:50], 260).to_json().encode()
    other.write_bytes(shorter.ljust(other.stat().st_size))
    with pytest.raises(DataError, match="is not the tokenizer that the store"):
        open_store(corpus).tokenizer()


def test_a_tokenizer_of_another_store(corpus):
    path = corpus / "train" / "tokenizer.json"
    other = Tokenizer.train(TEXTS[:50], 300).to_json().encode()
    path.write_bytes(other.ljust(path.stat().st_size)[: path.stat().st_size])
    with pytest.raises(DataError) as caught:
        open_store(corpus).tokenizer()
    assert one_line(caught.value, str(path))
