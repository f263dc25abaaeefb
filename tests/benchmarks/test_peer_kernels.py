"""The peers' steps on the roofline: both are counted, and slower than hornbook's."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_both_peers_are_counted() -> None:
    pytest.importorskip("transformers")
    command = [sys.executable, str(ROOT / "benchmarks" / "peer_kernels.py"), "--micro-batch-size", "16"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    found = dict(re.findall(r"^(\w+): [\d,]+ kernels, [\d.]+ ms, MFU at most ([\d.]+)%$", done.stdout, re.MULTILINE))
    assert found == {"nanoGPT": "33.6", "transformers": "15.8"}  # as docs/plan.md says
