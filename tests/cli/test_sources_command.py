"""Every kind of source through the commands, as a user gives it; and mistakes, each of one line."""

import gzip
import io
import sys

import pytest
from tiny_text import tiny_tokenizer

from hornbook.__main__ import main
from hornbook.corpora.store import open_store

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow, the extra 'arrow', is not installed")
parquet = pytest.importorskip("pyarrow.parquet")

SENTENCES = "One sentence.\nAnother one.\n\nA second document.\n"
WIKI = " \n = Du Fu = \n \n He was a poet . \n = = Life = = \n \n = Bob = \n \n Another . \n"


class StandardInput:
    def __init__(self, data):
        self.buffer = io.BytesIO(data)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    tiny_tokenizer().save(tmp_path / "tok")
    (tmp_path / "bert.txt").write_text(SENTENCES)
    (tmp_path / "wiki.tokens").write_text(WIKI)
    (tmp_path / "nested.jsonl").write_text('{"meta": {"body": "inside"}}\n')
    (tmp_path / "rows.csv").write_text('id,body\n1,one\n2,"two, three"\n')
    table = pyarrow.table({"text": ["one", None, "two"], "n": [1, 2, 3]})
    parquet.write_table(table, tmp_path / "rows.parquet")
    for split in ("train", "test"):
        (tmp_path / "set" / split).mkdir(parents=True)
        with (
            pyarrow.OSFile(str(tmp_path / "set" / split / "x.arrow"), "wb") as file,
            pyarrow.ipc.new_stream(file, table.schema) as stream,
        ):
            stream.write_table(table)
        (tmp_path / "set" / split / "state.json").write_text('{"_data_files": [{"filename": "x.arrow"}]}')
    (tmp_path / "set" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    return tmp_path


def build(*words, output="out"):
    return main(["corpus", "build", *words, "--tokenizer", "tok", "--output", output])


def documents(output="out"):
    """The texts of a corpus, each with where it came from."""
    store = open_store(output)
    texts = [store.tokenizer().decode(store.document(number)) for number in range(store.num_documents)]
    return [
        (text.removesuffix("<|endoftext|>"), store.source(number)[1], store.source(number)[0].rpartition("/")[2])
        for number, text in enumerate(texts)
    ]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["bert.txt"], [(SENTENCES, 0, "bert.txt")]),
        (
            ["bert.txt", "--from", "lines"],
            [(line, SENTENCES.index(line), "bert.txt") for line in SENTENCES.split("\n") if line],
        ),
        (
            ["bert.txt", "--from", "blank-lines"],
            [("One sentence.\nAnother one.", 0, "bert.txt"), ("A second document.", 28, "bert.txt")],
        ),
        (["wiki.tokens", "--from", "wikitext"], [(WIKI[2:51], 2, "wiki.tokens"), (WIKI[51:], 51, "wiki.tokens")]),
        (["nested.jsonl", "--field", "meta.body"], [("inside", 0, "nested.jsonl")]),
        (["rows.csv", "--field", "body"], [("one", 8, "rows.csv"), ("two, three", 14, "rows.csv")]),
        (["rows.parquet"], [("one", 0, "rows.parquet"), ("two", 2, "rows.parquet")]),
        (["set", "--from", "arrow", "--split", "test"], [("one", 0, "x.arrow"), ("two", 2, "x.arrow")]),
        (["set/train"], [("one", 0, "x.arrow"), ("two", 2, "x.arrow")]),
        ([".", "--from", "parquet"], [("one", 0, "rows.parquet"), ("two", 2, "rows.parquet")]),
    ],
)
def test_build(folder, words, expected):
    assert build(*words) == 0
    assert documents() == expected


