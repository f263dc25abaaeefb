"""What a pickle may do to us: nothing. Every payload would leave a canary file behind."""

import builtins
import os
import pickle
import random
import runpy
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch

from hornbook.errors import CheckpointError, HornbookError
from hornbook.exchange.huggingface.torch_pickles import read_pickled


class Payload:
    """Calls a function as it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


PAYLOADS = {
    "os.system": lambda canary: Payload(os.system, f"touch {canary}"),
    "eval": lambda canary: Payload(builtins.eval, f"open({canary!r}, 'w').close()"),
    "exec": lambda canary: Payload(builtins.exec, f"open({canary!r}, 'w').close()"),
    "open": lambda canary: Payload(builtins.open, canary, "w"),
    "os.mkdir": lambda canary: Payload(os.mkdir, canary),
    "subprocess.Popen": lambda canary: Payload(subprocess.Popen, ["touch", canary]),
    "subprocess.check_output": lambda canary: Payload(subprocess.check_output, ["touch", canary]),
    "runpy.run_path": lambda canary: Payload(runpy.run_path, canary),
    "torch.load": lambda canary: Payload(torch.load, canary),
    "pickle.loads": lambda canary: Payload(pickle.loads, pickle.dumps(Payload(os.mkdir, canary), protocol=2)),
}
CARRIERS = ("zip", "legacy", "bare pickle 2", "bare pickle 4", "a tensor's neighbor", "storage bytes")


def infect(path: Path, payload: Payload, carrier: str) -> None:
    if carrier.startswith("bare pickle"):
        path.write_bytes(pickle.dumps({"wte.weight": payload}, protocol=int(carrier[-1])))
    elif carrier == "storage bytes":
        torch.save({"wte.weight": torch.ones(64)}, path)
        replace_entry(path, "/data/0", pickle.dumps(payload, protocol=2).ljust(256, b"\0"))
        replace_entry(path, "/data.pkl", pickle.dumps({"a": payload}, protocol=2))
    else:
        state = {"wte.weight": torch.ones(2), "more": [payload]} if "neighbor" in carrier else payload
        torch.save(state, path, _use_new_zipfile_serialization=carrier != "legacy")


def replace_entry(path: Path, name: str, data: bytes, compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path) as archive:
        entries = {entry: archive.read(entry) for entry in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for entry, content in entries.items():
            archive.writestr(entry, data if entry.endswith(name) else content)


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("name", PAYLOADS)
def test_a_program_is_refused_and_not_run(tmp_path, name, carrier):
    canary = tmp_path / "canary"
    path = tmp_path / "pytorch_model.bin"
    infect(path, PAYLOADS[name](str(canary)), carrier)
    with pytest.raises(CheckpointError, match="is rejected, and no code in it was run") as caught:
        read_pickled(path)
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2
    assert "weights_only" not in str(caught.value), "the message does not say how to switch the check off"
    assert not canary.exists()


def test_the_canary_would_sing(tmp_path):
    """A pickle of these, opened without the guard, does what it says: the tests above could fail."""
    canary = tmp_path / "canary"
    pickle.loads(pickle.dumps(PAYLOADS["os.mkdir"](str(canary))))  # noqa: S301
    assert canary.exists()


@pytest.mark.parametrize("legacy", [False, True])
def test_tensors_come_out_as_they_went_in(tmp_path, legacy):
    state = {"a": torch.randn(3, 4), "b": torch.nn.Parameter(torch.ones(2)), "c": torch.ones(5).bfloat16()}
    torch.save(state, tmp_path / "x.bin", _use_new_zipfile_serialization=not legacy)
    found = read_pickled(tmp_path / "x.bin")
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], state[name]) and not found[name].requires_grad for name in state)


@pytest.mark.parametrize(
    "state", [[torch.ones(2)], {"a": 3}, {1: torch.ones(2)}, torch.ones(2), {"state_dict": {"a": torch.ones(2)}}, None]
)
def test_other_things_than_tensors_by_name(tmp_path, state):
    torch.save(state, tmp_path / "x.bin")
    with pytest.raises(CheckpointError, match="does not contain only named tensors"):
        read_pickled(tmp_path / "x.bin")


def test_a_compressed_archive_is_no_file_of_pytorch(tmp_path):
    path = tmp_path / "x.bin"
    torch.save({"a": torch.zeros(1 << 16)}, path)
    replace_entry(path, "none of them", b"", zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 4096, "a bomb of a kind"
    with pytest.raises(CheckpointError, match="is compressed, which PyTorch never does"):
        read_pickled(path)


@pytest.mark.parametrize(
    "data", [b"", b"PK\x03\x04", b"\x80\x02}.", b"\0" * 100, b"hello\n", b"PK\x05\x06" + b"\0" * 18]
)
def test_what_is_no_pytorch_file(tmp_path, data):
    (tmp_path / "x.bin").write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        read_pickled(tmp_path / "x.bin")
    assert "\n" not in str(caught.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(HornbookError, match="cannot read"):
        read_pickled(tmp_path / "x.bin")


@pytest.mark.parametrize("legacy", [False, True])
def test_damage_is_one_line(tmp_path, legacy):
    """Bytes that make no sense make PyTorch's unpickler fail in a dozen ways, all of which are the file's fault."""
    path = tmp_path / "x.bin"
    torch.save({"a": torch.randn(4, 5), "b": torch.ones(3)}, path, _use_new_zipfile_serialization=not legacy)
    sound, draws = path.read_bytes(), random.Random(5)
    refused = 0
    for _ in range(300):
        data = bytearray(sound)
        for _ in range(draws.choice([1, 1, 3])):
            data[draws.randrange(min(len(data), 800))] = draws.randrange(256)
        path.write_bytes(bytes(data[: draws.choice([len(data), len(data), draws.randrange(len(data))])]))
        try:
            read_pickled(path)
        except HornbookError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 100
