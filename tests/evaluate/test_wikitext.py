"""Every row against the plainest computation of its convention, a window at a time, in float64."""

import math
import re

import pytest
from cases import mostly_slow
from tiny_tasks import GPT2, WIKITEXT_2_RAW, WIKITEXT_103, log_probabilities, tiny_input, values
from tiny_text import one_line, tiny_tokenizer

from hornbook.errors import DataError, UserError
from hornbook.evaluate.tasks import find_task, run_task
from hornbook.evaluate.wikitext_perplexity import (
    PUBLISHED_WORDS,
    articles,
    count_words,
    detokenize_wikitext,
    join_rows,
    rolling_spans,
)
from hornbook.text.tokenizer import Tokenizer

TEXT = """ \n = The cat = \n \n The cat sat on the mat , and the mat @-@ cat ( number 4 ) sat . \n \n = = Story = = \n
 Story : the cat 's . \n = The mat = \n \n The mat sat on the cat ; the cat sat on the mat , and that was it . \n"""
LENGTH = 24


def megatron_nats(model, ids, length, stride):
    """Sum over all targets, windows and masks as Megatron-LM lays them out; and how often each target was scored."""
    total, times = 0.0, [0] * len(ids)
    for index in range(max(math.ceil(max(len(ids) - 1 - stride, 0) / stride) + 1, 1)):
        start = index * stride
        window = ids[start : start + length + 1]
        if len(window) < 2:
            continue
        rows = log_probabilities(model, window[:-1])
        first = 0 if index == 0 or stride == length else length - stride
        for place in range(first, len(window) - 1):
            total -= float(rows[place, window[place + 1]])
            times[start + place + 1] += 1
    return total, times


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "wiki.test.tokens"
    path.write_bytes(TEXT.encode())
    return str(path)


@pytest.mark.parametrize("micro_batch_size", mostly_slow([3, 1, 64]))
@pytest.mark.parametrize("overlap", [0, 1, 16, 23])
def test_windows_equal_the_naive_computation(file, overlap, micro_batch_size):
    given = tiny_input(data=file, overlap=overlap, micro_batch_size=micro_batch_size)
    found = values(run_task("wikitext103", given))
    assert not any(metric.startswith("megatron_") for metric in found)
    for prefix, text in (("", detokenize_wikitext(TEXT)), ("raw_", TEXT), ("joined_", join_rows(TEXT))):
        ids = tiny_tokenizer().encode(text)
        nats, times = megatron_nats(given.loaded.model, ids, LENGTH, LENGTH - overlap)
        assert times == [0] + [1] * (len(ids) - 1), "every token but the first is scored once"
        assert math.log(found[f"{prefix}token_perplexity"]) == pytest.approx(nats / (len(ids) - 1), rel=1e-6)
        words = len(TEXT.strip().split(" ")) - 1
        assert math.log(found[f"{prefix}word_perplexity"]) == pytest.approx(nats / words, rel=1e-6)
        num_bytes = len(text.encode())
        assert found[f"{prefix}bits_per_byte"] == pytest.approx(nats / math.log(2) / num_bytes, rel=1e-6)


def test_megatrons_stride_is_measured_unless_an_overlap_is_asked_for(file):
    given = tiny_input(data=file, sequence_length=48)
    found = values(run_task("wikitext103", given))
    nats, _ = megatron_nats(given.loaded.model, tiny_tokenizer().encode(detokenize_wikitext(TEXT)), 48, 32)
    assert math.log(found["megatron_word_perplexity"]) == pytest.approx(nats / (count_words(TEXT) - 1), rel=1e-6)
    assert found["megatron_word_perplexity"] != found["word_perplexity"]


def comparable(task, **options):
    rows = run_task(task, tiny_input(**({"sequence_length": 1024} | options)))
    return {row.metric: row.comparable_with for row in rows if row.comparable_with}


def test_a_file_of_ones_own_is_comparable_with_nothing(file):
    for task in ("wikitext103", "wikitext2"):
        assert comparable(task, data=file) == {}


def test_rows_that_published_figures_may_be_held_against(file, monkeypatch):
    """A file with as many words as the published one stands for it here."""
    for task in ("wikitext103", "wikitext2"):
        monkeypatch.setitem(PUBLISHED_WORDS, task, count_words(TEXT))
    both = comparable("wikitext103", data=file)
    assert both.keys() == {"word_perplexity", "megatron_word_perplexity"}, "the harness scores WikiText-2"
    assert "37.50" in both["word_perplexity"]
    assert "Megatron-LM's 10.81" in both["megatron_word_perplexity"]
    (only,) = comparable("wikitext103", data=file, overlap=992).items()
    assert only == ("word_perplexity", both["megatron_word_perplexity"])
    assert comparable("wikitext103", data=file, overlap=20) == {}
    assert comparable("wikitext103", data=file, window=512) == {}
    harness = {f"harness_{name}" for name in ("word_perplexity", "byte_perplexity", "bits_per_byte")}
    second = comparable("wikitext2", data=file, overlap=0)
    assert second.keys() == {"joined_token_perplexity", *harness}
    assert second["harness_bits_per_byte"] == "bits_per_byte of lm-evaluation-harness's wikitext"
    assert comparable("wikitext2", data=file, window=512, overlap=0).keys() == harness


