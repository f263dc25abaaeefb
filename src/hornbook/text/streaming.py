r"""Incremental decoding: text from ids one at a time, with incomplete characters held back, up to a stop string.

    ids       "Caf"  C3  A9  " a"  "u la"  "it\n\nQ:"      stop string "\n\n"
    text      "Caf"  ""  "é" " a"  "u la"  "it"            has_stopped

Text that may be the beginning of a stop string is held back until that is decided, however the tokens split it. The
concatenated text is that of ``Tokenizer.decode`` for all ids. The text of a token may depend on the tokens before it (a
leading blank, the bytes of one character), so the last few are decoded again with each new one.
"""

import codecs
from collections.abc import Sequence

from hornbook.text.tokenizer import Tokenizer
from hornbook.text.tokenizer_json import BYTE_TOKEN, symbol_bytes


class TextStream:
    """An incremental decoder; invalid UTF-8 becomes U+FFFD.

    Args:
        tokenizer: decodes the ids.
        stop_strings: the text ends before the first of them that is complete, and ``has_stopped`` becomes true.
        context: ids before the first one pushed, whose text is not returned.
    """

    def __init__(self, tokenizer: Tokenizer, stop_strings: Sequence[str] = (), context: Sequence[int] = ()) -> None:
        self.has_stopped = False
        self._tokenizer, self._stop_strings = tokenizer, stop_strings
        self._ids, self._num_decoded = list(context), len(context)
        self._decoded = tokenizer.decode(self._ids)
        self._held = ""

    def push(self, token: int) -> str:
        """Append an id; return the text that is now certain, possibly empty."""
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        if BYTE_TOKEN.fullmatch(self._tokenizer.token(token)) or (text.endswith("\ufffd") and self._is_half()):
            return ""
        if self._extend(text):
            return self._release(len(self._held))
        longest = min(max(map(len, self._stop_strings), default=1) - 1, len(self._held))
        ends = (n for n in range(longest, 0, -1) if any(s.startswith(self._held[-n:]) for s in self._stop_strings))
        return self._release(len(self._held) - next(ends, 0))

    def finish(self) -> str:
        """Return the text held back, after the last id."""
        self._extend(self._tokenizer.decode(self._ids))
        return self._release(len(self._held))

    def _is_half(self) -> bool:
        """Return whether the ids end with the first bytes of a character."""
        bytes_of, data = symbol_bytes(), b""
        for token in map(self._tokenizer.token, self._ids):  # of a byte-level model, or any other
            data += bytes(map(bytes_of.__getitem__, token)) if bytes_of.keys() >= set(token) else token.encode()
        return codecs.utf_8_decode(data, "replace", False)[1] < len(data)

    def _extend(self, text: str) -> bool:
        """Append what is new in the text of the ids, and drop those of what was there before.

        Truncates at a stop string; returns whether one was found, now or before.
        """
        new = text[len(self._decoded) :]
        if new:
            self._ids, self._num_decoded = self._ids[self._num_decoded :], len(self._ids) - self._num_decoded
            self._decoded = self._tokenizer.decode(self._ids)
        if self.has_stopped:
            return True
        self._held += new
        spans = [(start + len(stop), start) for stop in self._stop_strings if (start := self._held.find(stop)) >= 0]
        if spans:
            _, start = min(spans)  # the one that is complete first, even if one id completes several
            self._held, self.has_stopped = self._held[:start], True
        return self.has_stopped

    def _release(self, end: int) -> str:
        certain, self._held = self._held[:end], self._held[end:]
        return certain
