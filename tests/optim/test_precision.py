"""The compute dtype follows the choice, and the device where the choice is left to it."""

import pytest
import torch

from hornbook.optim import precision
from hornbook.optim.precision import compute_dtype, has_fast_bf16
from hornbook.storage.system import cpu_flags

CPU = torch.device("cpu")
X86 = "processor\t: 0\nflags\t\t: fpu sse avx2 {}\nbogomips: 1\n\nprocessor\t: 1\nflags\t\t: fpu\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd {}\n"


@pytest.fixture
def cpuinfo(tmp_path, monkeypatch):
    """Let the processor describe itself by the given text."""

    def write(text: str) -> None:
        path = tmp_path / "cpuinfo"
        path.write_text(text)
        monkeypatch.setattr(precision, "cpu_flags", lambda: cpu_flags(path))

    return write


def test_a_choice_is_obeyed_on_any_device():
    assert compute_dtype("fp32", torch.device("cuda")) == torch.float32
    assert compute_dtype("bf16", CPU) == torch.bfloat16


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (X86.format("avx512_bf16"), torch.bfloat16),
        (X86.format("amx_tile amx_bf16"), torch.bfloat16),
        (X86.format("avx512f"), torch.float32),
        (ARM.format("bf16"), torch.bfloat16),
        (ARM.format("sve"), torch.float32),
        ("", torch.float32),
    ],
    ids=["avx512", "amx", "old x86", "arm", "old arm", "silent"],
)
def test_auto_asks_the_processor(cpuinfo, text, expected):
    cpuinfo(text)
    assert compute_dtype("auto", CPU) == expected


def test_a_system_without_cpuinfo_counts_as_slow(monkeypatch, tmp_path):
    monkeypatch.setattr(precision, "cpu_flags", lambda: cpu_flags(tmp_path / "absent"))
    assert cpu_flags(tmp_path / "absent") == set()
    assert not has_fast_bf16(CPU)


@pytest.mark.parametrize(("capability", "fast"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_auto_asks_the_gpu_for_its_generation(monkeypatch, capability, fast):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert has_fast_bf16(torch.device("cuda")) is fast
