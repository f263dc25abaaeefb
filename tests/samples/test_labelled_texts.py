"""Labelled files become examples, classes and sequences; mistakes are reported with their line."""

import csv
import io

import numpy as np
import pytest
from tiny_labelled import labelled_rows, word_pieces, write_jsonl
from tiny_text import one_line

from hornbook.config import ClassificationConfig
from hornbook.errors import DataError, UserError
from hornbook.samples.labelled_samples import LabelledBatches
from hornbook.samples.labelled_texts import encode_examples, frame, label_numbers, labels_of, read_examples
from hornbook.text.special_tokens import ROBERTA_TOKENS
from hornbook.text.tokenizer import Tokenizer

PAIRS = ClassificationConfig(text="a", second_text="b", label="c")


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        ("x.jsonl", '{"c": 1, "b": "two, of\\nthem", "a": "one"}\n\n{"a": "x", "b": "y", "c": 0}', PAIRS),
        ("x.csv", '\ufeffa,c,b\none,1,"two, of\nthem"\nx,0,y\n', PAIRS),
        ("x.csv", 'one,"two, of\nthem",1\nx,y,0\n', ClassificationConfig(text="0", second_text="1", label="2")),
    ],
)
def test_the_same_examples_from_all_kinds_of_files(tmp_path, name, text, columns):
    examples = read_examples(write(tmp_path / name, text), columns)
    found = [(example.text, example.second_text, example.label) for example in examples]
    assert found == [("one", "two, of\nthem", "1"), ("x", "y", "0")]


def test_tabs_part_columns_and_quotes_are_text(tmp_path):
    (example,) = read_examples(write(tmp_path / "x.tsv", 'text\tlabel\nhe said "no, 1\tyes'), ClassificationConfig())
    assert (example.text, example.label) == ('he said "no, 1', "yes")


@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        ("x.jsonl", '{"text": "a"}', ["line 1", "'label' is missing (columns: 'text')", "`objective.label`"]),
        ("x.jsonl", '{"text": "a", "label": "b"}\n{"text": " ", "label": "b"}', ["line 2", "'text' has no text"]),
        (
            "x.jsonl",
            '{"text": "a", "label": "b"}\n{"text": "a"}',
            ["line 2", "'label' is missing", "; correct the line"],
        ),
        ("x.jsonl", '{"text": "a", "label": 0.5}', ["'label' is 0.5, expected a word or an integer"]),
        ("x.jsonl", '{"text": "a", "label": null}', ["'label' has no label"]),
        ("x.jsonl", '{"text": "a", "text": "b", "label": 1}', ["line 1", "not valid JSON"]),
        ("x.jsonl", "[1]", ["expected an object"]),
        ("x.jsonl", "\n", ["no examples"]),
        ("x.csv", "", ["'text' is missing (columns: none)"]),
        ("x.csv", "text;label\na;b\n", ["(columns: 'text;label'); separate the columns by commas in a .csv, by tabs"]),
        ("x.tsv", "text,label\na,b\n", ["(columns: 'text,label'); separate the columns by commas in a .csv, by tabs"]),
        (
            "x.jsonl",
            '{"text": "a"}'.encode("utf-16"),
            ["not UTF-8 at byte 0", "convert it by `iconv -f utf-16 -t utf-8`"],
        ),
        ("x.csv", "text,label\n", ["no examples"]),
        ("x.csv", "text,label\na,b\nc,d,e\n", ["line 3: 3 columns, but the table has 2"]),
        (
            "x.jsonl",
            '{"text": "a", "label": "b"}\n{"text": "a \\ud800", "label": "b"}',
            ["line 2: character 2 of 'text'"],
        ),
        ("x.csv", 'text,label\n"a,b\n', ["not a table"]),
        ("x.csv", "text,text,label\na,b,c\n", ["'text' is duplicated"]),
        ("x.csv", b"text,label\n\xff,b\n", ["not UTF-8 at byte 11"]),
        ("x.txt", "a", ["expected labeled texts in a .jsonl, .csv or .tsv file"]),
    ],
)
def test_mistakes_are_reported(tmp_path, name, text, parts):
    with pytest.raises(DataError) as caught:
        read_examples(write(tmp_path / name, text), ClassificationConfig())
    assert one_line(caught.value, name, *parts)


def test_a_column_out_of_range(tmp_path):
    with pytest.raises(
        DataError, match=r"'5' is out of range \(columns: '0', '1'\); name the right one by `objective.label`"
    ):
        read_examples(write(tmp_path / "x.csv", "a,b\n"), ClassificationConfig(text="0", label="5"))


