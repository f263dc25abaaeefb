"""Devices by name, and this process's share of the machine."""

import mmap
import platform
import subprocess
import sys

import pytest
import torch

from hornbook.errors import UserError
from hornbook.parallel import device as module
from hornbook.parallel.device import (
    add_up_in,
    choose_device,
    compute_dtype,
    default_threads,
    memory_in_use,
    physical_cores,
    prepare,
    return_freed_memory,
    synchronize,
)
from hornbook.storage.system import cpu_flags


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.fixture
def no_accelerator(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


def test_auto_takes_what_there_is(no_accelerator, monkeypatch):
    assert choose_device("auto") == torch.device("cpu")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device("auto") == torch.device("mps")


def test_a_gpu_comes_first_and_each_local_rank_has_its_own(two_gpus, monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert choose_device("auto") == torch.device("cuda", 0)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert choose_device("cuda") == torch.device("cuda", 1)
    assert choose_device("cuda:0") == torch.device("cuda", 0)
    assert choose_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "mps", "tpu", "", "CPU", "cpu:x", "cpu:1"])
def test_a_device_that_is_not_there_is_one_line(no_accelerator, name):
    with pytest.raises(UserError, match=r"no device .* available: cpu; choose") as caught:
        choose_device(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["cuda:2", "cuda:x", "cuda:", "cuda:-1"])
def test_a_gpu_too_many_is_one_line(two_gpus, name):
    with pytest.raises(UserError, match="no device"):
        choose_device(name)


def test_more_local_ranks_than_gpus_is_one_line(two_gpus, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UserError, match="no device"):
        choose_device("cuda")


def test_hyperthreads_share_a_core(monkeypatch, tmp_path):
    siblings = {0: "0,4", 1: "1,5", 4: "0,4", 5: "1,5"}
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda pid: set(siblings), raising=False)
    monkeypatch.setattr(module, "_siblings", siblings.__getitem__)
    assert physical_cores() == 2


def test_local_ranks_share_the_cores_and_none_goes_without(monkeypatch):
    monkeypatch.setattr(module, "physical_cores", lambda: 8)
    for cores, ranks, threads in ((16, None, 8), (16, "1", 8), (16, "3", 2), (16, "16", 1), (3, None, 3), (3, "2", 1)):
        monkeypatch.setattr(module, "usable_cores", lambda cores=cores: cores)
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        if ranks:
            monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        assert default_threads() == threads


@pytest.mark.parametrize(
    ("asked", "ranks", "threads"),
    [("3", "1", 3), ("3,2", "1", 3), ("1", "1", 1), ("3", "2", 3), ("1", "2", 4), ("x", "1", 8), ("0", "1", 8)],
)
def test_omp_num_threads_counts_unless_torchrun_set_it(monkeypatch, asked, ranks, threads):
    monkeypatch.setattr(module, "physical_cores", lambda: 8)
    monkeypatch.setattr(module, "usable_cores", lambda: 8)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert default_threads() == threads


def test_threads_of_the_command_line_win_over_omp_num_threads(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    try:
        prepare("cpu", None)
        assert torch.get_num_threads() == 3
        prepare("cpu", 2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [0, -1, 9999])
def test_no_threads_are_no_default_and_thousands_would_wait_for_each_other(monkeypatch, threads):
    monkeypatch.setattr(module, "usable_cores", lambda: 4)
    with pytest.raises(UserError, match=f"^threads is {threads}; expected 1 to 64 on this machine, 16 for each core$"):
        prepare("cpu", threads)
    monkeypatch.setenv("OMP_NUM_THREADS", "9999")
    with pytest.raises(UserError, match=r"^OMP_NUM_THREADS is 9999; expected 1 to 64 on this machine"):
        prepare("cpu", None)


def test_prepared_threads_and_denormals():
    prepare("cpu", 1)
    assert torch.get_num_threads() == 1
    try:
        assert (torch.tensor([1e-38]) * 1e-3).item() == 0.0
    finally:
        torch.set_flush_denormal(False)
    synchronize(torch.device("cpu"))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators are left as they are")
def test_freed_memory_is_returned():
    prepare("cpu", 1)
    freed, kept = torch.ones(16 << 20), torch.ones(16)  # what stays behind it keeps its memory in the heap
    del freed
    before = memory_in_use(torch.device("cpu"))
    return_freed_memory()
    torch.set_flush_denormal(False)
    assert memory_in_use(torch.device("cpu")) < before - (48 << 20)
    assert kept.sum() == 16


TOUCH = """
import resource, torch
from hornbook.parallel.device import prepare
if {prepared}:
    prepare("cpu", 1)
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones({numbers})
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
for _ in range(16):
    faults()
print(sum(faults() for _ in range(4)))
"""


def _page_faults(*, prepared: bool) -> int:
    """Pages that four buffers of 64 MiB, each freed before the next, fault in after others of that size.

    glibc keeps smaller ones by itself, up to 32 MiB, once it has seen some. The first buffers may lie side by side: a
    small allocation behind one of them stays in the thread's cache, which holds seven, and leaves a hole just too small
    for the alignment that ``posix_memalign`` looks for before glibc 2.38.
    """
    program = TOUCH.format(prepared=prepared, numbers=16 << 20)
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=True)
    return int(finished.stdout)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators are left as they are")
