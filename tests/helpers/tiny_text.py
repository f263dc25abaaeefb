"""A tokenizer of 300 tokens, some texts and corpora of them, for tests that need any."""

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from hornbook.corpora.building.builder import BuildOptions, BuildReport, Progress, build_corpus
from hornbook.text.documents import ReadOptions
from hornbook.text.tokenizer import Tokenizer

SHARED = Path(__file__).parents[3] / "shared" / "data"
TEXTS = tuple(f"story {number}: " + "the cat sat on the mat, " * (number % 7) + "é😀\r\n" for number in range(60))
READ_TEXTS = tuple(text.replace("\r\n", "\n") for text in TEXTS)
"""The same as they are read: CRLF becomes LF."""


@cache
def tiny_tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS, 300)


def one_line(error: BaseException, *parts: str) -> bool:
    """Tell whether an error's message is one line that has all of ``parts`` in it."""
    message = str(error)
    return "\n" not in message and all(part in message for part in parts)


def write_texts(folder: Path) -> list[Path]:
    """Put the texts into a folder: ten plain files, and the rest as JSONL."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(TEXTS[:10]):
        (folder / f"{number}.txt").write_bytes(text.encode())
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS[10:])
    (folder / "rest.jsonl").write_text(lines)
    return sorted(folder.iterdir())


def build_tiny(
    output: Path,
    *,
    inputs: Sequence[str | Path] = (),
    on_progress: Callable[[Progress], None] = lambda progress: None,
    on_notice: Callable[[str], None] = lambda line: None,
    **options: object,
) -> BuildReport:
    """Build a corpus of the texts, which are put beside it; a quarter is validation unless said otherwise."""
    texts = output.parent / "texts"
    if not texts.exists():
        write_texts(texts)
    chosen = BuildOptions(**({"validation": 0.25, "reading": ReadOptions()} | options))  # type: ignore[arg-type]
    return build_corpus(inputs or [texts], tiny_tokenizer(), output, chosen, on_progress, on_notice)
