"""Long texts in stretches, cut only where a tokenizer's pieces end anyway, so that the ids are those of the whole text.

    "one two three four", 7 characters or more, a blank begins a piece   ->   "one two", " three four"

Stretches are encoded in parallel: more even for the cores, a third faster even for one, and memory stays bounded.
Where pieces end is known for the patterns below; a text for any other tokenizer stays whole. The library takes up to
250 bytes of memory for a byte of a stretch, so a reader of documents refuses one that has too many (``find_endless``).
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

from hornbook.text.tokenizer_json import Settings, form_of

CUT_CHARACTERS: Final = 16_384
MAX_STRETCH_BYTES: Final = 2 << 20
"""Of a document, in UTF-8, without a place to cut: if each byte is a token, that is half a gibibyte in the library."""
MAX_WHOLE_BYTES: Final = 8 << 20
"""Of a document, in UTF-8, for a tokenizer whose pieces are not known; ordinary text has a token for every 4 bytes."""

Stretches: TypeAlias = Callable[[str, int], Iterator[str]]

_LETTERS: Final = "A-Za-zぁ-ゖァ-ヺー一-龥가-힣"
_MARKS: Final = r"!-/:-@\[-`{-~、。，．；：！？「」『』（）《》…"
GPT2_CUT: Final = re.compile(rf"\S(?=[ \n])|[{_LETTERS}](?=[0-9{_MARKS}])|[0-9](?=[{_LETTERS}{_MARKS}])")
"""The last character of a piece of GPT-2's pattern, whatever comes before and after it.

White space, but for one blank, can only begin a piece; and no piece has a letter, a number or a mark behind one of
another kind, but for the letters of 's and its like, so nothing is cut behind a mark. These letters and marks are so
for every version of Unicode that a library may have.
"""
BERT_CUT: Final = re.compile(r"[ \n\t!-/:-@\[-`{-~、。，]")
CHINESE_CUT: Final = re.compile(BERT_CUT.pattern.replace("]", "\u4e00-\u9fff]"))
"""What BERT's rules drop, or make a word of its own, whatever comes before and after it."""

_TIKTOKEN_LIKE: Final = re.compile(
    r"\(\?i:'s\|'t\|'re\|'ve\|'m\|'ll\|'d\)\|\[\^\\r\\n\\p\{L\}\\p\{N\}\]\?\\p\{L\}\+\|\\p\{N\}(\{1,3\})?"
    r"\| \?\[\^\\s\\p\{L\}\\p\{N\}\]\+\[\\r\\n\]\*\|\\s\*\[\\r\\n\]\+\|\\s\+\(\?!\\S\)\|\\s\+"
)
"""The patterns of GPT-4, Llama 3 and Qwen 2."""
_TIKTOKEN_CUT: Final = re.compile(r"[!-~](?= )")
"""In those patterns, a blank behind anything but white space begins a piece."""


def stretches_for(settings: Settings) -> Stretches | None:
    """Return how to cut texts for a tokenizer, None where its pieces are not known.

    The function takes a text and a number of characters, and cuts it into stretches of that many or a few more.
    """
    form = form_of(settings)
    if form == "wordpiece":
        return _word_piece_stretches(settings)
    place = GPT2_CUT if form == "byte-bpe" else _TIKTOKEN_CUT if _is_tiktoken_like(settings) else None
    return None if place is None else lambda text, size: cuts(text, place, size)


def cuts(text: str, place: re.Pattern[str], size: int = CUT_CHARACTERS) -> Iterator[str]:
    """Cut a text into stretches of ``size`` characters or a few more; an empty text is one stretch.

    ``place`` matches what a stretch may end with, whatever comes before and after it.
    """
    start = 0
    while len(text) - start > size and (match := place.search(text, start + size - 1)):
        yield text[start : match.end()]
        start = match.end()
    if start < len(text) or not start:
        yield text[start:]


def utf8_bound(stretch: str) -> int:
    """The most bytes that a stretch may have in UTF-8, at no cost."""
    return len(stretch) if stretch.isascii() else 4 * len(stretch)


def find_endless(text: str, stretches: Stretches | None) -> str | None:
    """Return what is wrong with a text that would take too much memory, None where nothing is."""
    most = MAX_WHOLE_BYTES if stretches is None else MAX_STRETCH_BYTES
    if utf8_bound(text) <= most:
        return None
    pieces = [text] if stretches is None else stretches(text, CUT_CHARACTERS)
    long = (piece for piece in pieces if utf8_bound(piece) > most)
    size = max((len(piece.encode(errors="surrogatepass")) for piece in long), default=0)
    if size <= most:
        return None
    where = "has to be encoded whole" if stretches is None else "has no blank, line end or other place to cut it"
    return (
        f"has {size:,} bytes and {where} for the tokenizer; expected at most {most:,} bytes: break it into lines or "
        "documents, or leave the document out (--on-error skip)"
    )


def _word_piece_stretches(settings: Settings) -> Stretches:
    """Cut as BERT's rules allow; a run of letters without end is shortened to as many as make a word unknown."""
    longest = settings["model"]["max_input_chars_per_word"]
    endless = re.compile(rf"([A-Za-z0-9]{{{longest + 1}}})[A-Za-z0-9]+")
    place = CHINESE_CUT if settings["normalizer"]["handle_chinese_chars"] else BERT_CUT

    def stretches(text: str, size: int) -> Iterator[str]:
        for stretch in cuts(text, place, size):
            yield endless.sub(r"\1", stretch) if len(stretch) > 2 * size else stretch

    return stretches


def _is_tiktoken_like(settings: Settings) -> bool:
    """Tell whether texts are split by one of the patterns of ``_TIKTOKEN_LIKE`` before anything else happens."""
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
