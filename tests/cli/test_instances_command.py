import json

import pytest
from tiny_sentences import sentence_store

from hornbook.cli.main import main
from hornbook.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    sentences = [[f"the {name} sat on the mat {number}" for number in range(9)] for name in ("cat", "dog", "bird")]
    tokenizer = Tokenizer.train([one for document in sentences for one in document], 100, kind="wordpiece")
    documents = [[tokenizer.encode(one) for one in document] for document in sentences]
    return str(sentence_store(tmp_path_factory.mktemp("instances") / "store", documents, tokenizer=tokenizer))


def test_instances_are_made_and_read_by_convert(store, tmp_path, capsys):
    target = str(tmp_path / "shards")
    words = ["corpus", "instances", store, target, "--sequence-length", "40", "--max-predictions", "6"]
    assert main([*words, "--duplicates", "2", "--remask", "--whole-words", "--records-per-file", "5", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["format"] == "bert-tfrecord-remasked"
    assert report["tokens"] > report["masked"] > report["instances"] > report["random_pairs"] > 0
    assert main(["corpus", "convert", target, str(tmp_path / "one.tfrecord"), "--verify"]) == 0
    counts = f"{report['instances']} instances, {report['tokens']:,} tokens"
    assert counts in capsys.readouterr().out
    for path, name in ((target, "bert-tfrecord-remasked"), (str(tmp_path / "one.tfrecord"), "bert-tfrecord")):
        assert main(["corpus", "inspect", path]) == 0
        printed = capsys.readouterr().out
        assert f"{name}, {counts}" in printed and "padded to 40 tokens, 6 predictions" in printed
        assert f"{report['full'] / report['instances']:.0%} without padding" in printed
        assert main(["corpus", "inspect", path, "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts["counts"] == {key: report[key] for key in facts["counts"]} and facts["max_predictions"] == 6


def test_options_of_corpora_and_documents(store, tmp_path, capsys):
    path = str(tmp_path / "pairs.tfrecord")
    assert main(["corpus", "instances", str(store), path, "--split", "train"]) == 2
    assert "--split applies only to a corpus, and " in capsys.readouterr().err
    assert main(["corpus", "instances", str(store), path]) == 0
    assert main(["corpus", "inspect", path, "--samples", "1"]) == 2
    assert f"--samples shows documents, but {path} contains instances" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--format", "bert-arrow", "--remask"], "--remask selects bert-tfrecord-remasked"),
        (["--sequence-length", "4"], "at least 5 tokens; got 4"),
        (["--max-predictions", "126"], "expected 1 to 125"),
        (["--mask-probability", "1.5"], "--mask-probability"),
        (["--seed", "-1"], "--seed"),
        (["--split", "validation"], "validation"),
    ],
)
def test_mistakes_take_one_line(store, tmp_path, capsys, words, message):
    folder = tmp_path / "corpus"
    source = store
    if "--split" in words:
        folder.mkdir()
        (folder / "train").symlink_to(store)
        source = str(folder)
    assert main(["corpus", "instances", source, str(tmp_path / "out.tfrecord"), *words]) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert message in error[-1]
    assert not (tmp_path / "out.tfrecord").exists()
