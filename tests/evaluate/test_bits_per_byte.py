"""What bits per byte say of themselves; the numbers are held in test_validation.py."""

from dataclasses import replace

import pytest

from hornbook.evaluate import bits_per_byte
from hornbook.evaluate.bits_per_byte import read
from tiny_tasks import tiny_input
from tiny_text import build_tiny


@pytest.mark.parametrize("end_of_text", ["stored", "absent"])
def test_the_convention_is_that_of_the_store(tmp_path, monkeypatch, end_of_text):
    build_tiny(tmp_path / "corpus")
    given = tiny_input(data=str(tmp_path / "corpus"))
    store = replace(read(given), end_of_text=end_of_text)
    monkeypatch.setattr(bits_per_byte, "read", lambda given: store)
    first, *_ = bits_per_byte.bits_per_byte(given)
    whole = f"{store.num_bytes:,} bytes of {store.num_documents} documents"
    expected = {
        "stored": f"every byte scored: {whole}, each after an end-of-text token; ",
        "absent": f"every byte scored but those of the first token: {whole}, with no end-of-text token between them; ",
    }
    assert first.convention.startswith(expected[end_of_text])
