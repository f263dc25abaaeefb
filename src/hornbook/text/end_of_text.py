"""The end-of-text token that the files beside a tokenizer name.

    tokenizer_config.json       "eos_token": "<|endoftext|>", or {"content": "<|endoftext|>", ...}
    special_tokens_map.json     the same
    generation_config.json      "eos_token_id": 32000, or a list of ids, of which the first counts

The first of these files that names a token decides. The name is recorded in the JSON of the tokenizer, in its model,
where the tokenizers library ignores it, since a store or a checkpoint keeps nothing else of the folder. The trade-off:
for a model tuned on conversations these files name the token that ends a turn, and so do the corpora built with it.
"""

from pathlib import Path
from typing import Any, Final

from hornbook.errors import DataError
from hornbook.storage.json_files import read_json
from hornbook.text.special_tokens import ROLE_NAMES

END_OF_TEXT: Final = "end_of_text"
"""The key of the recorded name in the JSON of the model."""
SETTINGS_FILES: Final = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json")


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
