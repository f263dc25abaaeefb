"""The files that hold a tokenizer, and the folders that hold those.

    tokenizer.json                           any tokenizer of the tokenizers library
    dict.txt, encoder.json, vocab.bpe        byte-level BPE, with RoBERTa's ids (fairseq)
    encoder.json, vocab.bpe                  byte-level BPE (OpenAI)
    vocab.json, merges.txt                   byte-level BPE (Hugging Face, Megatron)
    vocab.txt                                WordPiece (Google's BERT): a token a line, the id is the line's number

Of a folder with several, the first in this list counts.
"""

from pathlib import Path
from typing import Any, Final

from hornbook.errors import DataError
from hornbook.storage.json_files import parse_json, read_bytes, read_json
from hornbook.text.special_tokens import BERT_TOKENS, ROBERTA_TOKENS
from hornbook.text.tokenizer_json import Settings, byte_bpe, byte_symbols, parse, word_piece

_PAIRS: Final = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"), ("*-vocab.json", "*-merges.txt"))
_BERT_NAMES: Final = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


def read_settings(path: Path) -> Settings:
    """Return the JSON of the tokenizer in a file or folder.

    Raises:
        DataError: there is no tokenizer, or a file is malformed.
        StorageError: a file cannot be read.
    """
    if not path.is_dir():
        return _read_vocab_txt(path) if path.suffix == ".txt" else parse(read_bytes(path, "the tokenizer"), str(path))
    if (path / "tokenizer.json").exists():
        return read_settings(path / "tokenizer.json")
    for names in _PAIRS:
        found = [file for name in names for file in path.glob(name)]
        if len(found) == 2:
            return _read_byte_pairs(found[0], found[1], path / "dict.txt" if names == _PAIRS[0] else None)
    if (path / "vocab.txt").exists():
        return _read_vocab_txt(path / "vocab.txt")
    raise DataError(
        f"{path} holds no tokenizer: expected tokenizer.json, encoder.json and vocab.bpe, vocab.json and merges.txt, "
        "or vocab.txt"
    )


def read_bert_config(path: Path) -> dict[str, Any]:
    """Return what a ``tokenizer_config.json`` of transformers says about BERT's normalizer, by that one's names.

    Raises:
        DataError: it is malformed.
        StorageError: it cannot be read.
    """
    config = read_json(path, "the settings of the tokenizer")
    if not isinstance(config, dict):
        raise DataError(f"{path}: expected an object with the settings of the tokenizer; restore the file")
    switches = {ours: config[theirs] for theirs, ours in _BERT_NAMES.items() if theirs in config}
    for theirs, ours in _BERT_NAMES.items():
        if type(switches.get(ours, True)) is not bool and not (ours == "strip_accents" and switches[ours] is None):
            raise DataError(f"{path}: {theirs} is {switches[ours]!r:.40}; expected true or false")
    return switches


def _read_vocab_txt(path: Path) -> Settings:
    """Read a vocabulary of BERT; whether texts are lowercased is in ``tokenizer_config.json``, or shows in its case."""
    vocab: dict[str, int] = {}
    for number, token in enumerate(_read_lines(path, "the vocabulary")):
        if not token or vocab.setdefault(token, number) != number:
            earlier = f"is that of line {vocab[token] + 1} again" if token else "is empty"
            raise DataError(f"{path}, line {number + 1}: the token {earlier}; expected a token a line, each once")
    if "[UNK]" not in vocab:
        raise DataError(f"{path}: the vocabulary has no token for unknown words; expected [UNK]")
    config = path.with_name("tokenizer_config.json")
    switches = read_bert_config(config) if config.exists() else {}
    is_lower = all(token == token.lower() for token in vocab if token not in BERT_TOKENS)
    return word_piece(vocab, **({"lowercase": is_lower} | switches))


def _read_byte_pairs(vocabulary: Path, merges: Path, dictionary: Path | None) -> Settings:
    vocab = parse_json(read_bytes(vocabulary, "the vocabulary"), f"{vocabulary}: it")
    if not isinstance(vocab, dict) or sorted(map(str, vocab.values())) != sorted(map(str, range(len(vocab)))):
        raise DataError(f"{vocabulary}: expected tokens and their ids 0 to n - 1, each once; restore the file")
    if lost := sum(symbol not in vocab for symbol in byte_symbols()):  # the library would drop those without a word
        raise DataError(f"{vocabulary}: {lost} of the 256 bytes have no token, so not every text can be encoded")
    lines = _read_lines(merges, "the list of merges")
    pairs = []
    for number, line in enumerate(lines[int(lines[0].startswith("#version")) :], 1 + lines[0].startswith("#version")):
        left, _, right = line.partition(" ")
        if not left or not right or " " in right:
            raise DataError(f"{merges}, line {number} is not two tokens: {line!r:.40}; restore the file")
        if not vocab.keys() >= {left, right, left + right}:
            raise DataError(f"{merges}, line {number} ({line!r:.80}) is not in the vocabulary {vocabulary.name}")
        pairs.append((left, right))
    return byte_bpe(_robertas_ids(dictionary, vocab) if dictionary and dictionary.exists() else vocab, pairs)


def _robertas_ids(dictionary: Path, vocab: dict[str, int]) -> dict[str, int]:
    """Return RoBERTa's ids for GPT-2's tokens.

    The dictionary's row n (from 0) is the token n + 4, after ``<s>``, ``<pad>``, ``</s>``, ``<unk>``. Its last rows are
    fillers, as many as make a multiple of 8 of it; more of them are left out. ``<mask>`` has the last id.
    """
    token_of = {str(number): token for token, number in vocab.items()}
    names = [line.rpartition(" ")[0] for line in _read_lines(dictionary, "RoBERTa's dictionary")]
    known = [name in token_of for name in names]
    if sum(known) != len(token_of) or not all(known[: len(token_of)]) or len(set(names)) < len(names):
        raise DataError(f"{dictionary}: expected a row for each of the {len(token_of)} ids of GPT-2, and then fillers")
    *first, mask = ROBERTA_TOKENS
    fillers = names[len(token_of) :][: -(len(first) + len(token_of)) % 8]
    tokens = [*first, *(token_of[name] for name in names[: len(token_of)]), *fillers, mask]
    return {token: number for number, token in enumerate(tokens)}


def _read_lines(path: Path, what: str) -> list[str]:
    """Return the lines of a small file in UTF-8, of Unix or Windows."""
    try:
        lines = read_bytes(path, what).decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}; restore the file") from error
    return [line.removesuffix("\r") for line in lines]
