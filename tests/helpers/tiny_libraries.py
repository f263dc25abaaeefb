"""Small tokenizers of the kinds that people publish, made with the tokenizers library alone."""

import json
from functools import cache

import tokenizers
from tiny_text import TEXTS
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
KINDS = ("llama3", "llama2", "t5", "words")


@cache
def library_json(kind: str) -> str:
    """The ``tokenizer.json`` of a kind, with its special tokens and its post-processor."""
    made: tokenizers.Tokenizer = {"llama3": _llama3, "llama2": _llama2, "t5": _t5, "words": _words}[kind]()
    return made.to_str()


def library(kind: str) -> tokenizers.Tokenizer:
    """The library's own tokenizer, for which the names of special tokens are text."""
    made = tokenizers.Tokenizer.from_str(library_json(kind))
    made.encode_special_tokens = True
    return made


def _llama3() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(Regex(LLAMA3_PATTERN), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False))
    made.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    begin = made.token_to_id("<|begin_of_text|>")
    template = processors.TemplateProcessing("<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)])
    made.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return made


def _llama2() -> tokenizers.Tokenizer:
    marks = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained = tokenizers.Tokenizer(models.BPE())
    trained.normalizer = marks
    trained.train_from_iterator(
        [part for text in TEXTS for part in text.split(",")], trainers.BpeTrainer(vocab_size=80, show_progress=False)
    )
    model = json.loads(trained.to_str())["model"]
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab = {token: number for number, token in enumerate([*first, *model["vocab"]])}
    merges = [tuple(pair) for pair in model["merges"]]
    made = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = marks
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A $B", [("<s>", 1)])
    return made


def _t5() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>", "<mask>"]
    made.train_from_iterator(
        TEXTS, trainers.UnigramTrainer(vocab_size=90, special_tokens=special, unk_token="<unk>", show_progress=False)
    )
    made.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", 1)])
    return made


def _words() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.WordLevel(unk_token="[UNK]"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.train_from_iterator(
        TEXTS, trainers.WordLevelTrainer(vocab_size=50, special_tokens=["[UNK]", "[EOS]"], show_progress=False)
    )
    made.add_tokens([AddedToken("on the mat", special=False)])
    return made
