import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_formats import BERT_TFRECORD, documents, instances, lists, same
from tiny_sentences import sentence_store
from tiny_text import SHARED, build_tiny, tiny_tokenizer

from hornbook.corpora.inspection import verify_store
from hornbook.corpora.megatron import IndexedWriter
from hornbook.corpora.store import open_store
from hornbook.errors import DataError, StorageError, UserError
from hornbook.interop.convert import DOCUMENT_FORMATS, INSTANCE_FORMATS
from hornbook.interop.convert.bert_tfrecord import write_plain
from hornbook.interop.convert.conversion import ConvertOptions, convert, read_documents, read_instances
from hornbook.interop.convert.pickled_lists import write_pickle
from hornbook.storage import write_file
from hornbook.storage.faults import inject
from hornbook.text.tokenizer import Tokenizer

LISTS = [[5, 6, 7, 299], [8, 9, 10, 299], [1, 2, 3, 299]]
STORED = {"end_of_text": "stored", "tokenizer": tiny_tokenizer()}
ENDINGS = {"pickle": ".pkl", "npy": ".npy", "tfrecord": ".tfrecord"}


def options(target_format=None, **values):
    if target_format == "store":
        values = {"tokenizer": tiny_tokenizer(), "end_of_text": "stored"} | values
    return ConvertOptions(target_format=target_format, **values)


@pytest.fixture
def pickled(tmp_path):
    write_pickle(tmp_path / "source.pkl", documents(LISTS))
    return tmp_path / "source.pkl"


@pytest.mark.parametrize(("source", "target"), list(itertools.product(DOCUMENT_FORMATS, repeat=2)))
def test_documents_from_each_format_to_each(tmp_path, pickled, source, target):
    old, new = tmp_path / f"old{ENDINGS.get(source, '')}", tmp_path / f"new{ENDINGS.get(target, '')}"
    convert(pickled, old, options(source, verify=True))
    report = convert(old, new, options(target, verify=True))
    assert (report.source_format, report.target_format, report.kind) == (source, target, "documents")
    assert (report.items, report.tokens, report.verified) == (3, 12, True)
    assert lists(read_documents(new, target)) == LISTS


@pytest.mark.parametrize(("source", "target"), list(itertools.product(INSTANCE_FORMATS, repeat=2)))
def test_instances_from_each_format_to_each(tmp_path, source, target):
    if "bert-arrow" in (source, target):
        pytest.importorskip("pyarrow", reason="pyarrow, the extra 'arrow', is not installed")
    write_plain(tmp_path / "source.tfrecord", instances())
    convert(tmp_path / "source.tfrecord", tmp_path / "old", options(source, source_format="bert-tfrecord", verify=True))
    most = {} if target == "bert-arrow" else {"max_predictions": 4}
    given = options(target, source_format=source, verify=True, **most)
    report = convert(tmp_path / "old", tmp_path / "new", given)
    assert (report.kind, report.items, report.tokens) == ("instances", 3, 26)
    assert same(read_instances(tmp_path / "new", target), instances())


@pytest.mark.parametrize(("source", "target"), list(itertools.product(DOCUMENT_FORMATS, INSTANCE_FORMATS)))
def test_one_kind_cannot_be_made_of_the_other(tmp_path, source, target):
    for one, other, holds in ((source, target, "has documents"), (target, source, "has BERT's masked instances")):
        with pytest.raises(UserError, match=holds):
            convert(tmp_path / "x", tmp_path / "y", options(other, source_format=one))


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason="../shared/data is not there")
def test_real_files(tmp_path):
    prefix = SHARED / "megatron" / "meg-gpt2-openwebtext_text_document"
    report = convert(prefix, tmp_path / "x.pkl", options(verify=True))
    assert (report.items, report.tokens) == (1000, 1_361_845)
    report = convert(tmp_path / "x.pkl", tmp_path / "x.tfrecord", options(sequence_length=129, verify=True))
    assert (report.items, report.left_out_tokens) == (10_556, 1_361_845 - 10_556 * 129)
    given = options("megatron", split_at_end_of_text=True, end_of_text_id=4999, verify=True)
    report = convert(tmp_path / "x.tfrecord", tmp_path / "back", given)
    assert (
        report.items == 1000
        and lists(read_documents(tmp_path / "back", "megatron"))[:900]
        == lists(read_documents(prefix, "megatron"))[:900]
    )
    report = convert(BERT_TFRECORD, tmp_path / "r.tfrecord", options("bert-tfrecord-remasked", verify=True))
    assert (report.items, report.tokens) == (45, 4819)


