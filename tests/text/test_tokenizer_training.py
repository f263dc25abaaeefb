import os
import signal
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from threading import Event, Thread
from types import SimpleNamespace
from typing import get_args

import pytest
from tiny_text import TEXTS, one_line, tiny_tokenizer

from hornbook.cli.tokenizer_command import _KINDS
from hornbook.errors import DataError, UserError
from hornbook.text.special_tokens import BERT_TOKENS, ROBERTA_TOKENS
from hornbook.text.tokenizer import Tokenizer
from hornbook.text.tokenizer_json import byte_symbols
from hornbook.text.tokenizer_training import MIN_VOCAB_SIZES, Kind, _train

KINDS = get_args(Kind)


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_deterministic(kind):
    first, second = Tokenizer.train(TEXTS, 300, kind=kind), Tokenizer.train(reversed(TEXTS), 300, kind=kind)
    assert first.digest == second.digest
    program = (
        "from hornbook.text.tokenizer import Tokenizer; "
        f"print(*{{Tokenizer.train({TEXTS!r}, 300, kind={kind!r}).digest for _ in range(3)}})"
    )
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == first.digest


def test_the_command_knows_the_kinds():
    assert KINDS == _KINDS == tuple(MIN_VOCAB_SIZES)


def test_byte_pairs_know_all_bytes_and_have_their_special_tokens_at_the_ends():
    plain, robertas = tiny_tokenizer(), Tokenizer.train(TEXTS, 304, kind="roberta")
    assert set(byte_symbols()) < set(plain.vocab)
    names = sorted(robertas.vocab, key=robertas.vocab.__getitem__)
    assert (*names[:4], names[-1]) == ROBERTA_TOKENS == robertas.special
    assert names[4:-1] == sorted(plain.vocab, key=plain.vocab.__getitem__)[:-1]
    assert robertas.settings["model"]["merges"] == plain.settings["model"]["merges"]


def test_word_pieces_are_special_tokens_then_characters_then_words():
    names = list(Tokenizer.train(TEXTS, 120, kind="wordpiece").vocab)
    assert tuple(names[:5]) == BERT_TOKENS
    letters = sorted(set("".join(TEXTS).lower().replace("é", "e")) - set(" \r\n"))
    assert names[5 : 5 + len(letters)] == letters
    rest = names[5 + len(letters) :]
    continuing = [name for name in rest if len(name.removeprefix("##")) == 1]
    assert rest[: len(continuing)] == sorted(continuing) and "##t" in continuing and "##:" not in continuing
    assert {"the", "cat", "mat", "story"} <= set(rest)


def merges_of(words, alphabet, count):
    """WordPiece's training, as plainly as can be: the most frequent pair, of several that of the first symbols."""
    order = list(alphabet)
    spelled = {word: [word[0], *(f"##{letter}" for letter in word[1:])] for word in words}
    for _ in range(count):
        pairs = Counter()
        for word, symbols in spelled.items():
            for pair in pairwise(symbols):
                pairs[pair] += words[word]
        first, second = min(pairs, key=lambda pair: (-pairs[pair], *map(order.index, pair)))
        order.append(first + second.removeprefix("##"))
        for symbols in spelled.values():
            for place in reversed(range(len(symbols) - 1)):
                if symbols[place : place + 2] == [first, second]:
                    symbols[place : place + 2] = order[-1:]
    return order[len(alphabet) :]


def test_word_pieces_are_those_of_a_plain_implementation():
    texts = [f"{word} {word[:3]} {word[2:]} un{word}s" for word in ("lower", "newest", "widest", "slower", "tower")] * 2
    tokens = list(Tokenizer.train(texts, 100, kind="wordpiece").vocab)[5:]
    size = next(number for number, token in enumerate(tokens) if len(token.removeprefix("##")) > 1)
    words = Counter(" ".join(texts).split())
    assert tokens[size:] == merges_of(words, tokens[:size], len(tokens) - size) and len(tokens) - size > 30


def test_case_and_accents_are_kept_where_they_are_to_be():
    cased = Tokenizer.train(["Über Über"], 100, kind="wordpiece", lowercase=False)
    assert "Über" in cased.vocab and cased.encode("über")[0] == cased.vocab["[UNK]"]
    uncased = Tokenizer.train(["Über Über"], 100, kind="wordpiece")
    assert uncased.encode("ÜBER über") == [uncased.vocab["uber"]] * 2


def test_rare_characters_have_no_token():
    """A thousand characters or 99.95 % of the text, whichever are more; and never more than half of the vocabulary."""
    common = "".join(chr(0x4E00 + number) for number in range(1200))
    rare = "".join(chr(0xAC00 + number) for number in range(100))
    tokenizer = Tokenizer.train([common * 200, rare], 5000, kind="wordpiece")
    found = Counter("rare" if token in rare else "common" for token in tokenizer.vocab if token[0] >= "一")
    assert found == {"common": 1200}
    assert set(tokenizer.encode(f"{rare[0]} a")) == {tokenizer.vocab["[UNK]"]}
    few = Tokenizer.train([common], 105, kind="wordpiece")
    assert few.vocab_size == 5 + 50 and "一" in few.vocab


def test_training_finds_the_most_frequent_pairs():
    tokenizer = Tokenizer.train(["aaab aaab aaab xy"], 259)
    assert tokenizer.settings["model"]["merges"][0] == ["a", "a"]
    assert tokenizer.vocab_size == 259


@pytest.mark.parametrize("kind", ["byte-bpe", "wordpiece"])
def test_endless_words_take_no_endless_time(kind):
    """The library would train for hours on a genome of so many characters."""
    words = "gene " * 2000
    trained = Tokenizer.train([words + "GATTACA" * 200_000, words], 400, kind=kind)
    assert trained.decode(trained.encode("gene GATTACA")).lower() == "gene gattaca"
    assert len(trained.encode("gene")) == 1


def test_few_texts_give_fewer_tokens():
    assert Tokenizer.train(["ab ab"], 5000).vocab_size < 300


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0, 99, (1 << 20) + 1])
def test_vocabulary_sizes_out_of_range(size, kind):
    with pytest.raises(UserError) as caught:
        Tokenizer.train(TEXTS, size, kind=kind)
    assert one_line(caught.value, str(size), f"expected {MIN_VOCAB_SIZES[kind]} (")


@pytest.mark.parametrize("kind", KINDS)
def test_training_passes_errors_on(kind):
    def broken():
        yield "text"
        raise DataError("line 2 is broken")

    with pytest.raises(DataError, match="line 2 is broken"):
        Tokenizer.train(broken(), 300, kind=kind)
    with pytest.raises(UserError, match="no text"):
        Tokenizer.train([], 300, kind=kind)


def test_ctrl_c_does_not_wait_for_the_library(monkeypatch):
    begun, released = Event(), Event()

    def train_from_iterator(*_):
        begun.set()
        released.wait(60)

    monkeypatch.setattr("hornbook.text.tokenizer_training._PATIENCE", 0.01)
    Thread(target=lambda: begun.wait(60) and os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            _train(SimpleNamespace(train_from_iterator=train_from_iterator), iter(()), None)
    finally:
        released.set()
