from dataclasses import replace

import numpy as np
import pytest
from tiny_formats import BERT_TFRECORD, same
from tiny_sentences import sentence_store
from tiny_text import SHARED

from hornbook.corpora.store import open_store
from hornbook.errors import StorageError, UserError
from hornbook.interop.convert.bert_tfrecord import read_plain
from hornbook.interop.convert.conversion import read_instances
from hornbook.interop.formats.tfrecord import find_tfrecords
from hornbook.interop.instances.instance_builder import InstanceOptions, build_instances
from hornbook.storage.faults import inject
from hornbook.text.sentences import split_lines
from hornbook.text.tokenizer import Tokenizer

WORDS = ["river", "town", "cats", "dogs", "running", "slowly", "old", "small", "seen", "unbelievable", "and", "near"]
OPTIONS = InstanceOptions(sequence_length=32, max_predictions=5, duplicates=3, seed=7)


def texts(count=15):
    """Documents that begin all of their sentences with a word of their own."""
    draw = np.random.default_rng(4)
    return [
        [
            f"{chr(97 + number)}x " + " ".join(draw.choice(WORDS, draw.integers(2, 9)))
            for _ in range(draw.integers(1, 9))
        ]
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train([sentence for one in texts() for sentence in one], 160, kind="wordpiece")


@pytest.fixture(scope="module")
def store(tmp_path_factory, tokenizer):
    documents = [[tokenizer.encode(sentence) for sentence in one] for one in texts()]
    return open_store(sentence_store(tmp_path_factory.mktemp("builder") / "store", documents, tokenizer=tokenizer))


def build(store, path, **changes):
    options = replace(OPTIONS, **changes)
    report = build_instances(store, path, options)
    return list(read_instances(path, options.format_name)), report


def restored(instance):
    """The texts of a pair before they were masked, and what was laid around them is checked."""
    tokens = instance.tokens.copy()
    tokens[instance.positions] = instance.labels
    return tokens


def contains(document, part):
    return any(document[start : start + len(part)] == part for start in range(len(document) - len(part) + 1))


@pytest.mark.parametrize("format_name", ["bert-tfrecord", "bert-tfrecord-remasked", "bert-arrow"])
@pytest.mark.parametrize("whole_words", [False, True])
def test_instances_are_pairs_of_the_store(store, tokenizer, tmp_path, format_name, whole_words):
    found, report = build(store, tmp_path / "out", format_name=format_name, whole_words=whole_words)
    special = tokenizer.require_masking()
    documents = [store.document(number).tolist() for number in range(store.num_documents)]
    for instance in found:
        tokens = restored(instance)
        assert len(tokens) <= 32 and 1 <= len(instance.positions) <= 5
        ends = np.flatnonzero(tokens == special.sep)
        assert tokens[0] == special.cls and len(ends) == 2 and ends[1] == len(tokens) - 1
        assert instance.segments.tolist() == [0] * (ends[0] + 1) + [1] * (ends[1] - ends[0])
        first, second = tokens[1 : ends[0]].tolist(), tokens[ends[0] + 1 : -1].tolist()
        assert first and second
        together = [contains(one, first) and contains(one, second) for one in documents]
        assert instance.next_sentence_label or any(together)
        assert not np.isin(instance.labels, (special.cls, special.sep)).any()
    assert report.instances == len(found)
    assert report.random_pairs == sum(instance.next_sentence_label for instance in found)
    assert report.tokens == sum(len(instance.tokens) for instance in found)
    assert report.masked == sum(len(instance.positions) for instance in found)


def test_the_number_of_masks(store, tmp_path):
    found, _ = build(store, tmp_path / "plain")
    for instance in found:
        assert len(instance.positions) == min(5, max(1, round(len(instance.tokens) * 0.15)))
    found, _ = build(store, tmp_path / "front", format_name="bert-tfrecord-remasked")
    assert all(len(instance.tokens) - len(instance.positions) + 5 <= 32 for instance in found)


def test_passes_differ_and_the_seed_decides(store, tmp_path):
    found, report = build(store, tmp_path / "a")
    again, _ = build(store, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert same(found, again)
    once, one_pass = build(store, tmp_path / "c", duplicates=1)
    assert same(found[: len(once)], once)
    assert 2.5 * one_pass.instances < report.instances < 3.5 * one_pass.instances
    assert len({instance.tokens.tobytes() for instance in found}) > 0.98 * len(found)
    build(store, tmp_path / "d", seed=8)
    assert (tmp_path / "d").read_bytes() != (tmp_path / "a").read_bytes()


def test_shards_hold_the_same(store, tmp_path):
    found, _ = build(store, tmp_path / "one")
    sharded, _ = build(store, tmp_path / "many", records_per_file=20)
    assert same(found, sharded)
    assert len(find_tfrecords(tmp_path / "many")) == -(-len(found) // 20)


def test_beside_the_file_of_googles_script(tmp_path):
    """Its options but for the seed: structure, lengths and shares are alike; one such file varies between 50 and 86."""
    sample = SHARED / "text" / "bert_sample_text.txt"
    vocabulary = SHARED / "tokenizers" / "bert-base-uncased"
    if not (BERT_TFRECORD.exists() and sample.exists() and vocabulary.exists()):
        pytest.skip(f"{SHARED} is not there")
    tokenizer = Tokenizer.load(vocabulary)
    blocks = sample.read_text().split("\n\n")
    documents = [[tokenizer.encode(line) for line in split_lines(block)] for block in blocks if block.strip()]
    store = open_store(sentence_store(tmp_path / "store", documents, tokenizer=tokenizer))
    build_instances(store, tmp_path / "out.tfrecord", InstanceOptions(duplicates=5))
    ours, theirs = read_plain(tmp_path / "out.tfrecord"), read_plain(BERT_TFRECORD)
    assert (ours.sequence_length, ours.max_predictions) == (theirs.sequence_length, theirs.max_predictions)
    vocabularies = [{int(token) for one in content for token in restored(one)} for content in (ours, theirs)]
    assert len(vocabularies[0] ^ vocabularies[1]) < 0.15 * len(vocabularies[1])
    means = [np.mean([len(one.tokens) for one in content]) for content in (ours, theirs)]
    assert abs(means[0] - means[1]) < 15
    assert 50 <= len(list(ours)) <= 86
    for one in (*ours, *theirs):
        assert (one.tokens[0], one.tokens[-1], one.segments[0], one.segments[-1]) == (101, 102, 0, 1)
        assert np.count_nonzero(one.tokens == 102) == 2
        assert 0.13 * len(one.tokens) - 1 < len(one.positions) <= 20


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequence_length": 4}, "at least 5 tokens; got 4"),
        ({"max_predictions": 30}, "expected 1 to 29"),
        ({"max_predictions": 0}, "expected 1 to 29"),
        ({"duplicates": 0}, "one pass"),
        ({"mask_probability": 0.0}, "must be between 0 and 1"),
        ({"format_name": "npy"}, "not a format of instances"),
        ({"format_name": "bert-arrow", "records_per_file": 3}, "leave out `records_per_file`"),
    ],
)
def test_bad_options(store, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        build_instances(store, tmp_path / "out", replace(OPTIONS, **changes))
    assert not list(tmp_path.iterdir())


def test_bad_stores(store, tokenizer, tmp_path):
    plain = Tokenizer.train(["a text"], 257)
    without = open_store(sentence_store(tmp_path / "gpt", [[[1]], [[2]]], tokenizer=plain))
    with pytest.raises(UserError, match=r"no token \[CLS\] or <s>"):
        build_instances(without, tmp_path / "out", OPTIONS)
    with pytest.raises(UserError, match="made with another tokenizer"):
        build_instances(store, tmp_path / "out", OPTIONS, plain)
    (tmp_path / "there").touch()
    with pytest.raises(UserError, match="exists already"):
        build_instances(store, tmp_path / "there", OPTIONS)
    roberta = Tokenizer.train(["some words of a text"] * 3, 270, kind="roberta")
    zeros = open_store(sentence_store(tmp_path / "roberta", [[[20]], [[21]]], tokenizer=roberta))
    with pytest.raises(UserError, match="token 0 for padding"):
        build_instances(zeros, tmp_path / "out", replace(OPTIONS, format_name="bert-tfrecord-remasked"))


def test_a_store_without_a_manifest_needs_its_tokenizer(store, tokenizer, tmp_path):
    for suffix in (".bin", ".idx"):
        (tmp_path / f"others{suffix}").write_bytes((store.path / f"tokens{suffix}").read_bytes())
    others = open_store(tmp_path / "others")
    with pytest.raises(UserError, match="name it with `tokenizer`"):
        build_instances(others, tmp_path / "out", OPTIONS)
    build_instances(others, tmp_path / "out", OPTIONS, tokenizer)
    build_instances(store, tmp_path / "own", OPTIONS)
    assert (tmp_path / "out").read_bytes() == (tmp_path / "own").read_bytes()
    small = Tokenizer.train(["xyz"], 100, kind="wordpiece")
    with pytest.raises(UserError, match="name the right one"):
        build_instances(others, tmp_path / "third", OPTIONS, small)


@pytest.mark.parametrize("changes", [{}, {"records_per_file": 10}, {"format_name": "bert-arrow"}])
def test_a_full_disk_leaves_nothing(store, tmp_path, changes):
    with inject("write", 1, "enospc"), pytest.raises(StorageError):
        build_instances(store, tmp_path / "out", replace(OPTIONS, **changes))
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "lock"]