@pytest.mark.skipif(not WIKITEXT_103.exists(), reason="the shared data folder is not there")
@pytest.mark.parametrize(("task", "path"), [("wikitext103", WIKITEXT_103), ("wikitext2", WIKITEXT_2_RAW)])
def test_the_published_files_have_the_published_words(task, path):
    assert count_words(path.read_bytes().decode()) == PUBLISHED_WORDS[task]


def test_conventions_name_text_windows_and_divisor(file):
    rows = {row.metric: row.convention for row in run_task("wikitext103", tiny_input(data=file, window=20, overlap=5))}
    words = count_words(TEXT) - 1
    for part in ("detokenized", "windows of 20 tokens", "overlap 5", "stride 15", f"÷ {words}", "all but the first"):
        assert part in rows["word_perplexity"]
    assert rows["raw_token_perplexity"].startswith("raw, the file as it is; windows of 20")
    assert f"÷ {len(TEXT.encode())} bytes" in rows["raw_bits_per_byte"]
    assert "Hugging Face" in rows["joined_token_perplexity"]
    assert "3 articles" not in rows["harness_word_perplexity"]
    assert "2 articles" in rows["harness_word_perplexity"]


def test_the_harness_rows_equal_its_rolling_windows_written_out(file):
    given = tiny_input(data=file)
    found, model, tokenizer = values(run_task("wikitext2", given)), given.loaded.model, tiny_tokenizer()
    pages = list(articles(TEXT))
    nats = 0.0
    for page in pages:
        ids = tokenizer.encode(detokenize_wikitext(page))
        predicted = 0
        while predicted < len(ids):
            count = min(LENGTH, len(ids) - predicted)
            end = predicted + count
            before = [tokenizer.end_of_text_id, *ids][max(0, end - LENGTH) : end]
            rows = log_probabilities(model, before)[-count:]
            nats -= sum(float(row[target]) for row, target in zip(rows, ids[predicted:end], strict=True))
            predicted = end
    words = sum(len(re.split(r"\s+", page)) for page in pages)
    num_bytes = sum(len(page.encode()) for page in pages)
    assert math.log(found["harness_word_perplexity"]) == pytest.approx(nats / words, rel=1e-6)
    assert math.log(found["harness_byte_perplexity"]) == pytest.approx(nats / num_bytes, rel=1e-6)
    assert found["harness_bits_per_byte"] == pytest.approx(nats / num_bytes / math.log(2), rel=1e-6)


def test_articles_begin_at_titles_and_lose_nothing():
    pages = list(articles(TEXT))
    assert [page.split(" = ")[1] for page in pages] == ["The cat", "The mat"]
    assert "= = Story = =" in pages[0]
    assert "\n".join(["", *pages]).strip() == TEXT.strip()
    assert list(articles("no title at all")) == ["no title at all"]


@pytest.mark.parametrize(
    ("count", "expected"), [(3, [(4, 3)]), (4, [(5, 4)]), (5, [(5, 4), (5, 1)]), (8, [(5, 4)] * 2)]
)
def test_rolling_spans(count, expected):
    spans = list(rolling_spans(range(1, count + 1), 0, 4))
    assert [(len(span.tokens), span.num_scored) for span in spans] == expected
    scored = [token for span in spans for token in span.tokens[-span.num_scored :].tolist()]
    assert scored == list(range(1, count + 1))


def test_rows_are_joined_as_hugging_face_does():
    assert join_rows(" \n = A = \n \n text \n") == "\n\n = A = \n\n\n\n\n text \n"
    assert join_rows("a\nb") == "a\n\n\nb"


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "the file has no text"), (b"word\n", "only one word"), (b"a b \xff", "not UTF-8 at byte 4")],
)
def test_files_that_cannot_be_scored(tmp_path, content, message):
    path = tmp_path / "wiki.tokens"
    path.write_bytes(content)
    for act in (find_task("wikitext103").check, find_task("wikitext103").measure):
        with pytest.raises(DataError) as caught:
            act(tiny_input(data=str(path)))
        assert one_line(caught.value, str(path), message)


def test_no_file():
    with pytest.raises(UserError, match=r"^the task needs WikiText's test file.*`data=FILE`"):
        run_task("wikitext2", tiny_input())


@pytest.mark.skipif(not (WIKITEXT_103.exists() and GPT2.exists()), reason="the shared data folder is not there")
def test_a_slice_of_the_real_files(tmp_path):
    tokenizer = Tokenizer.load(GPT2)
    for source, task in ((WIKITEXT_103, "wikitext103"), (WIKITEXT_2_RAW, "wikitext2")):
        text = source.read_bytes()[:1200].decode(errors="ignore")
        path = tmp_path / source.name
        path.write_bytes(text.encode())
        given = tiny_input(tokenizer, data=str(path), sequence_length=64, vocab_size=50257)
        found = values(run_task(task, given))
        ids = tokenizer.encode(detokenize_wikitext(text))
        nats, _ = megatron_nats(given.loaded.model, ids, 64, 64)
        assert math.log(found["token_perplexity"]) == pytest.approx(nats / (len(ids) - 1), rel=1e-6)
        assert len(list(articles(text))) == 1


@pytest.mark.skipif(not WIKITEXT_2_RAW.exists(), reason="the shared data folder is not there")
def test_the_real_file_has_as_many_articles_as_the_harness_scores():
    assert len(list(articles(WIKITEXT_2_RAW.read_bytes().decode()))) == 62
