r"""Text out of ids that come one at a time: half characters wait for their other half, stop strings end it.

    ids       "Caf"  C3  A9  " a"  "u la"  "it\n\nQ:"      stop string "\n\n"
    gives     "Caf"  ""  "é" " a"  "u la"  "it"            and has stopped

What may yet become a stop string is held back until it is one or is not, however the tokens cut it. The text is that
of ``Tokenizer.decode`` for all ids at once; the price is a table of every token's bytes.
"""

import codecs
from collections.abc import Sequence

from hornbook.text.byte_pairs import byte_symbols
from hornbook.text.tokenizer import Tokenizer


def token_bytes(tokenizer: Tokenizer) -> list[bytes]:
    """Return the bytes that each id stands for; a special token's are those of its name."""
    byte_of = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    table = [b""] * tokenizer.vocab_size
    for token, number in tokenizer.byte_pairs.vocab.items():
        is_plain = all(symbol in byte_of for symbol in token)
        table[number] = bytes(byte_of[symbol] for symbol in token) if is_plain else token.encode()
    return table


class TextStream:
    """One text that grows; bytes that are no UTF-8 become U+FFFD.

    Args:
        bytes_of: each id's bytes, see ``token_bytes``.
        stop_strings: the text ends before the first of them that is complete. None is empty.

    Attributes:
        has_stopped: True once there was a stop string.
    """

    def __init__(self, bytes_of: Sequence[bytes], stop_strings: Sequence[str] = ()) -> None:
        self.has_stopped = False
        self._bytes_of, self._stop_strings = bytes_of, stop_strings
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def push(self, token: int) -> str:
        """Take an id and return the text that is certain by now, perhaps none."""
        if self._has_ended(self._decoder.decode(self._bytes_of[token])):
            return self._release(len(self._held))
        return self._release(len(self._held) - self._num_undecided())

    def finish(self) -> str:
        """Return what was held back; no more ids come."""
        self._has_ended(self._decoder.decode(b"", final=True))
        return self._release(len(self._held))

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

    def _num_undecided(self) -> int:
        """Return the length of the longest end of the text that a stop string begins with."""
        longest = max(map(len, self._stop_strings), default=1) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stop_strings):
                return length
        return 0
