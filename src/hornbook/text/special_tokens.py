"""Special tokens and their roles.

    role        BERT      RoBERTa     purpose
    cls         [CLS]     <s>         begins a sequence
    sep         [SEP]     </s>        ends a sequence, and each text of a pair
    mask        [MASK]    <mask>      replaces a token to predict
    pad         [PAD]     <pad>       pads a row
    unknown     [UNK]     <unk>       replaces a word that cannot be encoded

A tokenizer's file has the names and ids of its special tokens. Its post-processor determines the tokens that begin and
end a sequence; other roles are determined by name, so a special token with an unusual name has no role.
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
"""Names of end-of-text tokens; BERT's WordPiece has none."""


@dataclass(frozen=True, kw_only=True)
class MaskingTokens:
    """The ids for masking tokens and building an encoder's sequences; see ``Tokenizer.require_masking``.

    Attributes:
        cls: id of the token that begins a sequence.
        sep: id of the token that ends a sequence.
        mask: id of the mask token.
        pad: id of the padding token.
        vocab_size: number of ids, the exclusive bound of random replacements.
        special_ids: ids that are never masked nor used as replacements, including those above.
    """

    cls: int
    sep: int
    mask: int
    pad: int
    vocab_size: int
    special_ids: frozenset[int]
