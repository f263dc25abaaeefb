import bz2
import json

import pytest
from tiny_mirror import serve
from tiny_text import tiny_tokenizer
from tiny_wiki import TINY_TEXTS, tiny_dump

from hornbook.__main__ import main
from hornbook.corpora.store import open_store

EXTRACTED = b'<doc id="1" url="" title="Seine">\nSeine\n\nA river.\n</doc>\n'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny_tokenizer().save(tmp_path / "tok")
    (tmp_path / "dump.xml.bz2").write_bytes(bz2.compress(tiny_dump()))
    (tmp_path / "wiki_00").write_bytes(EXTRACTED)
    return tmp_path


def build(*words, output="out"):
    return main(["corpus", "build", *words, "--tokenizer", "tok", "--output", output])


def texts(output):
    store = open_store(output)
    found = [store.tokenizer().decode(store.document(number)) for number in range(store.num_documents)]
    return [text.removesuffix("<|endoftext|>") for text in found]


def test_a_dump_becomes_a_corpus(folder, capsys):
    assert build("dump.xml.bz2", "--from", "wikipedia", "--threads", "2") == 0
    printed = capsys.readouterr().out
    assert "skipped: 1 page of another namespace, 1 page that is not wikitext, 1 redirect" in printed
    assert "dropped: 1 empty document," in printed
    assert texts("out") == [text for text in TINY_TEXTS if text]
    source, offset = open_store("out").source(0)
    assert source.endswith("dump.xml.bz2") and tiny_dump()[offset:].startswith(b"<page>")
    assert build("dump.xml.bz2", "--from", "wikipedia", "--threads", "1", "--json") == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["already_built"], "the number of threads makes no other corpus"
    assert result["skipped"]["redirects"] == 1
    assert build("dump.xml.bz2", "--from", "wikipedia", "--lists", "drop") == 2
    assert "built with other options" in capsys.readouterr().err


def test_every_option_acts(folder):
    assert build("dump.xml.bz2", "--from", "wikipedia", "--titles", "drop", output="a") == 0
    assert texts("a")[1] == "A city."
    assert build("dump.xml.bz2", "--from", "wikipedia", "--headings", "drop", output="b") == 0
    assert "See" not in texts("b")[0]
    assert build("dump.xml.bz2", "--from", "wikipedia", "--lists", "drop", output="c") == 0
    assert texts("c")[0] == "Seine\n\nSeine is a stream of 777 km."
    assert build("wiki_00", "--from", "wikiextractor", "--titles", "drop", output="d") == 0
    assert texts("d") == ["A river."]
    assert build("wiki_00", "--format", "wikiextractor", output="e") == 0
    assert texts("e") == ["Seine\n\nA river."]


def test_tokenizers_learn_from_dumps(folder, capsys):
    words = ["tokenizer", "train", "dump.xml.bz2", "--from", "wikipedia", "--vocab-size", "270", "--output", "t"]
    assert main(words) == 0
    assert "from 2 documents" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["wiki_00", "--from", "wikipedia"], "wiki_00: byte 0: expected <mediawiki>, found <doc>"),
        (["dump.xml.bz2", "--from", "wikiextractor"], "line 1: expected a line like <doc id"),
        (["tok", "--lists", "keep"], "--lists does not apply to --from auto; expected --from wikipedia"),
        (["wiki_00", "--from", "wikiextractor", "--headings", "drop"], "--headings does not apply"),
        (["dump.xml.bz2", "--from", "wikipedai"], 'did you mean "wikipedia"'),
    ],
)
def test_mistakes_are_one_line(folder, capsys, words, part):
    assert build(*words) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert part in line and not (folder / "out").exists()


def test_download(folder, capsys):
    with serve(bz2.compress(tiny_dump())) as mirror:
        words = ["corpus", "download", "wikipedia", "--language", "xx", "--date", "20260101", "--output", "dumps"]
        assert main([*words, "--mirror", mirror.url, "--json"]) == 0
        result = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert result["algorithm"] == "sha1" and result["fetched"] == result["size"]
        assert main([*words, "--mirror", mirror.url]) == 0
        assert "already downloaded, sha1 as published" in capsys.readouterr().out
    assert build("dumps", "--from", "wikipedia") == 0
    assert len(texts("out")) == 2
    assert main([*words, "--date", "today"]) == 2
    assert "is no date of a dump" in capsys.readouterr().err
