"""The tokenizer of a Hugging Face folder, both ways.

::

    tokenizer.json | vocab.json, merges.txt   -> Tokenizer
    Tokenizer -> tokenizer.json, vocab.json, merges.txt, tokenizer_config.json

One difference stays, and it is transformers' way: the name ``<|endoftext|>`` inside a text is a special token there
(unless it is called with ``split_special_tokens=True``), and text here.
"""

import json
from pathlib import Path
from typing import Final

from hornbook.checkpoint.huggingface.weights import inside
from hornbook.errors import CheckpointError, DataError
from hornbook.storage.documents import dump_json, read_json
from hornbook.text.tokenizer import Tokenizer

FILES: Final = ("tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json")


def read_tokenizer(folder: Path, vocab_size: int) -> Tokenizer | None:
    """Return the tokenizer of a folder, or None where it has no file of one.

    Raises:
        DataError: hornbook cannot read it, since it is malformed, of another kind, or larger than ``vocab_size``.
        CheckpointError: one of its files is a link that leaves the folder.
        StorageError: a file cannot be read.
    """
    there = [inside(folder, name).name for name in FILES if (folder / name).exists()]
    if "tokenizer.json" not in there and not {"vocab.json", "merges.txt"} <= set(there):
        return None
    if "tokenizer.json" not in there and "tokenizer_config.json" in there:
        settings = read_json(folder / "tokenizer_config.json", "the settings of the tokenizer")
        if isinstance(settings, dict) and settings.get("add_prefix_space"):
            raise DataError(f"{folder / 'tokenizer_config.json'} asks for add_prefix_space; expected GPT-2's way, none")
    tokenizer = Tokenizer.load(folder)
    if tokenizer.vocab_size > vocab_size:
        raise DataError(f"{folder}: the tokenizer has {tokenizer.vocab_size} tokens, its model {vocab_size} rows")
    return tokenizer


def tokenizer_files(tokenizer: Tokenizer, max_positions: int) -> dict[str, bytes]:
    """Return the files that transformers' ``AutoTokenizer`` reads, by name.

    Raises:
        CheckpointError: a token has white space in it, for which ``merges.txt`` has no way.
    """
    pairs, end_of_text = tokenizer.byte_pairs, tokenizer.byte_pairs.end_of_text
    merges = [f"{left} {right}" for left, right in pairs.merges]
    if any(len(merge.split()) != 2 for merge in merges):
        raise CheckpointError("a merge of the tokenizer has white space in it; such a tokenizer cannot be exported")
    vocab = dict(sorted(pairs.vocab.items(), key=lambda item: item[1]))
    settings = {
        "tokenizer_class": "GPT2Tokenizer",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_positions,
        **dict.fromkeys(("bos_token", "eos_token", "unk_token"), end_of_text),
    }
    return {
        "tokenizer.json": tokenizer.to_json().encode(),
        "vocab.json": json.dumps(vocab, ensure_ascii=False).encode(),
        "merges.txt": "\n".join(["#version: 0.2", *merges, ""]).encode(),
        "tokenizer_config.json": dump_json(settings),
    }
