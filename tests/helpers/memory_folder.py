"""Folders of tests that end processes and sync files hundreds of times."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """In memory where the system has such a folder: fsync costs nothing there, and a process dies there as anywhere."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield tmp_path_factory.mktemp("disk")
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="hornbook-") as folder:
        yield Path(folder)