def test_a_text_of_any_length_is_a_column(tmp_path):
    allowed, text = csv.field_size_limit(), "ab " * (1 << 17)
    (example,) = read_examples(write(tmp_path / "x.csv", f"text,label\n{text},yes\n"), ClassificationConfig())
    assert (example.text, csv.field_size_limit()) == (text, allowed)


def test_a_missing_file(tmp_path):
    with pytest.raises(DataError, match="the file of labeled texts is missing"):
        read_examples(str(tmp_path / "x.jsonl"), ClassificationConfig())


def examples_of(tmp_path, *labels):
    rows = [{"text": "a", "label": label} for label in labels]
    return read_examples(write_jsonl(tmp_path / "x.jsonl", rows), ClassificationConfig())


def test_classes_are_sorted_and_numbers_by_value(tmp_path):
    assert labels_of(examples_of(tmp_path, "b", "a", "b"), "x") == ("a", "b")
    assert labels_of(examples_of(tmp_path, 10, 9, -1, 0), "x") == ("-1", "0", "9", "10")
    expected = tuple(name for digit in "123456789" for name in (f"00{digit}", f"0{digit}", digit))
    assert labels_of(examples_of(tmp_path, *expected[::-1]), "x") == expected, "whatever a set's order"
    with pytest.raises(DataError, match="all examples have the same class, 'a'"):
        labels_of(examples_of(tmp_path, "a", "a"), "x")


def test_labels_become_numbers(tmp_path):
    assert label_numbers(examples_of(tmp_path, "b", "a"), ("b", "a")).tolist() == [0, 1]
    assert label_numbers(examples_of(tmp_path, 1, "bad"), ("bad", "good")).tolist() == [1, 0]
    for label, labels in ((2, ("bad", "good")), (0, ("1", "2")), ("godo", ("bad", "good"))):
        with pytest.raises(DataError, match=f"line 1: the label '{label}' is not among the 2 classes"):
            label_numbers(examples_of(tmp_path, label), labels)


def test_of_a_pair_the_longer_text_is_cut(tmp_path):
    tokenizer = word_pieces()
    row = {"a": "the whale the whale the whale", "b": "sea sea", "c": 0}
    examples = read_examples(write_jsonl(tmp_path / "x.jsonl", [row]), PAIRS)
    ((whole,), none), ((cut,), one) = (encode_examples(examples, tokenizer, length) for length in (11, 9))
    assert (none, one) == (0, 1)
    assert tokenizer.decode(whole.tokens) == "[CLS] the whale the whale the whale [SEP] sea sea [SEP]"
    assert tokenizer.decode(cut.tokens) == "[CLS] the whale the whale [SEP] sea sea [SEP]"
    assert cut.segments.tolist() == [0] * 6 + [1] * 3
    with pytest.raises(UserError, match="too short for a text"):
        encode_examples(examples, tokenizer, 4)


def test_truncated_texts_are_counted(tmp_path):
    tokenizer, columns = word_pieces(), ClassificationConfig()
    rows = [{"text": text} for text in ("the whale the whale", "sea", "the whale the")]
    examples = read_examples(write_jsonl(tmp_path / "x.jsonl", rows), columns, labelled=False)
    for is_causal, special in ((False, 2), (True, 0)):
        found = [encode_examples(examples, tokenizer, room + special, is_causal=is_causal) for room in (4, 3, 2)]
        assert [each.num_truncated for each in found] == [0, 1, 2]
        assert [len(sequence.tokens) - special for sequence in found[1].sequences] == [3, 1, 3]


def test_a_decoder_reads_the_texts_and_one_token_between_them(tmp_path):
    tokenizer = Tokenizer.train(["the whale and the sea"] * 9, 270, kind="byte-bpe")
    row = {"a": "the whale and the whale", "b": "the sea", "c": 0}
    examples = read_examples(write_jsonl(tmp_path / "x.jsonl", [row]), PAIRS)
    (whole,), _ = encode_examples(examples, tokenizer, 64, is_causal=True)
    assert tokenizer.decode(whole.tokens) == f"the whale and the whale{tokenizer.end_of_text}the sea"
    (cut,), num_truncated = encode_examples(examples, tokenizer, len(whole.tokens) - 1, is_causal=True)
    end = whole.tokens.tolist().index(tokenizer.end_of_text_id)
    assert cut.tokens.tolist() == [*whole.tokens[: end - 1], *whole.tokens[end:]] and num_truncated == 1
    with pytest.raises(UserError, match="too short for a text"):
        encode_examples(examples, tokenizer, 2, is_causal=True)
    with pytest.raises(UserError, match="no end-of-text token"):
        encode_examples(examples, word_pieces(), 64, is_causal=True)


