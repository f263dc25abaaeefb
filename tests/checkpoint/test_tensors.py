import json

import pytest
import safetensors.torch
import torch
from tiny_checkpoints import one_line

from hornbook.checkpoint.tensors import encode, read
from hornbook.errors import CheckpointError
from hornbook.storage import write_file

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]
VALUES = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4) - 7
CASES = {
    "fp32": VALUES,
    "bf16": VALUES.bfloat16(),
    "int64": torch.tensor([2**62, -(2**62)]),
    "zero-dimensional": torch.tensor(2.5),
    "empty": torch.empty(0),
    "empty in one dimension": torch.empty(3, 0, 2, dtype=torch.bfloat16),
    "transposed": VALUES.transpose(0, 2),
    "every second": VALUES[:, ::2, 1:],
    "expanded": torch.tensor([1.0, 2.0]).expand(3, 2),
    "a view from the middle": VALUES.reshape(-1)[5:11],
    "a parameter": torch.nn.Parameter(VALUES.clone()),
    "not finite": torch.tensor([float("nan"), float("inf"), -0.0]),
    "odd number of bytes": torch.tensor([1, 2, 3], dtype=torch.uint8),
    "odd number of halves": torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16),
    "ünïcode/…": torch.ones(1),
    'quo"ted\\': torch.ones(1),
}


def same(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Equal in every bit, NaNs and signs of zeros included."""
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    bits = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (first, second)]
    return bool((bits[0] == bits[1]).all())


def test_the_library_reads_what_we_write(tmp_path):
    written = write_file(tmp_path / "x", encode(CASES).chunks)
    assert written.size == encode(CASES).size
    found = safetensors.torch.load_file(tmp_path / "x")
    assert set(found) == set(CASES)
    assert [name for name in CASES if not same(found[name], CASES[name])] == []


def test_we_read_what_we_write_and_what_the_library_writes(tmp_path):
    write_file(tmp_path / "ours", encode(CASES).chunks)
    (tmp_path / "theirs").write_bytes(
        safetensors.torch.save({name: t.clone().contiguous() for name, t in CASES.items()})
    )
    for name in ("ours", "theirs"):
        found = read(tmp_path / name)
        assert list(found) == sorted(CASES)
        assert [name for name in CASES if not same(found[name], CASES[name])] == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back(tmp_path, dtype):
    tensors = {"x": torch.tensor([0.0, 1.0, 2.0]).to(dtype), "y": torch.ones(5)}
    write_file(tmp_path / "x", encode(tensors).chunks)
    assert all(same(tensor, tensors[name]) for name, tensor in read(tmp_path / "x").items())


def test_no_tensors_at_all(tmp_path):
    write_file(tmp_path / "x", encode({}).chunks)
    assert read(tmp_path / "x") == {} == safetensors.torch.load_file(tmp_path / "x")


def test_bytes_depend_on_names_and_values_alone():
    def data(tensors):
        return b"".join(bytes(chunk) for chunk in encode(tensors).chunks)

    backwards = {name: tensor.contiguous() for name, tensor in reversed(CASES.items())}
    assert data(CASES) == data(backwards)


def test_every_tensor_is_aligned():
    data = b"".join(bytes(chunk) for chunk in encode(CASES).chunks)
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    for name, item in json.loads(data[8 : 8 + length]).items():
        assert item["data_offsets"][0] % CASES[name].element_size() == 0


def test_a_contiguous_tensor_is_handed_out_without_a_copy():
    _, chunk = encode({"x": VALUES}).chunks
    VALUES[0, 0, 0] = 123.0
    assert bytes(chunk)[:4] == torch.tensor(123.0).numpy().tobytes()
    VALUES[0, 0, 0] = -7.0


def test_tensors_are_copied_one_at_a_time():
    """Bounded memory: a tensor that needs a copy gets it when its turn comes."""
    tensors = {"a": torch.zeros(2, 2).t(), "b": torch.zeros(2, 2).t()}
    chunks = encode(tensors).chunks
    assert next(chunks) and not any(next(chunks))
    tensors["b"].fill_(1.0)
    assert any(next(chunks))


def test_what_is_read_does_not_depend_on_the_file_afterwards(tmp_path):
    write_file(tmp_path / "x", encode({"x": VALUES}).chunks)
    found = read(tmp_path / "x")
    (tmp_path / "x").write_bytes(b"")
    assert same(found["x"], VALUES)


def file(header: object, data: bytes = bytes(16), length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def tensor(**changes) -> dict:
    return {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16], **changes}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1234567",
        bytes(8),
        file({"x": tensor()}, length=2**63),
        file({"x": tensor()}, length=200 << 20),
        file({"x": tensor()}, length=1000),
        file(b"not json"),
        file(b"[1, 2]"),
        file(b"\xff\xff\xff"),
        file(b'{"x": {"dtype": "F32"}}'),
        file(b"[" * 100_000),
        file(json.dumps({"x": tensor()})[:-1].encode() + b',"x":' + json.dumps(tensor()).encode() + b"}"),
        file({"x": tensor(dtype="F33")}),
        file({"x": tensor(shape=[3, 2])}),
        file({"x": tensor(shape=[-2, -2])}),
        file({"x": tensor(shape=[2**62, 2**62])}),
        file({"x": tensor(data_offsets=[16, 0])}),
        file({"x": tensor(data_offsets=[0, 16 << 40])}),
        file({"x": tensor()}, bytes(15)),
        file({"x": tensor()}, bytes(17)),
        file({"x": tensor(), "y": tensor()}),
        file({"x": tensor(data_offsets=[4, 20])}, bytes(20)),
    ],
)
def test_a_malformed_file_is_reported_in_one_line(tmp_path, data):
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(CheckpointError, match="not a valid safetensors file") as caught:
        read(tmp_path / "x")
    assert str(tmp_path / "x") in one_line(caught.value)
