"""Read and write the tokenizer of a Hugging Face folder.

::

    tokenizer.json | vocab.json, merges.txt | encoder.json, vocab.bpe | vocab.txt    -> Tokenizer
    Tokenizer, byte-level BPE   -> tokenizer.json, tokenizer_config.json, vocab.json, merges.txt
    Tokenizer, WordPiece        -> tokenizer.json, tokenizer_config.json, vocab.txt

Where hornbook starts prompts with the end-of-text token, the written tokenizer adds it (``with_start``).
One difference remains: in transformers, the name of a special token inside a text is that token (unless
``split_special_tokens=True``); here it is text.
"""

import json
from pathlib import Path
from typing import Any, Final

from hornbook.errors import CheckpointError, DataError
from hornbook.exchange.contents import inside
from hornbook.storage.json_files import dump_json, read_json
from hornbook.text.special_tokens import ROLE_NAMES, start_of, with_start
from hornbook.text.tokenizer import Tokenizer
from hornbook.text.tokenizer_json import dump, read_bert_config
from hornbook.text.tokenizer_names import FILES

_PAIRS: Final = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
"""File names of a vocabulary and its merges, in transformers and at OpenAI."""


def read_tokenizer(folder: Path, vocab_size: int) -> Tokenizer | None:
    """Return the tokenizer of a folder, or None if it has no tokenizer files.

    Raises:
        DataError: the tokenizer is malformed, of an unsupported kind, or larger than ``vocab_size``.
        CheckpointError: one of its files is a link that leaves the folder.
        StorageError: a file cannot be read.
    """
    if not has_tokenizer(folder):
        return None
    there = _there(folder)
    if "tokenizer.json" not in there and "tokenizer_config.json" in there:
        settings = read_json(folder / "tokenizer_config.json", "the settings of the tokenizer")
        if isinstance(settings, dict) and settings.get("add_prefix_space"):
            raise DataError(f"{folder / 'tokenizer_config.json'} asks for add_prefix_space; expected false as in GPT-2")
    tokenizer = Tokenizer.load(folder)
    if tokenizer.form == "wordpiece" and "tokenizer_config.json" in there:
        _refuse_two_opinions(tokenizer.settings["normalizer"], folder / "tokenizer_config.json")
    if tokenizer.vocab_size > vocab_size:
        raise DataError(f"{folder}: the tokenizer has {tokenizer.vocab_size} tokens, its model {vocab_size} rows")
    return tokenizer


def has_tokenizer(folder: Path) -> bool:
    """Return whether a folder has tokenizer files, readable or not.

    Raises CheckpointError if one of them is a link that leaves the folder.
    """
    there = _there(folder)
    return bool(there & {"tokenizer.json", "vocab.txt"}) or any(there.issuperset(pair) for pair in _PAIRS)


def has_start_token(folder: Path, tokenizer: Tokenizer) -> bool:
    """Return whether transformers puts the end-of-text token before texts, by the files of a folder.

    Raises:
        DataError: its settings are malformed.
    """
    there = _there(folder)
    if "tokenizer.json" in there:
        settings = read_json(folder / "tokenizer.json", "the tokenizer")
        return tokenizer.end_of_text is not None and start_of(settings) == tokenizer.end_of_text_id
    settings = read_json(folder / "tokenizer_config.json", "its settings") if "tokenizer_config.json" in there else {}
    return isinstance(settings, dict) and settings.get("add_bos_token") is True and tokenizer.end_of_text is not None


