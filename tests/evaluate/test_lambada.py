"""Each passage alone, in float64, against the task; and the counts of the real file."""

import json
import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from tiny_tasks import GPT2, LAMBADA, log_probabilities, tiny_input, values
from tiny_text import one_line, tiny_tokenizer

from hornbook.errors import DataError, UserError
from hornbook.evaluate import lambada
from hornbook.evaluate.lambada import STOP_WORDS, make_span, read, split_last_word, stop_word_tokens
from hornbook.evaluate.spans import batches
from hornbook.evaluate.tasks import find_task, run_task
from hornbook.text.tokenizer import Tokenizer

PASSAGES = [
    "the cat sat on the mat",
    "the cat",
    "story 12: the cat sat on the mat, the cat sat on the unreal",
    "sat on\nthe mat, é😀 the",
    "a story the cat sat on  zebras ",
    "the cat sat on the mat, the cat sat on the mat, the cat sat on the mat, the cat sat on the",
]


def write(folder, passages):
    path = folder / "lambada.jsonl"
    path.write_text("".join(json.dumps({"text": passage}) + "\n" for passage in passages))
    return str(path)


@pytest.mark.parametrize("micro_batch_size", [1, 2, 100])
@pytest.mark.parametrize("window", [12, 24])
def test_equals_one_passage_at_a_time(tmp_path, window, micro_batch_size):
    given = tiny_input(data=write(tmp_path, PASSAGES), window=window, micro_batch_size=micro_batch_size)
    found, tokenizer, model = values(run_task("lambada", given)), tiny_tokenizer(), given.loaded.model
    banned = stop_word_tokens(tokenizer, model.vocab_size)
    word_nats, token_nats, hits = 0.0, 0.0, Counter()
    for passage in PASSAGES:
        text = passage.rstrip()
        context = text[: text.rindex(" ")].rstrip()
        ids, count = tokenizer.encode(text), len(tokenizer.encode(text)) - len(tokenizer.encode(context))
        rows = log_probabilities(model, ids[:-1][-window:])[-count:]
        nats = [-float(row[target]) for row, target in zip(rows, ids[-count:], strict=True)]
        right = [int(row.argmax()) == target for row, target in zip(rows, ids[-count:], strict=True)]
        allowed = [int(row.masked_fill(banned, -math.inf).argmax()) for row in rows]
        word_nats, token_nats = word_nats + sum(nats), token_nats + nats[-1]
        hits["last_word_accuracy"] += all(right)
        hits["last_word_accuracy_filtered"] += allowed[0] == ids[-count] and all(right[1:])
        hits["last_token_accuracy"] += right[-1]
        hits["last_token_accuracy_filtered"] += allowed[-1] == ids[-1]
    for metric in hits:
        assert found.pop(metric) == hits[metric] / len(PASSAGES)
    assert math.log(found.pop("last_word_perplexity")) == pytest.approx(word_nats / len(PASSAGES), rel=1e-6)
    assert math.log(found.pop("last_token_perplexity")) == pytest.approx(token_nats / len(PASSAGES), rel=1e-6)
    assert found == {}


FILTERED = {
    "a stop word, then the word": ("sat on cat", {" on": [" the", " cat"]}, (0, 1, 0, 1)),
    "the word is a stop word": ("sat on the", {" on": [" the", " cat"]}, (1, 0, 1, 0)),
    "a stop word before the first token": ("sat on cats", {" on": [" the", " cat"], " cat": ["s"]}, (0, 1, 1, 1)),
    "another word before the first token": ("sat on cats", {" on": [" mat", " cat"], " cat": ["s"]}, (0, 0, 1, 1)),
    "a stop word before the last token": ("sat on cats", {" on": [" cat"], " cat": [" the", "s"]}, (0, 0, 0, 1)),
    "another word before the last token": ("sat on cats", {" on": [" cat"], " cat": [" mat", "s"]}, (0, 0, 0, 0)),
}


@pytest.mark.parametrize(("passage", "ranking", "expected"), FILTERED.values(), ids=FILTERED)
def test_the_filter_acts_on_the_first_token_of_a_word_and_on_a_last_token(
    tmp_path, monkeypatch, passage, ranking, expected
):
    """A model that ranks the next tokens by the last one alone; each convention decides for itself."""
    tokenizer = tiny_tokenizer()
    given = tiny_input(data=write(tmp_path, [passage]))
    vocab_size = given.loaded.model.vocab_size
    follows = torch.zeros(vocab_size, vocab_size)

    def one(text):
        (token,) = tokenizer.encode(text)
        return token

    for before, ranked in ranking.items():
        for place, token in enumerate(ranked):
            follows[one(before), one(token)] = 2.0 - place
    monkeypatch.setattr(given.loaded.model.head, "logits", lambda x_ND: x_ND)
    scripted = replace(given, forward=lambda model, batch, use: use(model.head, follows[batch["tokens"]], batch))
    found = values(run_task("lambada", scripted))
    names = ("last_word_accuracy", "last_word_accuracy_filtered", "last_token_accuracy", "last_token_accuracy_filtered")
    assert tuple(found[name] for name in names) == expected