def test_inspect_names_rows_where_there_are_some(folder, capsys):
    (folder / "rows.parquet").rename(folder / "rows.table")
    for words, place in (
        (["rows.table", "--from", "parquet"], "rows.table at row 2"),
        (["set/train"], "x.arrow at row 2"),
        (["bert.txt", "--from", "blank-lines"], "bert.txt at byte 28"),
    ):
        output = words[0].replace("/", "-") + ".corpus"
        assert build(*words, output=output) == 0
        capsys.readouterr()
        assert main(["corpus", "inspect", output]) == 0
        assert place in capsys.readouterr().out
        assert main(["corpus", "inspect", output, "--json"]) == 0
        assert f'"unit": "{place.split()[-2]}"' in capsys.readouterr().out


@pytest.mark.parametrize("packed", [False, True])
def test_standard_input(folder, monkeypatch, packed):
    for shape, count in (("lines", 3), ("blank-lines", 2), ("text", 1)):
        data = gzip.compress(SENTENCES.encode()) if packed else SENTENCES.encode()
        monkeypatch.setattr(sys, "stdin", StandardInput(data))
        assert build("-", "--from", shape, output=shape) == 0
        assert len(documents(shape)) == count
    monkeypatch.setattr(sys, "stdin", StandardInput(b'{"text": "one"}\n'))
    assert build("-", "--from", "jsonl") == 0


def test_tokenizers_learn_from_them_all(folder, capsys):
    words = ["tokenizer", "train", "rows.parquet", "bert.txt", "set/test", "--vocab-size", "270", "--output", "t"]
    assert main(words) == 0
    assert "from 5 documents" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["rows.parquet", "--field", "n"], "rows.parquet: the column 'n' is of type INT64; expected text"),
        (["rows.parquet", "--field", "x"], "rows.parquet: no column 'x' (columns: 'text')"),
        (
            ["bert.txt", "--from", "lines", "--field", "x"],
            "--field x does not apply: bert.txt is read as lines, which has no fields; remove the option, or set",
        ),
        (["bert.txt", "--field", "x"], "--field x does not apply: bert.txt is read as text, which has no fields"),
        (["bert.txt", "--exclude", "b*"], "--exclude 'b*' excludes every input"),
        (["rows.csv"], "rows.csv: no column 'text' (columns: 'id', 'body'); set --field to the one with the text"),
        (["bert.txt", "--from", "parquet"], "bert.txt: damaged, or not a valid Parquet file"),
        (["bert.txt", "--from", "arrow"], "bert.txt: not an Arrow stream, or truncated"),
        (["set", "--from", "arrow"], "set has the splits train, test; choose one with --split"),
        (["set", "--split", "dev"], "set has the splits train, test; choose one with --split"),
        (["bert.txt", "--split", "train"], "--split applies to a data set of the Hugging Face hub or a folder"),
        (["set/test", "--config", "en"], "--config applies to a data set of the Hugging Face hub, and no input is one"),
        (["tok", "--from", "parquet"], "tok: no file to read (suffix .parquet)"),
        (["bert.txt", "--from", "paragraphs"], '"paragraphs" is not one of auto, text, lines'),
        (
            ["hf:some/words"],
            "hf:some/words: not in the cache, and HF_HUB_OFFLINE is set",
        ),
        (["hf:../words"], "'hf:../words' is not a data set of the Hugging Face hub"),
    ],
    ids=str,
)
def test_mistakes_are_one_line(folder, capsys, words, part):
    assert build(*words) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert part in line and not (folder / "out").exists()


def test_what_cannot_be_read_is_skipped_and_counted(folder, capsys):
    data = (folder / "rows.parquet").read_bytes()
    (folder / "cut.parquet").write_bytes(data[:-20])
    assert build("rows.parquet", "cut.parquet") == 2
    assert "cut.parquet: damaged, or not a valid Parquet file" in capsys.readouterr().err
    capsys.readouterr()
    outcome = build("rows.parquet", "cut.parquet", "--on-error", "skip", "--allow", "empty-file")
    printed = capsys.readouterr()
    assert outcome == 0 and "skipped 1 unreadable document" in printed.err
    assert len(documents()) == 2