def test_a_split_stream_has_ends_whatever_the_store_said(tmp_path, pickled):
    convert(pickled, tmp_path / "s", options("store", end_of_text="stored"))
    manifest = json.loads((tmp_path / "s" / "manifest.json").read_text())
    (tmp_path / "s" / "manifest.json").write_text(
        json.dumps(manifest | {"checksum": None, "end_of_text": "absent", "end_of_text_id": None})
    )
    given = options("store", tokenizer=None, end_of_text=None, split_at_end_of_text=True)
    with pytest.raises(UserError, match="add `end_of_text='stored'` or `end_of_text='inserted'`"):
        convert(tmp_path / "s", tmp_path / "t", given)


def test_end_of_text(tmp_path, pickled):
    report = convert(pickled, tmp_path / "s", options("store", end_of_text="inserted", verify=True))
    store = open_store(tmp_path / "s")
    assert (report.tokens, store.end_of_text, store.document(1).tolist()) == (9, "inserted", [8, 9, 10])
    verify_store(tmp_path / "s")
    convert(tmp_path / "s", tmp_path / "t", options("store", tokenizer=None, end_of_text=None, verify=True))
    assert open_store(tmp_path / "t").end_of_text == "inserted"
    convert(tmp_path / "s", tmp_path / "x.npy", options(verify=True))
    assert lists(read_documents(tmp_path / "x.npy", "npy"))[1] == [8, 9, 10]
    convert(tmp_path / "s", tmp_path / "y.npy", options(end_of_text="stored", verify=True))
    assert lists(read_documents(tmp_path / "y.npy", "npy")) == LISTS
    convert(pickled, tmp_path / "z.npy", options(end_of_text="inserted", end_of_text_id=10))
    assert lists(read_documents(tmp_path / "z.npy", "npy")) == LISTS


def test_sequences_and_documents(tmp_path, pickled):
    report = convert(pickled, tmp_path / "a.npy", options(sequence_length=5, verify=True))
    assert lists(read_documents(tmp_path / "a.npy", "npy")) == [[5, 6, 7, 299, 8], [9, 10, 299, 1, 2]]
    assert (report.items, report.tokens, report.left_out_tokens, report.left_out_documents) == (2, 10, 2, 0)
    report = convert(pickled, tmp_path / "b.npy", options(sequence_length=4, stride=3, verify=True))
    assert (report.items, report.left_out_tokens) == (3, 2)
    report = convert(pickled, tmp_path / "c.npy", options(sequence_length=2, crop=True, verify=True))
    assert lists(read_documents(tmp_path / "c.npy", "npy")) == [[5, 6], [8, 9], [1, 2]]
    assert report.left_out_tokens == 6
    given = options(split_at_end_of_text=True, end_of_text_id=299, verify=True)
    convert(tmp_path / "a.npy", tmp_path / "d.pkl", given)
    assert lists(read_documents(tmp_path / "d.pkl", "pickle")) == [*LISTS[:2], [1, 2]]


def test_instances_padded_otherwise(tmp_path):
    write_plain(tmp_path / "a.tfrecord", instances())
    given = options("bert-tfrecord-remasked", sequence_length=20, max_predictions=6, pad_position=512, verify=True)
    convert(tmp_path / "a.tfrecord", tmp_path / "b.tfrecord", given)
    back = read_instances(tmp_path / "b.tfrecord", "bert-tfrecord-remasked")
    assert (back.sequence_length, back.max_predictions) == (20, 6) and same(back, instances())
    assert bytes.fromhex("8004") in (tmp_path / "b.tfrecord").read_bytes()  # the varint of 512


