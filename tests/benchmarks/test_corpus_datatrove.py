"""The work of a corpus build by datatrove, which is in an environment of its own: here if it is installed."""

import json
import sys
from pathlib import Path

import pytest
from tiny_text import TEXTS, tiny_tokenizer

datatrove = pytest.importorskip("datatrove", reason="datatrove, of the benchmark's own environment, is not installed")


@pytest.mark.slow
def test_a_row_for_each_step_and_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import corpus_datatrove

    texts = tmp_path / "texts"
    texts.mkdir()
    for name in ("a", "b"):
        lines = (json.dumps({"text": " ".join([text, *["word"] * 60])}) for text in TEXTS)
        (texts / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    tiny_tokenizer().save(tmp_path / "tokenizer")
    words = [str(texts), "--tokenizer", str(tmp_path / "tokenizer"), "--folder", str(tmp_path / "built")]
    monkeypatch.setattr(sys, "argv", ["corpus_datatrove.py", *words])
    corpus_datatrove.main()
    head, *printed = capsys.readouterr().out.splitlines()
    assert head.split() == ["step", "CPU", "s", "MB/s", "MiB"]
    assert [line.split()[0] for line in printed] == ["read", "words", "signatures", "buckets", "clusters", "tokens"]
    rows = [json.loads(line) for line in (tmp_path / "built" / "rows.jsonl").read_text().splitlines()]
    assert [row["rank"] for row in rows if row["step"] == "tokens"] == [0, 1]
    assert all(row["seconds"] > 0 and row["mib"] > 1 for row in rows)
    corpus_datatrove.main()
    assert len((tmp_path / "built" / "rows.jsonl").read_text().splitlines()) == len(rows)


def test_short_documents_are_left_out() -> None:
    from datatrove.data import Document

    import corpus_datatrove

    assert corpus_datatrove.has_words(Document(text=" a\n" * 50, id="0"))
    assert not corpus_datatrove.has_words(Document(text="a " * 49, id="0"))
