"""Training of tokenizers: repeatedly merge the most frequent pair of adjacent tokens into a new token.

    "low low slow"   ->   l·o (3), lo·w (3), s·low (1), ...          byte-level BPE (Sennrich et al., 2016)
    "low low slow"   ->   ##o·##w (3), l·##ow (2), s·##l (1), ...    WordPiece: the first letter of a word has no ##

The same texts give the same tokenizer, in any order, on any machine. The library's trainer breaks ties by symbol
number and numbers WordPiece's ``##x`` symbols in the order of a hash table, which differs between processes; therefore
words are counted here first, and their symbols are passed in sorted order. Memory holds the distinct words.
"""

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from itertools import accumulate, takewhile
from threading import Event, Thread
from typing import Final, Literal

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from hornbook.errors import UserError
from hornbook.text.cuts import CUT_CHARACTERS, GPT2_CUT, cuts, stretches_for
from hornbook.text.special_tokens import BERT_TOKENS, ROBERTA_TOKENS, Settings
from hornbook.text.tokenizer_json import MAX_VOCAB_SIZE, PREFIX, by_id, byte_bpe, byte_symbols, word_piece

Kind = Literal["byte-bpe", "roberta", "wordpiece"]

END_OF_TEXT: Final = "<|endoftext|>"
MIN_VOCAB_SIZES: Final[dict[Kind, int]] = {"byte-bpe": 256 + 1, "roberta": 256 + len(ROBERTA_TOKENS), "wordpiece": 100}
"""256 bytes and the special tokens; for WordPiece, the special tokens and some letters."""

_MIN_CHARACTERS: Final = 1000
_COVERAGE: Final = 0.9995
_RAW_WORDS: Final = 1 << 20
_REPEATED: Final = 1 << 14
_LONGEST_WORD: Final = 1000
"""Characters; the library's time grows with the square of a word's length."""
_PATIENCE: Final = 0.5
"""Seconds that a thread has to end after Ctrl-C."""
_ENDLESS: Final = CUT_CHARACTERS + 4096
"""Characters of a stretch that ends with thousands without a boundary, such as a genome."""


def train_settings(
    documents: Iterable[str], vocab_size: int, *, kind: Kind = "byte-bpe", lowercase: bool = True
) -> Settings:
    """Train a tokenizer and return its JSON.

    Args:
        documents: the texts, iterated once.
        vocab_size: number of tokens; little text may give fewer.
        kind: ``"byte-bpe"``, as in GPT-2, with ``<|endoftext|>`` last; ``"roberta"``, the same with RoBERTa's special
            tokens, four of them first and ``<mask>`` last; ``"wordpiece"``, as in BERT, with its special tokens first.
        lowercase: for WordPiece: convert texts to lower case and strip accents.

    Raises:
        UserError: ``vocab_size`` is out of range, or there is no text.
    """
    if not MIN_VOCAB_SIZES[kind] <= vocab_size <= MAX_VOCAB_SIZE:
        least = {"byte-bpe": "256 bytes and the end-of-text token", "roberta": "256 bytes and 5 special tokens"}
        raise UserError(
            f"`vocab_size={vocab_size}` is out of range: expected {MIN_VOCAB_SIZES[kind]} "
            f"({least.get(kind, 'special tokens and letters')}) to {MAX_VOCAB_SIZE}"
        )
    seen = _Counted(documents)
    if kind == "wordpiece":
        trained = _train_word_pieces(seen, vocab_size, lowercase)
    else:
        trained = _train_byte_pairs(seen, vocab_size, ROBERTA_TOKENS if kind == "roberta" else (END_OF_TEXT,))
    if not seen.count:
        raise UserError("no text to train a tokenizer on; check the inputs")
    return trained


