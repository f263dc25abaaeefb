"""Translate byte-level BPE to the tokenizer in a GGUF file, so that llama.cpp finds the same ids.

::

    tokenizer.json (vocab, merges, added tokens)    tokenizer.ggml.tokens, token_type, merges
    its pattern                                     tokenizer.ggml.pre: the name of a pattern in llama.cpp
    the end-of-text token                           tokenizer.ggml.bos_token_id, eos_token_id, add_bos_token

As in hornbook, the name of a special token in a text is text there, unless the caller asks for the token
(``parse_special``). Ids of the model that the tokenizer lacks are named ``[PAD300]``.
"""

from collections.abc import Callable
from typing import Any, Final

from hornbook.errors import CheckpointError
from hornbook.text.special_tokens import Settings
from hornbook.text.tokenizer import Tokenizer
from hornbook.text.tokenizer_json import form_of

_WORDS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_MARKS: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS: Final = {
    (rf"{_WORDS}\p{{N}}{{1,3}}{_MARKS}", True): "llama-bpe",
    (rf"{_WORDS}\p{{N}}{{1,3}}{_MARKS}", False): "dbrx",
    (rf"{_WORDS}\p{{N}}{_MARKS}", False): "qwen2",
}
"""llama.cpp's names of the patterns of Llama 3, GPT-4 and Qwen, by pattern and ``ignore_merges``."""


def add_tokenizer(
    writer: Any, tokenizer: Tokenizer, vocab_size: int, *, has_start: bool, warn: Callable[[str], None]
) -> None:
    """Add the keys of a tokenizer to a ``gguf.GGUFWriter``.

    Args:
        writer: the writer.
        tokenizer: byte-level BPE.
        vocab_size: number of ids of the model.
        has_start: whether each text starts with the end-of-text token.
        warn: called for a difference that some texts show.

    Raises:
        CheckpointError: llama.cpp has no such tokenizer.
    """
    from gguf import TokenType

    settings, end = tokenizer.settings, tokenizer.end_of_text_id
    pattern = _pattern(settings)
    merges = [" ".join(pair) for pair in settings["model"].get("merges", ())]
    if any(len(merge.split(" ")) != 2 for merge in merges):
        raise CheckpointError("a merge of the tokenizer contains a blank; llama.cpp cannot represent this tokenizer")
    if end is None:
        raise CheckpointError("the tokenizer has no end-of-text token, which llama.cpp needs to end a text")
    normalizer = settings.get("normalizer")
    if normalizer is not None and normalizer != {"type": "NFC"}:
        raise CheckpointError(
            f"the tokenizer has the normalizer {normalizer.get('type')!r:.40}, which llama.cpp cannot represent"
        )
    if normalizer is not None:
        warn(
            "llama.cpp does not bring texts into Unicode's form NFC, as the tokenizer does; give it texts in this form"
        )
    tokens = [f"[PAD{number}]" for number in range(vocab_size)]
    types = [TokenType.UNUSED] * vocab_size
    for token, number in tokenizer.vocab.items():
        tokens[number], types[number] = token, TokenType.NORMAL
    for token in settings.get("added_tokens") or ():
        types[token["id"]] = TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pattern)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(has_start)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)
    if tokenizer.pad_id is not None:
        writer.add_pad_token_id(tokenizer.pad_id)


def _pattern(settings: Settings) -> str:
    """Return llama.cpp's name of a tokenizer's pattern. Raises CheckpointError if it has no such pattern."""
    if form_of(settings) == "byte-bpe":
        return "gpt-2"
    parts = (settings.get("pre_tokenizer") or {}).get("pretokenizers") or []
    found = None
    if settings["model"].get("type") == "BPE" and [part.get("type") for part in parts] == ["Split", "ByteLevel"]:
        split, level = parts
        is_plain = not split.get("invert") and split.get("behavior") == "Isolated"
        if is_plain and not level.get("use_regex", True) and not level.get("add_prefix_space", True):
            regex = split.get("pattern", {}).get("Regex")
            found = _PATTERNS.get((regex, bool(settings["model"].get("ignore_merges"))))
    if found is None:
        raise CheckpointError(
            "llama.cpp cannot represent this tokenizer; expected byte-level BPE with the pattern of GPT-2, GPT-4, "
            "Llama 3 or Qwen"
        )
    return found