def test_a_prepared_process_takes_freed_memory_again():
    """Where the kernel hands out huge pages the counts are smaller, but as far apart."""
    assert _page_faults(prepared=True) < _page_faults(prepared=False) / 4


def _allow_tf32():
    torch.backends.cudnn.allow_tf32 = True
    torch.set_float32_matmul_precision("high")


def _allow_tf32_by_operation():
    torch.backends.cudnn.conv.fp32_precision = "tf32"
    torch.backends.cuda.matmul.fp32_precision = "tf32"


@pytest.mark.parametrize("allow", [_allow_tf32, _allow_tf32_by_operation])
def test_fp32_is_not_tf32(allow):
    """Nor is it after a part of one's own, such as transformers' CTC loss, has set cuDNN's flags for a while."""
    allow()
    prepare("cpu", 1)
    for _ in range(2):
        assert not torch.backends.cudnn.allow_tf32
        assert not torch.backends.cuda.matmul.allow_tf32
        assert torch.get_float32_matmul_precision() == "highest"
        assert torch.backends.cudnn.conv.fp32_precision != "tf32"
        with torch.backends.cudnn.flags(enabled=False):
            pass


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks /proc")
@pytest.mark.parametrize(
    ("partials", "parts", "inside"), [("fp32", False, False), ("half", True, True), ("auto", True, False)]
)
def test_partial_sums_are_those_of_the_last_choice(partials, parts, inside):
    """PyTorch knows the settings without a GPU, too; auto is what it comes with."""
    matmul = torch.backends.cuda.matmul
    try:
        add_up_in("half")
        add_up_in(partials)
        assert matmul.allow_bf16_reduced_precision_reduction == parts
        assert matmul.allow_fp16_reduced_precision_reduction == parts
        assert matmul.allow_fp16_accumulation == inside
    finally:
        add_up_in("auto")


def test_memory_in_use_grows_with_what_is_held():
    before = memory_in_use(torch.device("cpu"))
    with mmap.mmap(-1, 32 << 20) as held:
        held.write(b"1" * (32 << 20))
        after = memory_in_use(torch.device("cpu"))
    assert 24 << 20 < after - before < 96 << 20


CPU = torch.device("cpu")
X86 = "processor\t: 0\nflags\t\t: fpu sse avx2 {}\nbogomips: 1\n\nprocessor\t: 1\nflags\t\t: fpu\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd {}\n"


@pytest.fixture
def cpuinfo(tmp_path, monkeypatch):
    """Let the processor describe itself by the given text."""

    def write(text: str) -> None:
        path = tmp_path / "cpuinfo"
        path.write_text(text)
        monkeypatch.setattr(module, "cpu_flags", lambda: cpu_flags(path))

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
    monkeypatch.setattr(module, "cpu_flags", lambda: cpu_flags(tmp_path / "absent"))
    assert cpu_flags(tmp_path / "absent") == set()
    assert compute_dtype("auto", CPU) == torch.float32


@pytest.mark.parametrize(("capability", "fast"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_auto_asks_the_gpu_for_its_generation(monkeypatch, capability, fast):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert (compute_dtype("auto", torch.device("cuda")) == torch.bfloat16) is fast


def test_a_process_uses_the_gpu_that_it_was_given(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(module, "choose_device", torch.device)
    prepare("cuda:1", threads=torch.get_num_threads())
    assert chosen == [torch.device("cuda", 1)]
