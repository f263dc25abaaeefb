"""The tokens that are no text, by what they are for.

    role        BERT      RoBERTa     what it does
    cls         [CLS]     <s>         begins a sequence
    sep         [SEP]     </s>        ends a sequence, and each of a pair
    mask        [MASK]    <mask>      hides a token that is to be guessed
    pad         [PAD]     <pad>       fills a row up
    unknown     [UNK]     <unk>       stands for a word that has no tokens

A tokenizer's file has names and ids of its special tokens. What begins and ends a sequence is in its post-processor;
any other role goes by the name, so a special token with a name of somebody's own has no role.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

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
"""The names of a token that ends a text; WordPiece of BERT's kind has none."""


@dataclass(frozen=True, kw_only=True)
class MaskingTokens:
    """What it takes to hide tokens and to lay sequences out for an encoder; see ``Tokenizer.require_masking``.

    Attributes:
        cls: id of the token that begins a sequence.
        sep: id of the token that ends one.
        mask: id of the token that hides another.
        pad: id of the token that fills a row up.
        vocab_size: number of ids; a random one is below it.
        special_ids: ids that are never hidden, and that no other token is replaced by; those above are among them.
    """

    cls: int
    sep: int
    mask: int
    pad: int
    vocab_size: int
    special_ids: frozenset[int]
