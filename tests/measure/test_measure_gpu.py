"""The script that measures a GPU runs, shrunk, on a CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent.parent / "tools" / "measure_gpu.py"


@pytest.mark.parametrize(
    ("device", "compiled"),
    [
        pytest.param("cpu", "none", marks=pytest.mark.slow),
        pytest.param("cpu", "blocks", marks=pytest.mark.slow),
        pytest.param("cuda", "none", marks=pytest.mark.gpu),
        pytest.param("cuda", "blocks", marks=pytest.mark.gpu),
    ],
)
def test_it_measures_each_variant(tmp_path, device, compiled):
    file = tmp_path / "measured.json"
    options = ["--device", device, "--compute", "fp32", "--shrink", "--rounds", "1", "--micro-batch-sizes", "1", "2"]
    words = [sys.executable, SCRIPT, *options, "--compile", compiled, "--json", file]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    rows = [(row["micro_batch_size"], row["attention"], row["compile"]) for row in found["rows"]]
    assert rows == [(size, attention, compiled) for attention in ("fused", "plain") for size in (1, 2)]
    for row in found["rows"]:
        assert row["mfu"] == pytest.approx(row["tflops"] * 1e12 / found["peak"])
        assert row["tokens_per_second"] > 0.0
    assert len(done.stdout.splitlines()) == 2 + len(rows)
