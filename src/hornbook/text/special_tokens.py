"""Special tokens: their roles, and their places in the JSON of a tokenizer.

    role        BERT      RoBERTa     purpose
    cls         [CLS]     <s>         begins a sequence
    sep         [SEP]     </s>        ends a sequence, and each text of a pair
    mask        [MASK]    <mask>      replaces a token to predict
    pad         [PAD]     <pad>       pads a row
    unknown     [UNK]     <unk>       replaces a word that cannot be encoded

A tokenizer's file has the names and ids of its special tokens. Its post-processor determines the tokens that begin and
end a sequence; other roles are determined by name, so a special token with an unusual name has no role.

Hornbook never applies the post-processor. For other libraries, ``with_start`` writes one that puts a start token before
each text, and records the old one as the name of an unused special token, since the format has no place for comments;
``without_start`` restores it, so that the digest is that of the corpora.

The files beside a tokenizer name its end-of-text token; the first that names one decides:

    tokenizer_config.json       "eos_token": "<|endoftext|>", or {"content": "<|endoftext|>", ...}
    special_tokens_map.json     the same
    generation_config.json      "eos_token_id": 32000, or a list of ids, of which the first counts

The name is recorded in the JSON of the tokenizer, in its model, where the tokenizers library ignores it, since a store
or a checkpoint keeps nothing else of the folder. The trade-off: for a model tuned on conversations these files name the
token that ends a turn, and so do the corpora built with it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from hornbook.errors import DataError
from hornbook.storage.json_files import read_json

Role = Literal["cls", "sep", "mask", "pad", "unknown"]

ROLE_NAMES: Final[Mapping[Role, tuple[str, str]]] = {
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
    "pad": ("[PAD]", "<pad>"),
    "unknown": ("[UNK]", "<unk>"),
}
BERT_TOKENS: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_TOKENS: Final = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
END_OF_TEXT_NAMES: Final = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]")
"""Names of end-of-text tokens; BERT's WordPiece has none."""

Settings = dict[str, Any]
"""The JSON of a tokenizer."""
_RECORD: Final = "hornbook.instead-of:"
END_OF_TEXT: Final = "end_of_text"
"""The key of the recorded name in the JSON of the model."""
SETTINGS_FILES: Final = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json")


@dataclass(frozen=True, kw_only=True)
class MaskingTokens:
    """The ids for masking tokens and building an encoder's sequences; see ``Tokenizer.require_masking``.

    Attributes:
        cls: id of the token that begins a sequence.
        sep: id of the token that ends a sequence.
        mask: id of the mask token.
        pad: id of the padding token.
        vocab_size: number of ids, the exclusive bound of random replacements.
        special_ids: ids that are never masked nor used as replacements, including those above.
    """

    cls: int
    sep: int
    mask: int
    pad: int
    vocab_size: int
    special_ids: frozenset[int]


def with_start(settings: Settings, name: str, number: int) -> Settings:
    """Return a tokenizer's JSON with a post-processor that only puts the token ``name``, with id ``number``, first."""
    record = _RECORD + json.dumps(settings.get("post_processor"), ensure_ascii=False, separators=(",", ":"))
    first: list[Settings] = [{"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    template = {
        "type": "TemplateProcessing",
        "single": first,
        "pair": [*first, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [name]} for token in (name, record)},
    }
    return {key: template if key == "post_processor" else value for key, value in settings.items()}


def without_start(settings: Settings) -> Settings:
    """Return the JSON from which ``with_start`` made ``settings``; unchanged if it did not."""
    template = settings.get("post_processor")
    tokens = template.get("special_tokens") if isinstance(template, dict) else None
    record = next((name for name in tokens if name.startswith(_RECORD)), None) if isinstance(tokens, dict) else None
    if record is None:
        return settings
    try:
        replaced = json.loads(record.removeprefix(_RECORD))
    except (ValueError, RecursionError):  # not made by with_start
        return settings
    return {key: replaced if key == "post_processor" else value for key, value in settings.items()}


def start_of(settings: Settings) -> int | None:
    """Return the id of the one special token that a tokenizer's post-processor adds, before the text; else None."""
    try:
        processor = settings["post_processor"]
        parts = processor.get("processors", [processor])
        (template,) = (part for part in parts if part["type"] != "ByteLevel")  # which adds no tokens
        first, text = template["single"]
        (number,) = template["special_tokens"][first["SpecialToken"]["id"]]["ids"]
    except (KeyError, TypeError, ValueError, AttributeError):  # none, or another form
        return None
    return number if type(number) is int and "Sequence" in text else None


def read_end_of_text(folder: Path) -> str | int | None:
    """Return the name or the id of the token that the files of a folder name, or None.

    Raises DataError if a file is malformed.
    """
    for name in SETTINGS_FILES:
        path = folder / name
        if not path.exists():
            continue
        settings = read_json(path, "the settings of the tokenizer")
        if not isinstance(settings, dict):
            raise DataError(f"{path}: expected an object with settings; restore the file")
        is_id = name == "generation_config.json"
        found = settings.get("eos_token_id" if is_id else "eos_token")
        if isinstance(found, dict):
            found = found.get("content")
        if isinstance(found, list) and is_id:
            found = found[0] if found else None
        if found is not None:
            if type(found) is not (int if is_id else str):
                kind = "the id of a token" if is_id else "the name of a token"
                raise DataError(f"{path}: the end-of-text token is {found!r:.40}; expected {kind}")
            return found if isinstance(found, int) else str(found)
    return None


def record_end_of_text(settings: dict[str, Any], named: str | int | None) -> dict[str, Any]:
    """Return the JSON of a tokenizer with the name of its end-of-text token, which becomes a special token.

    Unchanged for a name that is not in the vocabulary, for WordPiece, which has no such token, and for [SEP], which
    some encoders name.
    """
    model = settings["model"]
    vocab = model.get("vocab")
    pieces = enumerate(vocab) if isinstance(vocab, list) else ()
    try:
        ids = {piece[0]: number for number, piece in pieces} if isinstance(vocab, list) else dict(vocab or {})
        added = list(settings.get("added_tokens") or [])
        ids |= {token["content"]: token["id"] for token in added}
    except (TypeError, KeyError, ValueError, IndexError):  # malformed, which the library reports
        return settings
    name = next((token for token, number in ids.items() if number == named), None) if isinstance(named, int) else named
    if name not in ids or name in ROLE_NAMES["sep"][:1] or model.get("type") == "WordPiece":
        return settings
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    known = [token for token in added if token["content"] == name]
    special = {"id": ids[name], "content": name, **plain, **(known[0] if known else {}), "special": True}
    others = [token for token in added if token["content"] != name]
    return settings | {
        "added_tokens": sorted([*others, special], key=lambda token: int(token["id"])),
        "model": model | {END_OF_TEXT: name},
    }


def without_end_of_text(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON without the recorded name of the end-of-text token."""
    model = settings["model"]
    if END_OF_TEXT not in model:
        return settings
    return settings | {"model": {key: value for key, value in model.items() if key != END_OF_TEXT}}
