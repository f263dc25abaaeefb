import os
import pickle
import random
import tracemalloc

import numpy as np
import pytest
from cases import mostly_slow
from damage import mutated, survive
from tiny_formats import documents, lists
from tiny_text import one_line

from hornbook.errors import DataError, StorageError
from hornbook.interop.convert.pickled_lists import read_pickle, write_pickle
from hornbook.storage.faults import inject

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
EXAMPLE = [list(range(0, 3000, 7)), [5], [], [70_000, 1]]
OPCODES = (b"(", b"]", b"e", b"a", b"l", b"c", b"R", b"K\x05", b"I5\n", b".", b"\x80\x04", b"h\x00", b"\x94")


def read(path):
    return lists(read_pickle(path))


def some_lists(number):
    rng = random.Random(number)
    count = (0, 1, 2, 999, 1000, 1001, 2001)[number]
    ids = (lambda: rng.randrange(256), lambda: rng.randrange(1 << 16), lambda: rng.randrange(1 << 31))
    return [[rng.choice(ids)() for _ in range(rng.choice((0, 1, 2, 7)))] for _ in range(count)]


@pytest.mark.parametrize("number", range(1, 7))
def test_all_protocols_are_read_and_the_second_is_written_byte_for_byte(tmp_path, number):
    some = some_lists(number)
    for protocol in PROTOCOLS:
        (tmp_path / "x.pkl").write_bytes(pickle.dumps(some, protocol=protocol))
        assert read(tmp_path / "x.pkl") == some
    write_pickle(tmp_path / "x.pkl", documents(some))
    assert (tmp_path / "x.pkl").read_bytes() == pickle.dumps(some, protocol=2)


def test_long_articles(tmp_path):
    some = [np.random.default_rng(1).integers(0, 70_000, size).tolist() for size in (1000, 1001, 200_000)]
    write_pickle(tmp_path / "x.pkl", documents(some))
    assert (tmp_path / "x.pkl").read_bytes() == pickle.dumps(some, protocol=2)
    for protocol in (2, 4):
        (tmp_path / "x.pkl").write_bytes(pickle.dumps(some, protocol=protocol))
        assert read(tmp_path / "x.pkl") == some


def test_places_are_those_of_the_lists(tmp_path):
    (tmp_path / "x.pkl").write_bytes(data := pickle.dumps(EXAMPLE, protocol=4))
    for document in read_pickle(tmp_path / "x.pkl"):
        assert data[document.offset : document.offset + 1] == b"]"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_flat_list_is_one_document(tmp_path, protocol):
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(list(range(2500)), protocol=protocol))
    assert read(tmp_path / "x.pkl") == [list(range(2500))]


def test_python_2_and_other_picklers(tmp_path):
    for data in (b"(l(lI5\naL7L\naa.", b"((I5\nL300L\nl(lI1\nal.", b"](](K\x05\x8a\x02,\x01ee.", b"\x80\x02]]K\x05aa."):
        (tmp_path / "x.pkl").write_bytes(data)
        assert read(tmp_path / "x.pkl") == pickle.loads(data)  # noqa: S301 - written above


