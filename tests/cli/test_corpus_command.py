import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_text import READ_TEXTS, tiny_tokenizer, write_texts

from hornbook.__main__ import main
from hornbook.corpora.megatron import IndexedWriter
from hornbook.corpora.store import open_store


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """A working folder with a folder of texts and a tokenizer."""
    monkeypatch.chdir(tmp_path)
    write_texts(tmp_path / "texts")
    tiny_tokenizer().save(tmp_path / "tok")
    return tmp_path


def build(*words, output="out"):
    return main(["corpus", "build", *words, "--tokenizer", "tok", "--output", output])


def result(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def mistake(capsys):
    """The one line on standard error."""
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("hornbook: error: "), captured.err
    return lines[0]


def test_build_inspect_verify(texts, capsys):
    assert build("texts", "--validation", "0.25") == 0
    printed = capsys.readouterr()
    assert "out built in" in printed.out and "train" in printed.out and "validation" in printed.out
    assert printed.err.strip() == ""
    assert main(["corpus", "inspect", "out", "--samples", "2"]) == 0
    printed = capsys.readouterr().out
    store = open_store("out")
    assert f"{store.num_documents} documents, {store.num_tokens:,} tokens, {store.num_bytes:,} bytes" in printed
    assert "end-of-text stored (id 299)" in printed and "█" in printed and "story 0: " in printed
    assert str(texts / "texts" / "0.txt") in printed
    assert main(["corpus", "verify", "out"]) == 0
    assert capsys.readouterr().out.count("sound; checked 4 files by their hashes") == 2


def test_json(texts, capsys):
    assert build("texts", "--validation", "0.25", "--json") == 0
    built = result(capsys)
    assert built["output"] == str(texts / "out") and not built["already_built"] and built["sources"] == 11
    train = built["splits"]["train"]
    assert build("texts", "--validation", "0.25", "--json") == 0
    assert result(capsys)["already_built"]
    assert main(["corpus", "inspect", "out", "--json"]) == 0
    first, second = result(capsys)["stores"]
    assert (first["documents"], first["tokens"], first["bytes"]) == (
        train["documents"],
        train["tokens"],
        train["num_bytes"],
    )
    assert sum(row["documents"] for row in second["lengths"]["bins"]) == second["documents"]
    assert first["vocab_size"] == 300 and 0.2 < first["tokens_per_byte"] < 1 and len(first["samples"]) == 3
    assert main(["corpus", "verify", "out/validation", "--json"]) == 0
    [verified] = result(capsys)["stores"]
    assert verified["documents"] == second["documents"] and "tokens.bin" in verified["files"]


def test_every_option_of_build_acts(texts, capsys):
    def documents(*words, output):
        assert build(*words, "--json", output=output) == 0
        capsys.readouterr()
        store = open_store(output)
        return [store.tokenizer().decode(store.document(n)) for n in range(store.num_documents)]

    end = "<|endoftext|>"
    assert documents("texts", output="all") == [text + end for text in READ_TEXTS]
    assert documents("texts", "--suffix", ".txt", output="plain") == [text + end for text in READ_TEXTS[:10]]
    assert documents("texts", "--exclude", "*.txt", output="rest") == [text + end for text in READ_TEXTS[10:]]
    assert documents("texts/3.txt", "--end-of-text", "inserted", output="inserted") == [READ_TEXTS[3]]
    assert len(documents("texts/rest.jsonl", "--format", "text", output="one")) == 1
    (texts / "body.data").write_text('{"body": "a"}\n{"body": "b"}\n{"text": "c"}\n')
    words = ("body.data", "--format", "jsonl", "--field", "body", "--on-error", "skip")
    assert documents(*words, output="body") == ["a" + end, "b" + end]


def test_skipped_documents_are_reported(texts, capsys):
    (texts / "texts" / "bad.txt").write_bytes(b"\xff")
    (texts / "texts" / "void.txt").write_bytes(b"")
    assert build("texts") == 2
    assert "bad.txt: not UTF-8 at byte 0" in mistake(capsys)
    assert build("texts", "--on-error", "skip", "--allow", "empty-file", "--json") == 0
    captured = capsys.readouterr()
    assert "skipped 1 unreadable document:\n  texts/bad.txt: not UTF-8" in captured.err
    assert "dropped: 1 empty document, 1 unreadable one" in captured.err
    assert json.loads(captured.out)["faults"] == 1


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["nothing"], "nothing: no such file or folder"),
        (["void"], "void: no file to read"),
        (["texts", "--suffix", ".py"], "(suffix .py)"),
        (["texts", "--exclude", "*"], "--exclude '*' excludes every input"),
        (["bad/binary"], "bad/binary: a zero byte at offset 3"),
        (["bad/latin.txt"], "bad/latin.txt: not UTF-8 at byte 3 (0xe9)"),
        (["bad/broken.jsonl"], "bad/broken.jsonl, line 2: not valid JSON"),
        (["texts", "--field", "body"], "texts/rest.jsonl, line 1: no field 'body' (fields: 'text')"),
        (["bad/short.gz"], "bad/short.gz: "),
        (["bad/empty.txt"], "the corpus would have no documents"),
        (["texts", "--validation", "1"], "validation is 1.0"),
        (["texts", "--validation", "-0.5"], "-0.5"),
        (["texts", "--validation", "0.0000001"], "the validation split would be empty"),
        (["texts", "--threads", "0"], "--threads"),
        (["texts", "--tokenizer", "texts"], "has no tokenizer"),
        (["texts", "--tokenizer", "texts/0.txt"], "no token for unknown words"),
        (["texts", "--output", "texts"], "exists already"),
        (["texts", "--formt", "text"], "--format"),
    ],
)
def test_mistakes_are_one_line(texts, capsys, words, part):
    (texts / "void").mkdir()
    (texts / "bad").mkdir()
    (texts / "bad" / "binary").write_bytes(b"ELF\0\xff")
    (texts / "bad" / "latin.txt").write_bytes(b"caf\xe9")
    (texts / "bad" / "broken.jsonl").write_bytes(b'{"text": "a"}\n{"text": \n')
    (texts / "bad" / "short.gz").write_bytes(b"\x1f\x8b\x08\0")
    (texts / "bad" / "empty.txt").write_bytes(b"")
    base = ["corpus", "build", "--tokenizer", "tok", "--output", "out"]
    assert main([*base, *words]) == 2
    assert part in mistake(capsys)
    assert not (texts / "out").exists() and not (texts / ".out.building").exists()


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_mistakes_about_stores(texts, capsys, command):
    assert main(["corpus", command, "texts"]) == 2
    assert "not a token store; to make one" in mistake(capsys)
    assert main(["corpus", command, "nothing"]) == 2
    assert "no such token store" in mistake(capsys)


