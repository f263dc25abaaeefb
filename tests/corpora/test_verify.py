import json
import random
import shutil
from dataclasses import replace

import numpy as np
import pytest
from tiny_text import build_tiny, one_line

from hornbook.__main__ import main
from hornbook.corpora.folders import STORE_FILES, Manifest, read_record
from hornbook.corpora.inspection import verify_store
from hornbook.corpora.megatron import IndexedWriter
from hornbook.errors import DataError
from hornbook.formats.npy import npy_bytes
from hornbook.storage import Written, sha256_file


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built") / "corpus"
    build_tiny(folder)
    return folder


def test_a_sound_store(built):
    found = verify_store(built, "validation")
    assert found.files == STORE_FILES and found.store == str(built / "validation")
    assert verify_store(built / "train").documents + found.documents == 60


@pytest.mark.parametrize("name", STORE_FILES)
def test_a_flipped_bit_anywhere(built, tmp_path, name):
    corpus = shutil.copytree(built, tmp_path / "corpus")
    path = corpus / "train" / name
    original = path.read_bytes()
    rng = random.Random(name)
    for place in rng.sample(range(len(original)), 25):
        data = bytearray(original)
        data[place] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        with pytest.raises(DataError) as caught:
            verify_store(corpus)
        assert one_line(caught.value, str(path), "damaged")
    path.unlink()
    with pytest.raises(DataError, match="missing"):
        verify_store(corpus)


def rewrite(corpus, change):
    """Change tokens and let the manifest agree, as a program with a slip would."""
    path = corpus / "train" / "tokens.bin"
    tokens = np.fromfile(path, dtype="uint16")
    change(tokens)
    tokens.tofile(path)
    seal(path.parent)


def seal(store, **changes):
    """Let the manifest agree with the files, but for ``changes``."""
    manifest = Manifest.read(store)
    files = {
        name: Written(size=(store / name).stat().st_size, sha256=sha256_file(store / name)) for name in STORE_FILES
    }
    (store / "manifest.json").write_bytes(replace(manifest, files=files, **changes).to_bytes())


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("source", [-1]),
        ("source", [2**31 - 1]),
        ("offset", [-1]),
        ("offset", [2**63 - 1]),
        ("num_bytes", [-1]),
        ("num_bytes", [2**63 - 1]),
        ("num_bytes", [2**62] * 4),  # which adds nothing in 64 bits
    ],
)
def test_rows_that_no_build_writes(built, tmp_path, column, values):
    store = shutil.copytree(built, tmp_path / "corpus") / "train"
    path = store / "documents.npy"
    rows = np.load(path)
    for row, value in enumerate(values):
        rows[column][row] = value if len(values) == 1 else rows[column][row] + value
    path.write_bytes(npy_bytes(rows))
    seal(store)
    with pytest.raises(DataError) as caught:
        verify_store(store)
    assert one_line(caught.value, str(path), "build the store again")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 301}, "the vocabulary has 301 ids, but that of the tokenizer 300"),
        ({"vocab_size": 10**30}, "expected vocab_size to be an integer from 0 to 2147483648"),
        ({"end_of_text_id": 65535}, "expected end_of_text_id to be an integer from 0 to 299"),
        ({"end_of_text_id": 10**30}, "expected end_of_text_id to be an integer from 0 to 299"),
        ({"end_of_text": "inserted", "end_of_text_id": 300}, "expected end_of_text_id to be an integer from 0 to 299"),
        ({"end_of_text": "inserted", "end_of_text_id": 7}, "the end-of-text token is 7, but that of the tokenizer 299"),
    ],
)
def test_a_manifest_that_does_not_fit_its_tokenizer(built, tmp_path, changes, message):
    store = shutil.copytree(built, tmp_path / "corpus") / "train"
    seal(store, **changes)
    with pytest.raises(DataError) as caught:
        verify_store(store)
    assert one_line(caught.value, str(store / "manifest.json"), message)