def test_splits(tmp_path):
    build_tiny(tmp_path / "corpus")
    with pytest.raises(UserError, match="choose one with `split`"):
        convert(tmp_path / "corpus", tmp_path / "x.pkl", options())
    report = convert(tmp_path / "corpus", tmp_path / "x.pkl", options(split="validation", verify=True))
    assert report.items == open_store(tmp_path / "corpus", "validation").num_documents
    convert(tmp_path / "corpus" / "validation", tmp_path / "y", options("store", tokenizer=None))
    assert open_store(tmp_path / "y").manifest.split == "validation"
    convert(tmp_path / "x.pkl", tmp_path / "z", options("store", split="validation"))
    assert open_store(tmp_path / "z").manifest.split == "validation"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"target_format": "npy", "records_per_file": 5},
            "`records_per_file` has no effect in this conversion from pickle to npy",
        ),
        ({"target_format": "npy", "split": "train"}, "`split` has no effect"),
        ({"target_format": "npy", "stride": 5}, "`stride` has no effect"),
        ({"target_format": "npy", "end_of_text_id": 5}, "`end_of_text_id` has no effect"),
        ({"target_format": "npy", "crop": True}, "`crop` has no effect"),
        ({"target_format": "npy", "sequence_length": 3, "crop": True, "stride": 2}, "`stride` has no effect"),
        ({"target_format": "npy", "max_predictions": 5}, "`max_predictions` has no effect"),
        ({"target_format": "npy", "pad_position": 0}, "`pad_position` has no effect"),
        ({"target_format": "store", "sequence_length": 5}, "`sequence_length` has no effect"),
        ({"target_format": "store", "split": "test"}, "is 'test'; for a store, expected train or validation"),
        ({"target_format": "store", "end_of_text": "stored"}, "add `tokenizer` or `end_of_text_id`"),
        ({"target_format": "store", "end_of_text": "stored", "end_of_text_id": 299}, "add `tokenizer`"),
        ({"target_format": "store"}, "add `end_of_text='stored'` or `end_of_text='inserted'`"),
        ({"target_format": "npy", "end_of_text": "stored"}, "`end_of_text` requires the id"),
        ({"target_format": "npy", "split_at_end_of_text": True}, "`split_at_end_of_text` requires the id"),
        ({}, "no format has this suffix; set it with `target_format` to one of"),
    ],
)
def test_options_that_do_not_fit(tmp_path, pickled, given, message):
    with pytest.raises(UserError, match=message):
        convert(pickled, tmp_path / "out", ConvertOptions(**given))
    assert [entry.name for entry in tmp_path.iterdir()] == ["source.pkl"]


def test_options_of_documents_do_not_fit_instances(tmp_path):
    write_plain(tmp_path / "a.tfrecord", instances())
    for name, value in (("tokenizer", tiny_tokenizer()), ("end_of_text", "stored"), ("end_of_text_id", 0)):
        with pytest.raises(UserError, match=f"`{name}` has no effect"):
            convert(tmp_path / "a.tfrecord", tmp_path / "b.tfrecord", ConvertOptions(**{name: value}))


def test_a_store_by_itself_has_no_splits(tmp_path, pickled):
    convert(pickled, tmp_path / "store", options("store"))
    with pytest.raises(UserError, match="`split` has no effect in this conversion from store to npy"):
        convert(tmp_path / "store", tmp_path / "x.npy", ConvertOptions(target_format="npy", split="validation"))


def test_two_end_of_text_tokens(tmp_path, pickled):
    with pytest.raises(
        UserError, match="`end_of_text_id` is 5, but the source or tokenizer has the end-of-text token 299; remove"
    ):
        convert(pickled, tmp_path / "x", options("store", end_of_text_id=5))


def test_a_tokenizer_that_ends_documents_otherwise_than_the_source(tmp_path):
    with IndexedWriter(tmp_path / "theirs", "int32") as writer:
        for tokens in ([5, 6, 9], [7, 8, 9]):
            writer.add_document(tokens)
    with pytest.raises(UserError, match="ends with token 9, but the tokenizer's end-of-text token is 299; use the"):
        convert(tmp_path / "theirs", tmp_path / "x", options("store", end_of_text=None))
    convert(tmp_path / "theirs", tmp_path / "x", options("store"))
    assert lists(read_documents(tmp_path / "x", "store")) == [[5, 6, 9, 299], [7, 8, 9, 299]]


def test_nothing_is_overwritten_and_nothing_is_left_of_nothing(tmp_path, pickled):
    (tmp_path / "x.npy").touch()
    with pytest.raises(UserError, match=r"x\.npy exists already"):
        convert(pickled, tmp_path / "x.npy", options())
    with pytest.raises(UserError, match=r"source\.pkl exists already"):
        convert(pickled, pickled, options())
    for target, given in (("y.tfrecord", options(sequence_length=99)), ("y.npy", options(sequence_length=99))):
        with pytest.raises(DataError, match="nothing to write"):
            convert(pickled, tmp_path / target, given)
    write_pickle(tmp_path / "empty.pkl", documents([]))
    for target_format in ("store", "megatron", "pickle"):
        with pytest.raises(DataError, match="nothing to write"):
            convert(tmp_path / "empty.pkl", tmp_path / "z", options(target_format))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["empty.pkl", "source.pkl", "x.npy"]