def _train_byte_pairs(documents: Iterable[str], vocab_size: int, special: tuple[str, ...]) -> Settings:
    """Train a byte-level BPE; the last special token gets the last id, the others get the first ids."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(special), initial_alphabet=list(byte_symbols()), show_progress=False
    )
    _train(library, (part for text in documents for part in _parts_of(text)), trainer)
    model = json.loads(library.to_str())["model"]  # the library has no other access to the merges
    assert not set(special) & set(model["vocab"]), "the pattern prevents merges that spell a special token"
    *first, last = special
    tokens = [*first, *by_id(model["vocab"]), last]
    return byte_bpe({token: number for number, token in enumerate(tokens)}, model["merges"])


def _parts_of(text: str) -> Iterator[str]:
    """Split a text between its words, and endless ones at any character."""
    for stretch in cuts(text, GPT2_CUT):
        size = len(stretch) if len(stretch) <= _ENDLESS else _LONGEST_WORD
        yield from (stretch[start : start + size] for start in range(0, len(stretch), max(1, size)))


def _train_word_pieces(documents: Iterable[str], vocab_size: int, lowercase: bool) -> Settings:
    """Train WordPiece; ids: special tokens, characters, ``##`` characters, merges."""
    counts = _count_words(documents, lowercase)
    characters = _alphabet(counts, at_most=(vocab_size - len(BERT_TOKENS)) // 2)
    words = sorted(word for word in counts if len(word) <= _LONGEST_WORD and characters.issuperset(word))
    symbols = [*sorted(characters), *sorted({PREFIX + character for word in words for character in word[1:]})]
    library = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=[*BERT_TOKENS, *symbols], show_progress=False
    )
    _train(library, (run for word in words for run in _repeated(word, counts[word])), trainer)
    return word_piece(by_id(library.get_vocab()), lowercase=lowercase)


def _train(library: tokenizers.Tokenizer, texts: Iterator[str], trainer: trainers.Trainer) -> None:
    """Train in a thread, since Python acts on Ctrl-C only when the library returns, which can take hours.

    After Ctrl-C or SIGTERM, a thread that reads texts is stopped; one that merges ends with the process.
    """
    trained, stopped = Future[None](), Event()

    def run() -> None:
        try:
            library.train_from_iterator(takewhile(lambda _: not stopped.is_set(), texts), trainer)
        except BaseException as error:
            trained.set_exception(error)
        else:
            trained.set_result(None)

    thread = Thread(target=run, daemon=True)
    thread.start()
    try:
        trained.result()
    except BaseException:
        stopped.set()
        thread.join(_PATIENCE)
        raise


def _count_words(documents: Iterable[str], lowercase: bool) -> Counter[str]:
    """Count the words by BERT's rules, which are applied once to each distinct string between white space."""
    normalizer, words, raw = normalizers.BertNormalizer(lowercase=lowercase), Counter[str](), Counter[str]()
    stretches = stretches_for(word_piece({"[UNK]": 0}, lowercase=lowercase), "wordpiece")
    assert stretches is not None, "BERT's rules are known"
    pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def settle() -> None:
        for text, count in raw.items():
            for word, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(text)):
                words[word] += count
        raw.clear()

    for text in documents:
        for cut in stretches(text, CUT_CHARACTERS):
            raw.update(cut.split())
        if len(raw) > _RAW_WORDS:
            settle()
    settle()
    return words


def _alphabet(counts: Counter[str], at_most: int) -> set[str]:
    """Return the most frequent characters: 1000 (as BERT), or more to cover 99.95 % of the text (as SentencePiece)."""
    characters: Counter[str] = Counter()
    for word, count in counts.items():
        for character in word:
            characters[character] += count
    ranked = sorted(characters, key=lambda character: (-characters[character], character))
    covered = accumulate(characters[character] for character in ranked)
    needed = bisect_left(list(covered), _COVERAGE * characters.total()) + 1
    return set(ranked[: min(at_most, max(_MIN_CHARACTERS, needed))])


def _repeated(word: str, count: int) -> Iterator[str]:
    """Yield texts that together have ``count`` copies of a word, each followed by a blank."""
    whole, rest = divmod(count, _REPEATED)
    yield from (f"{word} " * _REPEATED for _ in range(whole))
    yield f"{word} " * rest


class _Counted:
    """An iterable of texts that counts them."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = texts
        self.count = 0

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            self.count += 1
            yield text