def test_rows_name_their_convention_and_peers(tmp_path):
    rows = {row.metric: row for row in run_task("lambada", tiny_input(data=write(tmp_path, PASSAGES), window=12))}
    assert all("6 passages, 3 of them cut on the left to 12 tokens" in row.convention for row in rows.values())
    assert "127 stop words" in rows["last_word_accuracy_filtered"].convention
    assert {row.comparable_with for row in rows.values()} == {None}, "a file of one's own"


@pytest.mark.parametrize(("passages", "window"), [(6, 24), (5, 24), (6, 48)])
def test_only_whole_passages_of_the_whole_file_are_comparable(tmp_path, monkeypatch, passages, window):
    monkeypatch.setattr(lambada, "PUBLISHED_PASSAGES", passages)
    given = tiny_input(data=write(tmp_path, PASSAGES), sequence_length=48, window=window)
    marks = {row.metric: row.comparable_with for row in run_task("lambada", given) if row.comparable_with}
    if (passages, window) == (6, 48):
        assert marks.keys() == {"last_word_accuracy", "last_token_accuracy", "last_word_perplexity"}
        assert "lm-evaluation-harness" in marks["last_word_accuracy"]
        assert "45.99" in marks["last_token_accuracy"]
    else:
        assert marks == {}


@pytest.mark.parametrize(
    ("passage", "parts"),
    [
        ("a b c", ("a b", " c")),
        ("a  c", ("a", "  c")),
        ("a b\nc", ("a", " b\nc")),
        ("a b\n c \n", ("a b", "\n c")),
        ("word", ("", "word")),
        (" word", ("", " word")),
    ],
)
def test_the_last_word_is_what_follows_the_last_blank(passage, parts):
    assert split_last_word(passage) == parts


def test_stop_words():
    assert len(STOP_WORDS) == 127
    tokenizer = tiny_tokenizer()
    banned = stop_word_tokens(tokenizer, tokenizer.vocab_size + 5)
    texts = {tokenizer.decode([index]) for index in banned.nonzero().flatten().tolist()}
    assert " the" in texts
    assert all(text[0] == " " and text[1:].lower() in STOP_WORDS for text in texts)
    assert len(banned) == tokenizer.vocab_size + 5


@pytest.mark.parametrize(
    ("passages", "message"),
    [
        (["fine one", "word"], "line 2: expected a text of several words"),
        (["the " + "x" * 40], "line 1: expected a text of several words whose last one has at most 24 tokens"),
    ],
)
def test_passages_that_cannot_be_scored(tmp_path, passages, message):
    given = tiny_input(data=write(tmp_path, passages))
    for act in (find_task("lambada").check, find_task("lambada").measure):
        with pytest.raises(DataError) as caught:
            act(given)
        assert one_line(caught.value, message)


def test_no_file():
    with pytest.raises(UserError, match=r"^the task needs LAMBADA's passages"):
        run_task("lambada", tiny_input())


@pytest.mark.slow
@pytest.mark.skipif(not (LAMBADA.exists() and GPT2.exists()), reason="the shared data folder is not there")
def test_published_counts_and_little_padding():
    tokenizer = Tokenizer.load(GPT2)
    given = tiny_input(tokenizer, data=str(LAMBADA), sequence_length=1024, vocab_size=50257)
    spans = read(given)
    lengths = [len(span.tokens) for span in spans]
    assert (len(spans), sum(lengths), max(lengths)) == (5153, 430_230, 224)
    words = Counter(span.num_scored for span in spans)
    assert (words[1], words[2], words[3]) == (4010, 913, 205)
    for micro_batch_size in (1, 16, 64):
        computed = sum(batch["tokens"].numel() for _, batch in batches(spans, micro_batch_size=micro_batch_size))
        padding = computed - sum(span.num_inputs for span in spans)
        assert padding < 0.1 * computed
    assert padding < 0.02 * computed, "64 passages at a time"


@pytest.mark.skipif(not GPT2.exists(), reason="the shared data folder is not there")
def test_answers_are_whole_tokens_after_the_context():
    tokenizer = Tokenizer.load(GPT2)
    for passage in ("I can make it on my own, Shane", "it was “Sal!”\n“Sal", "some  blanks  before"):
        span = make_span(tokenizer, passage)
        context, answer = split_last_word(passage)
        assert tokenizer.encode(context) == span.tokens[: -span.num_scored].tolist()
        assert tokenizer.decode(span.tokens[-span.num_scored :]) == answer