def test_robertas_pairs_have_two_separators():
    tokenizer = Tokenizer.train(["a text of words"] * 9, 270, kind="roberta")
    cls, sep = (tokenizer.vocab[ROBERTA_TOKENS[place]] for place in (0, 2))
    sequence = frame(tokenizer, np.array([5, 6]), np.array([7]))
    assert sequence.tokens.tolist() == [cls, 5, 6, sep, sep, 7, sep]


def batches_of(num=7, **changes):
    sequences = [frame(word_pieces(), np.array([5 + number] * (1 + number % 3))) for number in range(num)]
    options = {"width": 8, "layout": "padded", "pad_id": 0, "seed": 5, "labels": np.arange(num)}
    return LabelledBatches(sequences=sequences, **options | changes)


def test_an_epoch_has_each_example_once_and_the_next_in_another_order():
    maker = batches_of()
    first, second = (maker.batches(np.arange(7)[None] + 7 * epoch)[0]["labels"].tolist() for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(7))
    assert first != second != list(range(7))
    assert batches_of(seed=6).batches(np.arange(7)[None])[0]["labels"].tolist() != first


def test_the_cut_into_micro_batches_changes_no_sample():
    maker = batches_of()
    (whole,) = maker.batches(np.arange(6)[None])
    parts = maker.batches(np.arange(6).reshape(3, 2))
    for name in ("tokens", "labels", "keys"):
        assert np.array_equal(whole[name], np.concatenate([part[name] for part in parts])), name


def test_past_the_last_example_nothing_is_scored():
    batch = batches_of().batch(np.array([5, 6, 7]))
    assert batch["labels"].tolist() == [5, 6, -100]
    spans = batches_of(labels=np.ones((7, 2), dtype=np.int64)).batch(np.array([6, 9]))
    assert spans["labels"].tolist() == [[1, 1], [-100, -100]]


def test_rows_of_the_helper_are_of_two_classes(tmp_path):
    examples = read_examples(write_jsonl(tmp_path / "x.jsonl", labelled_rows(2)), ClassificationConfig())
    assert (len(examples), labels_of(examples, "x")) == (12, ("moby", "pride"))


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        ("x.jsonl", '{"a": "one", "b": "two"}\n{"a": "x", "b": "y", "c": 0.5}', PAIRS),
        ("x.csv", "b,a\ntwo,one\ny,x\n", PAIRS),
        ("x.tsv", "one\ttwo\nx\ty\n", ClassificationConfig(text="0", second_text="1", label="2")),
    ],
)
def test_labels_may_be_missing_where_none_are_read(tmp_path, name, text, columns):
    examples = read_examples(write(tmp_path / name, text), columns, labelled=False)
    assert [(each.text, each.second_text, each.label) for each in examples] == [("one", "two", ""), ("x", "y", "")]


@pytest.mark.parametrize("name", ["x.txt", "x", "x.log"])
def test_any_other_file_has_a_text_a_line(tmp_path, name):
    path = write(tmp_path / name, '\ufeff one, "two"\r\n{"text": 1}')
    examples = read_examples(path, ClassificationConfig(), labelled=False)
    assert [each.text for each in examples] == [' one, "two"', '{"text": 1}']
    assert examples[1].place == f"{path}, line 2"
    (example,) = read_examples(
        path=write(tmp_path / "y", '{"text": "b"}'), columns=ClassificationConfig(), labelled=False, format="jsonl"
    )
    assert example.text == "b"


@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        ("x.txt", "", ["the file has no examples", "a text per line"]),
        ("x.txt", "a\n \nb", ["line 2: the line is blank"]),
        ("x.txt", b"a\n\xff", ["line 2: not UTF-8 at byte 0"]),
        ("x.jsonl", '{"text": "a"}\n{"txt": "a"}', ["line 2", "'text' is missing", "; correct the line"]),
        ("x.csv", "txt\na\n", ["line 1", "'text' is missing", "by `text`"]),
    ],
)
def test_a_text_that_cannot_be_read_is_reported_with_its_line(tmp_path, name, text, parts):
    with pytest.raises(DataError) as caught:
        read_examples(write(tmp_path / name, text), ClassificationConfig(), labelled=False)
    assert one_line(caught.value, str(tmp_path / name), *parts)


def test_a_line_of_text_is_no_pair(tmp_path):
    with pytest.raises(UserError, match="reads pairs of texts"):
        read_examples(write(tmp_path / "x.txt", "a"), PAIRS, labelled=False)


def test_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("é\nb".encode())))
    examples = read_examples("-", ClassificationConfig(), labelled=False)
    assert [(each.text, each.place) for each in examples] == [
        ("é", "standard input, line 1"),
        ("b", "standard input, line 2"),
    ]