class Call:
    """Becomes a pickle that calls something when it is loaded."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def attacks(canary):
    touch = f"touch {canary}"
    payloads = [
        Call(os.system, touch),
        Call(eval, f"__import__('os').system({touch!r})"),
        Call(exec, f"import os; os.mkdir({str(canary)!r})"),
        Call(os.mkdir, str(canary)),
        [[1, 2], [Call(os.system, touch)]],
        [Call(os.system, touch), [1, 2]],
    ]
    yield from (pickle.dumps(payload, protocol=protocol) for payload in payloads for protocol in PROTOCOLS)
    command = touch.encode()
    yield b"cos\nsystem\n(S'" + command + b"'\ntR."
    yield b"(S'" + command + b"'\nios\nsystem\n."
    yield b"(cos\nsystem\nS'" + command + b"'\no."
    yield b"](cos\nsystem\n(S'" + command + b"'\ntRe."
    yield b"](](K\x01ecos\nsystem\n(S'" + command + b"'\ntR."
    yield b"\x80\x04](\x8c\x02os\x8c\x06system\x93\x8c" + bytes([len(command)]) + command + b"\x85Re."


def test_nothing_is_ever_run(tmp_path):
    canary = tmp_path / "canary"
    path = tmp_path / "x.pkl"
    tried = 0
    for data in attacks(canary):
        path.write_bytes(data)
        with pytest.raises(DataError) as caught:
            read(path)
        assert one_line(caught.value, "x.pkl", "nothing was executed")
        tried += 1
    assert tried > 40 and not canary.exists()


def test_the_attacks_are_attacks(tmp_path):
    """Else the test above would prove nothing."""
    for number, data in enumerate(attacks(tmp_path / "canary")):
        try:
            pickle.loads(data)  # noqa: S301 - our own
        except (pickle.UnpicklingError, TypeError, IndexError):
            continue
        assert (tmp_path / "canary").exists(), number
        (tmp_path / "canary").rmdir() if (tmp_path / "canary").is_dir() else (tmp_path / "canary").unlink()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"\x80\x04", "cut off at byte 2"),
        (b"\x80\x09].", "protocol is 9"),
        (b"].]", "1 bytes follow"),
        (b"]].", "does not end with one list"),
        (b"K\x05.", "does not end with one list"),
        (b".", "does not end with one list"),
        (b"]]]aaa.", "nested more than twice|does not end|missing"),
        (b"](](](K\x05eee.", "nested more than twice"),
        (b"](K\x05]e.", "both lists and integers"),
        (b"](]K\x05e.", "both lists and integers"),
        (b"](K\x05", "cut off at byte 4"),
        (b"](M\x05", "cut off"),
        (b"]K\x05K\x06a.", "appended to something other than a list"),
        (b"e.", "an item is missing"),
        (b"a.", "an item is missing"),
        (b"](I01\ne.", "no integer"),
        (b"](Ixyz\ne.", "no integer"),
        (b"](L99999999999999999999L\ne.", "no integer"),
        (b"](\x8a\xff" + b"\1" * 255 + b"e.", "an integer of 255 bytes"),
        (b"](J\xff\xff\xff\xffe.", "has -1, which is not a token id"),
        (b"](\x8a\x08" + b"\x7f" * 8 + b"e.", "not a token id"),
        (b"]q\x00(h\x00e.", "BINGET"),
        (b"](N.", r"opcode N"),
        (b"](X\x02\x00\x00\x00hie.", "opcode X"),
        (b"](\x88e.", r"opcode \\x88"),
        (b"](G" + bytes(8) + b"e.", "opcode G"),
        (b"](K\x01t.", "opcode t"),
        (b"}.", "opcode }"),
    ],
)
def test_what_is_no_list_of_lists(tmp_path, data, message):
    (tmp_path / "x.pkl").write_bytes(data)
    with pytest.raises(DataError, match=message) as caught:
        read(tmp_path / "x.pkl")
    assert one_line(caught.value, "x.pkl")


@pytest.mark.parametrize(
    "data", mostly_slow([b"](" * 1_000_000, b"]" * 2_000_000, b"(" * 2_000_000, b"(l" + b"(" * 2_000_000])
)
def test_deep_nesting_takes_no_memory(tmp_path, data):
    (tmp_path / "x.pkl").write_bytes(data)
    tracemalloc.start()
    with pytest.raises(DataError, match="nested too deeply"):
        read(tmp_path / "x.pkl")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 40 << 20


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_mutated_files_are_refused_or_read(tmp_path, protocol):
    original = pickle.dumps(EXAMPLE, protocol=protocol)
    refused, accepted = survive(read, tmp_path / "x", mutated(original, 250, seed=protocol, words=OPCODES))
    assert refused > 150 and accepted > 10


def test_a_full_disk_leaves_nothing(tmp_path):
    with inject("write", 1, "enospc"), pytest.raises(StorageError):
        write_pickle(tmp_path / "x.pkl", documents(EXAMPLE))
    assert list(tmp_path.iterdir()) == []


def test_no_file(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_pickle(tmp_path / "x.pkl")
