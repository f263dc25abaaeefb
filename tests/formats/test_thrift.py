import random

import pytest

from hornbook.formats.thrift import Reader


def varint(number):
    data = bytearray()
    while number > 127:
        data.append(number & 127 | 128)
        number >>= 7
    return bytes([*data, number])


def test_values_of_every_kind():
    # 1: true, 2: byte, 3: i32 -7, 4: text, 5: list of i64, 20 (by its full number): struct, 21: double, 22: false
    data = b"\x11\x13\x05\x15\x0d\x18\x02hi\x19\x26\x02\x04\x0c\x28\x15\x02\x00\x17" + bytes(8) + b"\x12\x00"
    reader = Reader(data + b"rest")
    assert reader.read_struct() == {1: 1, 2: 5, 3: -7, 4: b"hi", 5: [1, 2], 20: {1: 1}, 21: 0.0, 22: 0}
    assert reader.place == len(data)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", EOFError),
        (b"\x15", EOFError),
        (b"\x15" + b"\xff" * 10, ValueError),
        (b"\x18" + varint(2**40) + b"x", EOFError),
        (b"\x19\xfc" + varint(2**40), EOFError),
        (b"\x1c" * 1000, ValueError),
        (b"\x1b\x00", ValueError),
        (b"\x19\xfc" + varint(4_100_000) + bytes(4_100_000), ValueError),
    ],
    ids=["nothing", "a number cut", "a long number", "a long text", "a long list", "deep", "a map", "many structs"],
)
def test_damage(data, error):
    with pytest.raises(error):
        Reader(data).read_struct()


def test_noise_gives_a_struct_or_an_error():
    rng = random.Random(3)
    outcomes = set()
    for _ in range(3000):
        try:
            Reader(rng.randbytes(rng.randrange(60))).read_struct()
            outcomes.add("read")
        except (ValueError, EOFError):
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}