def tokenizer_files(
    tokenizer: Tokenizer, max_positions: int, *, generates: bool = False, has_start: bool = False
) -> dict[str, bytes]:
    """Return the files that transformers' ``AutoTokenizer`` reads, by name.

    Args:
        tokenizer: the tokenizer.
        max_positions: the model's.
        generates: whether its model continues texts, so that a batch of prompts is padded on the left.
        has_start: whether each text starts with the end-of-text token.

    Raises:
        CheckpointError: a token contains white space or a line end, which the plain files cannot represent.
    """
    names = {role: tokenizer.name_of(role) for role in ROLE_NAMES}
    tokens = {f"{'unk' if role == 'unknown' else role}_token": name for role, name in names.items() if name}
    settings = {"model_max_length": max_positions, "clean_up_tokenization_spaces": False, **tokens}
    files: dict[str, bytes] = {}
    own: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if tokenizer.form == "byte-bpe":
        files, own = _byte_pair_files(tokenizer), _byte_pair_settings(tokenizer)
    elif tokenizer.form == "wordpiece":
        files, own = _word_piece_files(tokenizer), _word_piece_settings(tokenizer)
    elif tokenizer.end_of_text:
        own["eos_token"] = tokenizer.end_of_text
    description = tokenizer.settings
    if generates and tokenizer.end_of_text is not None:
        ends = dict.fromkeys(("bos_token", "eos_token", "pad_token"), tokenizer.end_of_text)
        own |= ends | {"padding_side": "left", "add_bos_token": has_start}
    if has_start and tokenizer.end_of_text is not None:
        description = with_start(description, tokenizer.end_of_text, tokenizer.vocab[tokenizer.end_of_text])
        if own["tokenizer_class"] != "GPT2Tokenizer":
            own["tokenizer_class"] = "PreTrainedTokenizerFast"  # another class has a frame of its own
    return {
        "tokenizer.json": dump(description).encode(),
        **files,
        "tokenizer_config.json": dump_json(settings | own),
    }


def _there(folder: Path) -> set[str]:
    return {inside(folder, name).name for name in (*FILES, *_PAIRS[1]) if (folder / name).exists()}


def _refuse_two_opinions(ours: dict[str, Any], path: Path) -> None:
    """Raise DataError if settings and tokenizer.json differ; transformers follows the settings."""
    theirs = read_bert_config(path)
    if ours["strip_accents"] is None:
        ours = ours | {"strip_accents": ours["lowercase"]}
    for key, value in theirs.items():
        if ours[key] != value and not (key == "strip_accents" and value is None):
            raise DataError(f"{path} and tokenizer.json do not agree on {key}; correct one of them")


def _byte_pair_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    merges = [" ".join(pair) for pair in tokenizer.settings["model"]["merges"]]
    if any(len(merge.split()) != 2 for merge in merges):
        raise CheckpointError("a merge of the tokenizer contains white space; this tokenizer cannot be exported")
    return {
        "vocab.json": json.dumps(tokenizer.vocab, ensure_ascii=False).encode(),
        "merges.txt": "\n".join(["#version: 0.2", *merges, ""]).encode(),
    }


def _byte_pair_settings(tokenizer: Tokenizer) -> dict[str, object]:
    if tokenizer.settings["post_processor"] is None:
        ends = dict.fromkeys(("bos_token", "eos_token", "unk_token"), tokenizer.end_of_text)
        return {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False, **ends}
    flags = dict.fromkeys(("single_word", "rstrip", "normalized"), False) | {"lstrip": True, "special": True}
    mask = {"__type": "AddedToken", "content": "<mask>", **flags}
    ends = {"bos_token": "<s>", "eos_token": "</s>"}
    return {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": False, **ends, "mask_token": mask}


def _word_piece_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    if any("\n" in token or "\r" in token for token in tokenizer.vocab):
        raise CheckpointError("a token of the tokenizer contains a line end; this tokenizer cannot be exported")
    return {"vocab.txt": "".join(f"{token}\n" for token in tokenizer.vocab).encode()}


def _word_piece_settings(tokenizer: Tokenizer) -> dict[str, object]:
    """Return BERT's settings: its class builds the tokenizer from these, or else the generic class is needed."""
    switches, longest = tokenizer.settings["normalizer"], tokenizer.settings["model"]["max_input_chars_per_word"]
    return {
        "tokenizer_class": "BertTokenizer" if switches["clean_text"] and longest == 100 else "PreTrainedTokenizerFast",
        "do_lower_case": switches["lowercase"],
        "strip_accents": switches["strip_accents"],
        "tokenize_chinese_chars": switches["handle_chinese_chars"],
    }
