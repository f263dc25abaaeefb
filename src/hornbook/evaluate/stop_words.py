"""The stop words of LAMBADA's filter: words that rarely end a passage, so that predictions of them are skipped.

GPT-2's paper (Radford et al. 2019, 3.3) filters by an unpublished list. This is NLTK's English list of that time, 127
words, which reproductions have used.
"""

from typing import Final

import torch
from torch import Tensor

from hornbook.text.tokenizer import Tokenizer

_LIST: Final = """
    i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her hers herself it
    its itself they them their theirs themselves what which who whom this that these those
    am is are was were be been being have has had having do does did doing can will just don should now s t
    a an the and but if or because as until while of at by for with about against between into through during before
    after above below to from up down in out on off over under
    again further then once here there when where why how all any both each few more most other some such no nor not
    only own same so than too very
"""
STOP_WORDS: Final = frozenset(_LIST.split())


def stop_word_tokens(tokenizer: Tokenizer, vocab_size: int) -> Tensor:
    """Return bool ``[vocab_size]``: whether a token is a stop word after a blank, in upper or lower case."""
    known = min(vocab_size, tokenizer.vocab_size)
    texts = [tokenizer.decode([index]) for index in range(known)]
    banned = [text.startswith(" ") and text[1:].lower() in STOP_WORDS for text in texts]
    return torch.tensor([*banned, *[False] * (vocab_size - known)])
