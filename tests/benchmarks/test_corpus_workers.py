"""The comparison of builds by one and by several workers."""

import json
import os
import sys
from pathlib import Path

import pytest
from tiny_text import TEXTS, tiny_tokenizer

import corpus_workers


def test_the_longest_path_has_the_parent_and_the_busiest_worker() -> None:
    usage = corpus_workers.Usage()
    usage.look_at(os.getpid())
    assert usage.parent > 0 and usage.mib > 1 and usage.longest >= usage.parent
    usage.parent, usage.workers = 2.0, {1: 3.0, 2: 5.0}
    assert usage.longest == 7.0


def test_a_failed_build_ends_with_its_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="hornbook: error"):
        corpus_workers.measure([str(tmp_path / "a.txt"), "--tokenizer", str(tmp_path), "--output", str(tmp_path / "b")])


@pytest.mark.slow
def test_rows_for_one_and_two_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_tokenizer().save(tmp_path / "tokenizer")
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    own = [str(texts), "--tokenizer", str(tmp_path / "tokenizer"), "--folder", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["corpus_workers.py", *own, "--", "--drop-duplicates"])
    corpus_workers.main()
    _, _, one, two, *_, last = capsys.readouterr().out.splitlines()
    assert one.startswith("| 1 |") and two.startswith("| 2 |") and "same" not in last and "have the hash" in last
    assert not list(tmp_path.glob("workers-*"))
