"""A ``tokenizer.json`` whose post-processor puts a start token before each text, for other libraries.

    Hi   ->   [17250]                        hornbook, which never applies the post-processor
         ->   [50256, 17250]                 tokenizers and transformers, after with_start

    with_start(settings, "<|endoftext|>", 50256)      the post-processor is replaced, and the old one recorded in it
    without_start(with_start(settings, ...))          settings: equal bytes, so the digest is that of the corpora
    start_of(settings)                                50256; None if texts do not start with one special token

The record is the name of an unused special token of the template, since the format has no place for comments.
"""

import json
from typing import Any, Final

Settings = dict[str, Any]

_RECORD: Final = "hornbook.instead-of:"


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
