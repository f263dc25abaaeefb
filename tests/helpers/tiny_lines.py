"""A corpus of sentences, one a line, with a WordPiece tokenizer: what encoders learn from, built from real files."""

import random
from functools import cache
from pathlib import Path

from hornbook.corpora.building.builder import BuildOptions, build_corpus
from hornbook.text.documents import ReadOptions
from hornbook.text.tokenizer import Tokenizer

_WORDS = [
    begin + middle + end
    for begin in ("ri", "to", "ca", "sma", "lo")
    for middle in ("ver", "wn", "t", "ll", "ndo")
    for end in ("", "s", "ing")
]


def line_texts(seed: int = 0) -> list[str]:
    """Documents of two to eight sentences."""
    draws = random.Random(seed)
    sentences = [
        [" ".join(draws.choices(_WORDS, k=draws.randint(3, 9))) + "." for _ in range(draws.randint(2, 8))]
        for _ in range(12)
    ]
    return ["\n".join(document) + "\n" for document in sentences]


@cache
def line_tokenizer() -> Tokenizer:
    """WordPiece of 100 tokens; longer words take several."""
    return Tokenizer.train(line_texts(), 100, kind="wordpiece")


def build_lines(folder: Path, *, seed: int = 0, **options: object) -> str:
    """Build ``folder / "corpus"`` from one file with blank lines between documents; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lines.txt").write_text("\n".join(line_texts(seed=seed)))
    chosen = {"sequences": "lines", "reading": ReadOptions(format="blank-lines")} | options
    build_corpus([folder / "lines.txt"], line_tokenizer(), folder / "corpus", BuildOptions(**chosen))  # type: ignore[arg-type]
    return str(folder / "corpus")