def test_a_damaged_source_leaves_nothing(tmp_path):
    some = [[number] * 500 for number in range(2000)]
    write_pickle(tmp_path / "source.pkl", documents(some))
    data = (tmp_path / "source.pkl").read_bytes()
    (tmp_path / "source.pkl").write_bytes(data[:-5])
    for target_format in DOCUMENT_FORMATS:
        with pytest.raises(DataError, match=r"source\.pkl: it is cut off|source\.pkl"):
            convert(
                tmp_path / "source.pkl",
                tmp_path / "out",
                options(target_format, tokenizer=None) if target_format != "store" else options("store"),
            )
    assert [entry.name for entry in tmp_path.iterdir()] == ["source.pkl"]


def test_verify_finds_what_a_disk_did(tmp_path, pickled, monkeypatch):
    import hornbook.interop.convert.conversion as module

    def damaging(path, documents):
        write_pickle(path, documents)
        write_file(path, path.read_bytes().replace(b"K\x09", b"K\x08"))

    monkeypatch.setattr(module, "write_pickle", damaging)
    with pytest.raises(StorageError, match="differs from what was written in document 1"):
        convert(pickled, tmp_path / "x.pkl", options(verify=True))
    monkeypatch.setattr(module, "write_pickle", lambda path, some: write_pickle(path, documents(lists(some)[:2])))
    with pytest.raises(StorageError, match="differs from what was written in document 2"):
        convert(pickled, tmp_path / "y.pkl", options(verify=True))


@pytest.mark.parametrize("target_format", DOCUMENT_FORMATS)
def test_a_full_disk(tmp_path, pickled, target_format):
    with inject("write", 1, "enospc"), pytest.raises(StorageError):
        convert(pickled, tmp_path / "new" / "x", options(target_format))
    assert not list((tmp_path / "new").iterdir())


def convert_until_killed(folder, target_format, fault):
    """Convert ``source.pkl`` to ``x`` in a process that dies at a fault point."""
    program = (
        "import os; from pathlib import Path; from hornbook.interop.convert.conversion import ConvertOptions, convert\n"
        "from hornbook.text.tokenizer import Tokenizer\n"
        "given = {'tokenizer': Tokenizer.load('tok'), 'end_of_text': 'stored'}\n"
        f"convert(Path('source.pkl'), Path('x'), ConvertOptions(target_format={target_format!r}, **given))"
    )
    tiny_tokenizer().save(folder / "tok")
    environment = os.environ | {"HORNBOOK_FAULT": fault}
    killed = subprocess.run([sys.executable, "-c", program], cwd=folder, env=environment)
    assert killed.returncode == 137


def test_a_file_of_the_user_with_the_name_of_a_killed_conversions_stays(tmp_path, pickled):
    convert_until_killed(tmp_path, "megatron", "rename:1:crash-after")
    (tmp_path / "x.bin").unlink()
    (tmp_path / "x.bin").write_text("mine")
    with pytest.raises(UserError, match=r"x.bin exists already; remove it, or choose another target"):
        convert(pickled, tmp_path / "x", options("megatron"))
    assert (tmp_path / "x.bin").read_text() == "mine"


@pytest.mark.parametrize("target_format", ["store", "megatron", "tfrecord"])
@pytest.mark.parametrize("fault", ["write:1:crash-after", "rename:1:crash-before", "rename:1:crash-after"])
def test_killed_and_started_again(tmp_path, pickled, target_format, fault):
    convert_until_killed(tmp_path, target_format, fault)
    is_done = target_format != "megatron" and fault == "rename:1:crash-after"
    given = options(target_format, tokenizer=tiny_tokenizer(), end_of_text="stored", verify=True)
    if is_done:
        with pytest.raises(UserError, match="exists already"):
            convert(pickled, tmp_path / "x", given)
    else:
        convert(pickled, tmp_path / "x", given)
    convert(pickled, tmp_path / "y", given)
    assert lists(read_documents(tmp_path / "x", target_format)) == LISTS
    for path in sorted(tmp_path.rglob("y*")) + sorted((tmp_path / "y").glob("*")):
        twin = Path(str(path).replace(f"{tmp_path}/y", f"{tmp_path}/x"))
        assert path.is_dir() or path.read_bytes() == twin.read_bytes()
    assert is_done or not list(tmp_path.glob(".*"))


