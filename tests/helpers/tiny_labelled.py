"""Labelled texts and questions of a few words, with a WordPiece tokenizer that knows them."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from hornbook.text.tokenizer import Tokenizer

SEAS = ("the white whale swims in the sea", "a ship and its captain hunt the whale", "sailors row boats over the sea")
BALLS = ("the sisters dance at the ball", "a gentleman of fortune wants a wife", "letters and dances in the house")
CONTEXT = "The white whale swam past the ship. Captain Ahab hunted the white whale with a harpoon of iron."


@cache
def word_pieces() -> Tokenizer:
    return Tokenizer.train([*SEAS, *BALLS, CONTEXT] * 3, 130, kind="wordpiece")


def write_jsonl(path: Path, rows: Sequence[dict[str, object]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def labelled_rows(num_rounds: int = 1) -> list[dict[str, object]]:
    """Texts of two classes, in turn; each round's differ by a word."""
    pairs = [(number, pair) for number in range(num_rounds) for pair in zip(SEAS, BALLS, strict=True)]
    return [
        {"text": f"{text} {'whale ' * number}", "label": label}
        for number, texts in pairs
        for text, label in zip(texts, ("moby", "pride"), strict=True)
    ]


def question(number: int, asked: str, *answers: tuple[str, int], **changes: object) -> dict[str, object]:
    found = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": f"q{number}", "question": asked, "answers": found, **changes}


def write_squad(path: Path, questions: Sequence[dict[str, object]], context: str = CONTEXT) -> str:
    document = {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": questions}]}]}
    path.write_text(json.dumps(document))
    return str(path)


QUESTIONS = (
    question(0, "Who hunted the whale?", ("Captain Ahab", CONTEXT.index("Captain"))),
    question(1, "What swam past?", ("The white whale", 0), ("whale", 10)),
    question(2, "With what?", ("a harpoon of iron", CONTEXT.index("a harpoon"))),
)
