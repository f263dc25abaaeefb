"""Splitting of long texts into stretches at boundaries between a tokenizer's pieces, which leaves the ids unchanged.

    "one two three four", 7 characters or more, a blank begins a piece   ->   "one two", " three four"

Stretches are encoded in parallel: the cores are loaded more evenly, even a single core is a third faster, and memory is
bounded. The boundaries are known for the patterns below; for any other tokenizer, texts are not split. The library
needs up to 250 bytes of memory per byte of a stretch, so documents with a longer one are rejected (``find_endless``).
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

from hornbook.text.special_tokens import Settings
from hornbook.text.tokenizer_json import Form

CUT_CHARACTERS: Final = 16_384
MAX_STRETCH_BYTES: Final = 2 << 20
"""Limit in UTF-8 for a stretch without a boundary: if each byte is a token, the library needs 0.5 GiB."""
MAX_WHOLE_BYTES: Final = 8 << 20
"""Limit in UTF-8 for a document whose boundaries are not known; ordinary text has a token for every 4 bytes."""

Stretches: TypeAlias = Callable[[str, int], Iterator[str]]

_LETTERS: Final = "A-Za-zぁ-ゖァ-ヺー一-龥가-힣"
_MARKS: Final = r"!-/:-@\[-`{-~、。，．；：！？「」『』（）《》…"
GPT2_CUT: Final = rf"\S(?=[ \n])|[{_LETTERS}](?=[0-9{_MARKS}])|[0-9](?=[{_LETTERS}{_MARKS}])"
"""Characters that end a piece of GPT-2's pattern in any context; compiled when they are first searched for.

White space can only begin a piece, except that a piece may begin with one blank. Letters, numbers and marks are never
in the same piece, except for contractions such as 's, so no cut follows a mark. The listed letters and marks are ones
in every version of Unicode that a library may have.
"""
BERT_CUT: Final = r"[ \n\t!-/:-@\[-`{-~、。，]"
CHINESE_CUT: Final = BERT_CUT[:-1] + "\u4e00-\u9fff]"
"""Characters that BERT's rules remove or make a separate word in any context."""

_TIKTOKEN_LIKE: Final = re.compile(
    r"\(\?i:'s\|'t\|'re\|'ve\|'m\|'ll\|'d\)\|\[\^\\r\\n\\p\{L\}\\p\{N\}\]\?\\p\{L\}\+\|\\p\{N\}(\{1,3\})?"
    r"\| \?\[\^\\s\\p\{L\}\\p\{N\}\]\+\[\\r\\n\]\*\|\\s\*\[\\r\\n\]\+\|\\s\+\(\?!\\S\)\|\\s\+"
)
"""The patterns of GPT-4, Llama 3 and Qwen 2."""
_TIKTOKEN_CUT: Final = r"[!-~](?= )"
"""In those patterns, a blank after anything but white space begins a piece."""


def stretches_for(settings: Settings, form: Form | None) -> Stretches | None:
    """Return a function that splits texts for a tokenizer of this form, or None if its boundaries are not known.

    The function takes a text and a number of characters, and yields stretches of that many or a few more.
    """
    if form == "wordpiece":
        return _word_piece_stretches(settings)
    last = GPT2_CUT if form == "byte-bpe" else _TIKTOKEN_CUT if _is_tiktoken_like(settings) else None
    return None if last is None else lambda text, size: cuts(text, last, size)


def cuts(text: str, last: str, size: int = CUT_CHARACTERS) -> Iterator[str]:
    """Split a text into stretches of ``size`` characters or a few more; an empty text is one stretch.

    The pattern ``last`` matches the characters that may end a stretch, in any context.
    """
    start, pattern = 0, re.compile(last)
    while len(text) - start > size and (match := pattern.search(text, start + size - 1)):
        yield text[start : match.end()]
        start = match.end()
    if start < len(text) or not start:
        yield text[start:]


def utf8_bound(stretch: str) -> int:
    """Return an upper bound of the stretch's length in UTF-8, without encoding it."""
    return len(stretch) if stretch.isascii() else 4 * len(stretch)


def find_endless(text: str, stretches: Stretches | None) -> str | None:
    """Return why encoding a text would take too much memory, or None; see the limits above."""
    most = MAX_WHOLE_BYTES if stretches is None else MAX_STRETCH_BYTES
    if utf8_bound(text) <= most:
        return None
    pieces = [text] if stretches is None else stretches(text, CUT_CHARACTERS)
    long = (piece for piece in pieces if utf8_bound(piece) > most)
    size = max((len(piece.encode(errors="surrogatepass")) for piece in long), default=0)
    if size <= most:
        return None
    what = "which the tokenizer must encode at once" if stretches is None else "without a blank or line end to split at"
    return (
        f"has {size:,} bytes {what}; expected at most {most:,} bytes: break it into lines or documents, or skip it "
        "(`on_error='skip'`)"
    )


def _word_piece_stretches(settings: Settings) -> Stretches:
    """Split by BERT's rules; a long run of letters is shortened to a length that still makes the word unknown."""
    longest = settings["model"]["max_input_chars_per_word"]
    endless = re.compile(rf"([A-Za-z0-9]{{{longest + 1}}})[A-Za-z0-9]+")
    last = CHINESE_CUT if settings["normalizer"]["handle_chinese_chars"] else BERT_CUT

    def stretches(text: str, size: int) -> Iterator[str]:
        for stretch in cuts(text, last, size):
            yield endless.sub(r"\1", stretch) if len(stretch) > 2 * size else stretch

    return stretches


def _is_tiktoken_like(settings: Settings) -> bool:
    """Return whether the tokenizer first splits texts by one of the patterns of ``_TIKTOKEN_LIKE``."""
    tokens: Any = settings.get("added_tokens") or []
    split, *_ = (settings.get("pre_tokenizer") or {}).get("pretokenizers") or [{}]
    return (
        settings.get("normalizer") is None
        and all(token["special"] for token in tokens)
        and split.get("type") == "Split"
        and split.get("behavior") == "Isolated"
        and not split.get("invert")
        and _TIKTOKEN_LIKE.fullmatch(split["pattern"].get("Regex", "")) is not None
    )
