"""What facts of made-up machines tell, each with its remedy."""

import copy
from typing import Any

import pytest

from hornbook.measure.machine import machine_findings

SOUND: dict[str, Any] = {
    "versions": {
        "hornbook": {"version": "0.1.0", "oldest": None},
        "torch": {"version": "2.13.0+cpu", "oldest": "2.11"},
    },
    "processor": {"cores": 8, "usable_cores": 4, "threads": 4, "load": 0.4},
    "products": {"flops_per_second": {"fp32": 1e11, "bf16": 4e11}, "auto": "bf16"},
    "operators": {"native_forms": {}},
    "memory": {"total": 8 << 30, "available": 6 << 30, "limit": None},
    "disk": {
        "folder": "/home/me",
        "file_system": "ext4",
        "is_network": False,
        "is_memory": False,
        "free": 1 << 40,
        "write": 5e8,
        "error": None,
    },
    "gpus": [],
    "cuda": {"build": None, "driver": None, "nccl": None},
    "variables": {},
}


def found(change: dict[str, dict[str, Any]], precision: str = "auto", processes: int = 1) -> list[tuple[str, str, str]]:
    facts = copy.deepcopy(SOUND)
    for section, values in change.items():
        facts[section].update(values)
    findings = machine_findings(facts, precision, processes)
    assert all("\n" not in finding.message for finding in findings)
    return [(finding.level, finding.about, finding.message) for finding in findings]


def test_a_sound_machine_has_no_findings() -> None:
    assert found({}) == []


@pytest.mark.parametrize(
    ("change", "about", "shown", "remedy"),
    [
        (
            {"products": {"flops_per_second": {"fp32": 1.34e11, "bf16": 7.7e10}}},
            "precision",
            "auto chooses bf16, whose products run at 77 GFLOP/s here, but those of fp32 run at 134 GFLOP/s",
            "`precision.compute='fp32'`",
        ),
        (
            {"products": {"flops_per_second": {"fp32": 1e12, "bf16": 3e12}, "auto": "fp32"}},
            "precision",
            "auto chooses fp32, whose products run at 1 TFLOP/s here, but those of bf16 run at 3 TFLOP/s",
            "`precision.compute='bf16'`",
        ),
        ({"processor": {"load": 7.0}}, "cores", "the load is 7.0 on 8 cores", "stop other processes"),
        ({"processor": {"threads": 9}}, "cores", "9 threads in total share 4 cores", "decrease `threads`"),
        ({"versions": {"torch": {"version": "2.9.1", "oldest": "2.11"}}}, "versions", "torch 2.9.1", "pip install"),
        ({"memory": {"available": 5 << 20}}, "memory", "only 5.0 MiB", "stop other processes"),
        ({"disk": {"free": 1 << 20}}, "disk", "/home/me has 1.0 MiB free", "free some space"),
        ({"disk": {"write": 1e6}}, "disk", "976.6 KiB/s", "faster disk"),
        ({"disk": {"is_network": True, "file_system": "nfs4"}}, "disk", "network file system (nfs4)", "local disk"),
        ({"disk": {"is_memory": True, "file_system": "tmpfs"}}, "disk", "in memory (tmpfs)", "`output`"),
        ({"cuda": {"driver": "550.1"}}, "GPUs", "built without CUDA", "install a CUDA build"),
        ({"cuda": {"driver": "550.1", "build": "12.6"}}, "GPUs", "finds no GPU", "check CUDA_VISIBLE_DEVICES"),
        ({"cuda": {"driver": "550.1", "build": "13.0"}}, "GPUs", "requires 580 or newer", "TORCH_CUDA_INDEX="),
    ],
)
def test_a_warning_says_what_is_wrong_and_how_to_fix_it(
    change: dict[str, dict[str, Any]], about: str, shown: str, remedy: str
) -> None:
    ((level, where, message),) = found(change)
    assert (level, where) == ("warning", about)
    assert shown in message and remedy in message.partition(shown)[2]


def test_ranks_that_share_cores() -> None:
    one_thread = {"processor": {"threads": 1}}
    assert found(one_thread, processes=4) == []
    assert (
        "5 threads in total share 4 cores and wait for each other: decrease `processes`"
        in found(one_thread, processes=5)[0][2]
    )


def test_the_precision_of_the_recipe_is_judged() -> None:
    slow_bf16 = {"products": {"flops_per_second": {"fp32": 2e11, "bf16": 1e11}, "auto": "fp32"}}
    assert found(slow_bf16) == []
    assert "the recipe says bf16, whose products run at 100 GFLOP/s" in found(slow_bf16, "bf16")[0][2]
    assert found({}, "fp32") == [], "who says fp32 wants its exactness"
    slow_bf16["products"]["auto"] = "bf16"
    assert found(slow_bf16) != []
    native = {"operators": {"native_forms": {"linear_bf16": "avx512"}}}
    assert found(slow_bf16 | native) == [], "PyTorch does not compute them"


def test_a_disk_that_cannot_be_written_is_an_error() -> None:
    message = "cannot write to /home/me: Permission denied; check the path, its permissions and the disk"
    assert found({"disk": {"error": message, "free": None, "write": None}}) == [("error", "disk", message)]
