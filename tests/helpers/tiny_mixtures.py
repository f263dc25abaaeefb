"""Two small corpora, one tokenizer, and runs on both."""

from pathlib import Path
from typing import Any

from tiny_runs import run_tiny
from tiny_text import build_tiny


def build_corpora(folder: Path) -> tuple[str, str]:
    """Two corpora of the same texts: one stores its end-of-text tokens, the other leaves them to readers."""
    build_tiny(folder / "stored")
    build_tiny(folder / "inserted", end_of_text="inserted", validation=0.5)
    return str(folder / "stored"), str(folder / "inserted")


def run_mixture(folder: Path, corpora: tuple[str, ...], *overrides: str) -> dict[str, Any]:
    """Train in ``folder / "run"`` on the corpora."""
    given = (f"--data.train={','.join(corpora)}", "--data.synthetic=false", "--model.vocab-size=none")
    return run_tiny(folder, *given, *overrides)
