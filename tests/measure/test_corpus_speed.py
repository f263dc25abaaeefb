import json

import pytest
from tiny_text import TEXTS, tiny_tokenizer

from hornbook.__main__ import main
from hornbook.errors import DataError
from hornbook.measure.corpus_speed import CorpusJob, build_with_tokenizers, map_with_datasets, measure_corpus


@pytest.fixture
def job(tmp_path):
    tiny_tokenizer().save(tmp_path / "tok")
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in TEXTS))
    return CorpusJob(source=tmp_path / "texts.jsonl", field="body", tokenizer=str(tmp_path / "tok"), threads=1)


NUM_TOKENS = sum(len(tiny_tokenizer().encode(text)) for text in TEXTS)


def test_the_best_round_counts(job, monkeypatch):
    times = iter(((3.0, 70), (5.0, 70), (2.0, 70), (4.0, 70)))
    monkeypatch.setattr("hornbook.measure.corpus_speed._in_a_process", lambda contender, job: next(times))
    speeds = measure_corpus({"a": build_with_tokenizers, "b": build_with_tokenizers}, job, 2)
    assert {name: speed.seconds for name, speed in speeds.items()} == {"a": 2.0, "b": 4.0}
    assert speeds["a"].tokens_per_second == 35.0
    assert speeds["a"].megabytes_per_second == pytest.approx(job.source.stat().st_size / 2e6)


def test_the_command(job, capsys):
    words = ["bench", "corpus", str(job.source), "--field", "body", "--tokenizer", job.tokenizer, "--rounds", "1"]
    assert main([*words, "--json"]) == 0
    contenders = json.loads(capsys.readouterr().out)["contenders"]
    assert list(contenders) == ["hornbook", "hornbook (tokenizers)"]
    assert {speed["tokens"] for speed in contenders.values()} == {NUM_TOKENS}
    assert main(["bench", "corpus", "nothing.jsonl", "--tokenizer", job.tokenizer]) == 2
    assert "nothing.jsonl: no such file" in capsys.readouterr().err


def test_plain_text_is_refused_without_advice_for_another_command(job, capsys):
    job.source.write_text("Call me Ishmael.\n")
    assert main(["bench", "corpus", str(job.source), "--tokenizer", job.tokenizer, "--rounds", "1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "line 1: not valid JSON" in line and line.endswith("; only JSONL can be timed")


def test_what_is_no_jsonl_is_refused_before_a_build_is_timed(job, monkeypatch):
    monkeypatch.setattr("hornbook.measure.corpus_speed._in_a_process", lambda *job: pytest.fail("a build was timed"))
    with job.source.open("a") as file:
        file.write("\nCall me Ishmael.\n")
    with pytest.raises(DataError, match=rf"line {len(TEXTS) + 2}: not valid JSON.*; only JSONL can be timed"):
        measure_corpus({"a": build_with_tokenizers}, job, 1)


@pytest.mark.slow
def test_the_peer_makes_as_many_tokens(job):
    pytest.importorskip("datasets")
    assert measure_corpus({"datasets": map_with_datasets}, job, 1)["datasets"].tokens == NUM_TOKENS