def test_progress(tmp_path):
    write_pickle(tmp_path / "source.pkl", documents(itertools.repeat([1, 2, 3], 3000)))
    seen = []
    convert(tmp_path / "source.pkl", tmp_path / "x.bin", options(), lambda *counts: seen.append(counts))
    assert seen == [(1024, 3072), (2048, 6144)]
    assert open_store(tmp_path / "x").indexed.dtype == np.int32


def test_an_end_of_text_token_outside_the_vocabulary(tmp_path, pickled):
    bert = Tokenizer.train(["The cat sat."] * 9, 310, kind="wordpiece")
    write_pickle(tmp_path / "few.pkl", documents([[5, 6], [7]]))
    convert(tmp_path / "few.pkl", tmp_path / "s", options("store", tokenizer=bert, end_of_text=None))
    given = {"end_of_text": "stored", "end_of_text_id": 70_000}
    with pytest.raises(
        UserError, match=f"`end_of_text_id=70000` is not a token id; expected 0 to {bert.vocab_size - 1}"
    ):
        convert(tmp_path / "s", tmp_path / "x.bin", options(**given))
    with pytest.raises(UserError, match="expected 0 to 2,147,483,647"):
        convert(pickled, tmp_path / "x.bin", options(**(given | {"end_of_text_id": 1 << 31})))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["few.pkl", "s", "source.pkl"]


def test_a_store_of_a_tokenizer_without_end_of_text(tmp_path):
    bert = Tokenizer.train(["The cat sat."] * 9, 310, kind="wordpiece")
    given = {"tokenizer": bert, "end_of_text": None}
    write_pickle(tmp_path / "few.pkl", documents([[5, 6], [7]]))
    convert(tmp_path / "few.pkl", tmp_path / "s", options("store", verify=True, **given))
    store = open_store(tmp_path / "s")
    assert (store.end_of_text, store.end_of_text_id, store.document(0).tolist()) == ("absent", None, [5, 6])
    verify_store(tmp_path / "s")
    with IndexedWriter(tmp_path / "theirs", "int32") as writer:
        for tokens in ([5, 6, 9], [7, 8, 9]):
            writer.add_document(tokens)
    convert(tmp_path / "theirs", tmp_path / "t", options("store", **given))
    assert lists(read_documents(tmp_path / "t", "store")) == [[5, 6, 9], [7, 8, 9]]
    for name, value in (("end_of_text", "stored"), ("end_of_text_id", 9)):
        with pytest.raises(UserError, match=f"has no end-of-text token.*remove `{name}`"):
            convert(tmp_path / "few.pkl", tmp_path / "u", options("store", **(given | {name: value})))


def test_sentences_are_kept_or_said_to_be_joined(tmp_path):
    sentence_store(tmp_path / "s", [[[5, 6], [7]], [[8]]], tokenizer=tiny_tokenizer())
    for name, format_name, joined in (("a.bin", "megatron", False), ("b.npy", "npy", True), ("c", "store", False)):
        given = {"sequence_length": 2} if format_name == "npy" else {}
        report = convert(tmp_path / "s", tmp_path / name, options(format_name, verify=True, **given, **STORED))
        assert report.joined_sentences is joined
    assert open_store(tmp_path / "c").indexed.sizes.tolist() == [2, 2, 2]
    report = convert(tmp_path / "s", tmp_path / "d.bin", options(sequence_length=2))
    assert report.joined_sentences, "cut, they are none"


def test_a_damaged_store_is_not_verified(tmp_path, pickled):
    convert(pickled, tmp_path / "s", options("store"))
    path = tmp_path / "s" / "tokens.bin"
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    for source in (tmp_path / "s", path):
        with pytest.raises(DataError, match=r"tokens\.bin is damaged: its SHA-256 is "):
            convert(source, tmp_path / "x.bin", options(verify=True))
    assert not (tmp_path / "x.bin").exists()


def test_a_name_that_is_no_utf8(tmp_path, pickled):
    odd = pickled.rename(tmp_path / os.fsdecode(b"caf\xe9.pkl"))
    convert(odd, tmp_path / "s", options("store", verify=True))
    assert open_store(tmp_path / "s").source(0)[0].endswith("caf\\udce9.pkl")
