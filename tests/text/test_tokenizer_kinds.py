import json

import pytest
from tiny_text import one_line, tiny_tokenizer

from hornbook.errors import DataError
from hornbook.text.special_tokens import BERT_TOKENS
from hornbook.text.tokenizer_kinds import parse_rules, read_rules


@pytest.fixture
def folder(tmp_path):
    """A folder with every file that may hold a tokenizer, each with another vocabulary."""
    pairs = tiny_tokenizer().byte_pairs
    vocab = dict(pairs.vocab)
    (tmp_path / "tokenizer.json").write_text(pairs.to_json())
    (tmp_path / "dict.txt").write_text("".join(f"{number} 1\n" for number in range(300)))
    (tmp_path / "encoder.json").write_text(json.dumps(vocab))
    (tmp_path / "vocab.json").write_text(json.dumps({**vocab, "more": 300}))
    (tmp_path / "vocab.txt").write_text("\n".join(BERT_TOKENS))
    for name in ("vocab.bpe", "merges.txt"):
        (tmp_path / name).write_text("\n".join(" ".join(pair) for pair in pairs.merges))
    return tmp_path


def test_the_first_file_in_the_list_counts(folder):
    found = []
    for name in ("tokenizer.json", "dict.txt", "encoder.json", "merges.txt"):
        found.append(len(read_rules(folder).vocab))
        (folder / name).unlink()
    assert found == [300, 305, 300, 301]
    assert len(read_rules(folder).vocab) == 5
    (folder / "vocab.txt").unlink()
    with pytest.raises(DataError) as caught:
        read_rules(folder)
    assert one_line(caught.value, "holds no tokenizer: expected tokenizer.json", "vocab.txt")


def test_files_by_themselves(folder):
    assert len(read_rules(folder / "tokenizer.json").vocab) == 300
    assert len(read_rules(folder / "vocab.txt").vocab) == 5
    with pytest.raises(DataError) as caught:
        read_rules(folder / "vocab.json")
    assert one_line(caught.value, "it has no model; for a vocab.json and its merges name the folder")
    with pytest.raises(DataError, match=r"vocab\.txt: the vocabulary is missing"):
        read_rules(folder / "nothing" / "vocab.txt")


@pytest.mark.parametrize("model", [{"type": "Unigram"}, {"type": None}, {"type": {"a": 1}}, {"vocab": {}}])
def test_models_of_other_kinds(model):
    with pytest.raises(DataError) as caught:
        parse_rules(json.dumps({"model": {"vocab": {}} | model}).encode(), "t.json")
    assert one_line(caught.value, "t.json: its model is", "expected byte-level BPE or WordPiece")
