r"""Text out of ids that come one at a time: half characters wait for their other half, stop strings end it.

    ids       "Caf"  C3  A9  " a"  "u la"  "it\n\nQ:"      stop string "\n\n"
    gives     "Caf"  ""  "é" " a"  "u la"  "it"            and has stopped

What may yet become a stop string is held back until it is one or is not, however the tokens cut it. The text is that
of ``Tokenizer.decode`` for all ids at once. What a token spells may depend on the tokens before it (a blank at the
beginning, bytes of one character), so the last few are decoded again with each new one.
"""

import codecs
from collections.abc import Sequence

from hornbook.text.tokenizer import Tokenizer
from hornbook.text.tokenizer_json import BYTE_TOKEN, symbol_bytes


class TextStream:
    """The text of ids that come one at a time; bytes that are no UTF-8 become U+FFFD.

    The text ends before the first of ``stop_strings`` that is complete, and then ``has_stopped``. It continues that of
    the ids ``context``, which is not given out.
    """

    def __init__(self, tokenizer: Tokenizer, stop_strings: Sequence[str] = (), context: Sequence[int] = ()) -> None:
        self.has_stopped = False
        self._tokenizer, self._stop_strings = tokenizer, stop_strings
        self._ids, self._num_told = list(context), len(context)
        self._told = tokenizer.decode(self._ids)
        self._held = ""

    def push(self, token: int) -> str:
        """Take an id and return the text that is certain by now, perhaps none."""
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        if BYTE_TOKEN.fullmatch(self._tokenizer.token(token)) or (text.endswith("\ufffd") and self._is_half()):
            return ""
        if self._has_ended(self._take(text)):
            return self._release(len(self._held))
        longest = min(max(map(len, self._stop_strings), default=1) - 1, len(self._held))
        ends = (n for n in range(longest, 0, -1) if any(s.startswith(self._held[-n:]) for s in self._stop_strings))
        return self._release(len(self._held) - next(ends, 0))  # a stop string may begin with what is held back

    def finish(self) -> str:
        """Return what was held back; no more ids come."""
        self._has_ended(self._take(self._tokenizer.decode(self._ids)))
        return self._release(len(self._held))

    def _is_half(self) -> bool:
        """Tell whether the ids end in bytes that further ones may make a character."""
        bytes_of, data = symbol_bytes(), b""
        for token in map(self._tokenizer.token, self._ids):  # of a byte-level model, or any other
            data += bytes(map(bytes_of.__getitem__, token)) if bytes_of.keys() >= set(token) else token.encode()
        return codecs.utf_8_decode(data, "replace", False)[1] < len(data)

    def _take(self, text: str) -> str:
        """Return what a text has more than the one before, and forget the ids of that one."""
        new = text[len(self._told) :]
        if new:
            self._ids, self._num_told = self._ids[self._num_told :], len(self._ids) - self._num_told
            self._told = self._tokenizer.decode(self._ids)
        return new

    def _has_ended(self, text: str) -> bool:
        """Take text and cut it at a stop string; tell whether there was one, now or before."""
        if self.has_stopped:
            return True
        self._held += text
        places = [(place + len(stop), place) for stop in self._stop_strings if (place := self._held.find(stop)) >= 0]
        if places:
            _, start = min(places)  # complete first, however many characters came at once
            self._held, self.has_stopped = self._held[:start], True
        return self.has_stopped

    def _release(self, end: int) -> str:
        certain, self._held = self._held[:end], self._held[end:]
        return certain