def test_ids_that_the_tokenizer_does_not_have(built, tmp_path):
    corpus = shutil.copytree(built, tmp_path / "corpus")
    rewrite(corpus, lambda tokens: tokens.__setitem__(5, 300))
    with pytest.raises(DataError) as caught:
        verify_store(corpus)
    assert one_line(caught.value, "tokens.bin", "token 5 is 300; expected 0 to 299")


def test_a_document_without_its_end(built, tmp_path):
    corpus = shutil.copytree(built, tmp_path / "corpus")
    rewrite(corpus, lambda tokens: tokens.__setitem__(-1, 5))
    with pytest.raises(DataError) as caught:
        verify_store(corpus)
    assert one_line(caught.value, "tokens.bin", "does not end with the end-of-text token 299")


def test_ends_that_readers_are_to_put_in_although_they_are_there(built, tmp_path):
    path = shutil.copytree(built, tmp_path / "corpus") / "train" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"checksum": None, "end_of_text": "inserted"}))
    with pytest.raises(DataError) as caught:
        verify_store(tmp_path / "corpus")
    assert one_line(
        caught.value, "tokens.bin", "all documents end with the end-of-text token 299", "build the store again"
    )
    build_tiny(tmp_path / "inserted", end_of_text="inserted")
    assert verify_store(tmp_path / "inserted").documents > 0


def test_stores_of_others(tmp_path):
    with IndexedWriter(tmp_path / "x", "int32") as writer:
        writer.add_document([1, 2])
        writer.add_document([3, 2])
    found = verify_store(tmp_path / "x")
    assert (found.files, found.documents, found.tokens) == ((), 2, 4)
    (tmp_path / "x.bin").write_bytes(np.array([1, 2, -3, 2], dtype="<i4").tobytes())
    with pytest.raises(DataError) as caught:
        verify_store(tmp_path / "x")
    assert one_line(caught.value, "x.bin", "token 2 is -3")
    with IndexedWriter(tmp_path / "y", "int64") as writer:
        writer.add_document([1, 2**31])
    with pytest.raises(DataError) as caught:
        verify_store(tmp_path / "y")
    assert one_line(caught.value, "y.bin", "token 1 is 2147483648; expected 0 to 2147483647")


@pytest.mark.parametrize("content", ["{", "[]", '{"format": "hornbook corpus", "format_version": 1, "request": 1}'])
def test_a_damaged_record_of_the_build(built, tmp_path, content):
    corpus = shutil.copytree(built, tmp_path / "corpus")
    assert main(["corpus", "verify", str(corpus)]) == main(["corpus", "verify", str(corpus / "train")]) == 0
    (corpus / "build.json").write_text(content)
    with pytest.raises(DataError) as caught:
        read_record(corpus)
    assert one_line(caught.value, "build.json", "the record of", "restore the file")
    assert main(["corpus", "verify", str(corpus)]) == 2


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("part", ["", "manifest.json"])
def test_a_split_that_has_vanished(built, tmp_path, capsys, split, part):
    corpus = shutil.copytree(built, tmp_path / "corpus")
    gone = corpus / split / part
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    assert main(["corpus", "verify", str(corpus)]) == 2
    assert f"{corpus / split / 'manifest.json'} is missing, but the corpus was" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("train/manifest.json", "/texts/0.txt", "/texts/8.txt"),
        ("train/manifest.json", '"validation": 0.25', '"validation": 0.26'),
        ("build.json", '"validation": 0.25', '"validation": 0.0'),
    ],
)
def test_provenance_and_options_have_a_checksum(built, tmp_path, capsys, name, old, new):
    path = shutil.copytree(built, tmp_path / "corpus") / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert main(["corpus", "verify", str(tmp_path / "corpus")]) == 2
    assert str(path) in capsys.readouterr().err
    values = json.loads(text)
    del values["checksum"]  # as an earlier version wrote it
    path.write_text(json.dumps(values))
    assert main(["corpus", "verify", str(tmp_path / "corpus")]) == 0