def test_damage_is_found(texts, capsys):
    build("texts")
    data = bytearray((texts / "out/train/tokens.bin").read_bytes())
    data[7] ^= 1
    (texts / "out/train/tokens.bin").write_bytes(data)
    capsys.readouterr()
    assert main(["corpus", "verify", "out"]) == 2
    assert "tokens.bin is damaged" in mistake(capsys)


def test_stores_of_others(texts, capsys):
    with IndexedWriter(texts / "x", "uint16") as writer:
        writer.add_document([1, 2])
        writer.add_document([3, 2])
    assert main(["corpus", "inspect", "x"]) == 0
    printed = capsys.readouterr().out
    assert "bytes not known" in printed and "tokenizer not known" in printed and "end-of-text stored (id 2)" in printed
    assert main(["corpus", "verify", "x.idx"]) == 0
    assert "its structure (it has no hashes)" in capsys.readouterr().out


def test_samples_do_not_command_the_terminal(texts, capsys):
    (texts / "evil.txt").write_text("\x1b[2J\x1b]0;title\x07 text\n")
    build("evil.txt")
    main(["corpus", "inspect", "out"])
    printed = capsys.readouterr().out
    assert "\x1b" not in printed and "\x07" not in printed and "text" in printed


def test_from_the_shell(texts):
    """Standard input, threads, and a read-only place, in processes of their own."""
    words = [sys.executable, "-m", "hornbook", "corpus", "build", "-", "--tokenizer", "tok", "--threads", "1"]
    text = "from a pipe"
    done = subprocess.run([*words, "--output", "piped", "--json"], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["splits"]["train"]["num_bytes"] == len(text)
    done = subprocess.run([*words, "--output", "full"], input=text, capture_output=True, text=True, env=FAULT)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1 and "free" in done.stderr
    assert not (texts / "full").exists() and not (texts / ".full.building").exists()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no /proc to count threads in")
def test_threads_act(texts):
    """The tokenizing threads of a process are started when they are first needed, as many as asked for."""
    program = (
        "import sys; from pathlib import Path; from time import sleep; from hornbook.__main__ import main; "
        "words = f'corpus build texts --tokenizer tok --output out{sys.argv[1]}'.split(); "
        "main([*words, '--threads', sys.argv[1]]); "
        "counts = [(sleep(0.02), len(list(Path('/proc/self/task').iterdir())))[1] for _ in range(20)]; "
        "sys.exit(min(counts))"  # a thread that has ended is listed a moment longer
    )
    one, three = (
        subprocess.run([sys.executable, "-c", program, number], capture_output=True).returncode for number in "13"
    )
    assert three - one == 2


FAULT = os.environ | {"HORNBOOK_FAULT": "write:2:enospc"}


def test_a_killed_build_is_replaced_by_the_next(texts, capsys):
    words = [sys.executable, "-m", "hornbook", "corpus", "build", "texts", "--tokenizer", "tok", "--output", "out"]
    killed = subprocess.run(words, capture_output=True, env=os.environ | {"HORNBOOK_FAULT": "write:9:crash-middle"})
    assert killed.returncode == 137
    assert not (texts / "out").exists() and (texts / ".out.building").exists()
    assert build("texts") == 0
    assert not (texts / ".out.building").exists() and main(["corpus", "verify", "out"]) == 0
    shutil.rmtree("out")
