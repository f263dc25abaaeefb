import shutil

import numpy as np
import pytest
from damage import mutated, survive
from tiny_formats import BERT_TFRECORD, instance, instances
from tiny_text import one_line

from hornbook.errors import DataError, UserError
from hornbook.interop.convert.bert_arrow import write_arrow
from hornbook.interop.convert.bert_instances import Instance
from hornbook.interop.convert.bert_tfrecord import read_plain, write_plain, write_remasked
from hornbook.interop.instances.static_instances import StaticInstances

WRITERS = {
    "plain": write_plain,
    "remasked": write_remasked,
    "shards": lambda path, content: write_plain(path, content, 3),
    "arrow": write_arrow,
}


def made(count=20):
    return [
        instance(7 + number % 4, (1, 3), number % 2)._replace(labels=np.array([number, 5])) for number in range(count)
    ]


def all_of(source, epoch=0):
    return source.sequences(np.arange(source.num_sequences) + epoch * source.num_sequences)


def as_instance(sequence):
    return Instance(sequence.tokens, sequence.segments, sequence.positions, sequence.labels, sequence.pair_label)


@pytest.fixture(params=WRITERS)
def path(request, tmp_path):
    target = tmp_path / ("out" if request.param in ("shards", "arrow") else "out.tfrecord")
    WRITERS[request.param](target, instances(made()))
    return target


def test_an_epoch_has_every_instance_once(path):
    source = StaticInstances(path, seed=1)
    assert (source.sequence_length, source.num_sequences) == (16, 20)
    assert source.max_predictions == (None if (path / "state.json").exists() else 4)
    orders = []
    for epoch in range(3):
        found = all_of(source, epoch)
        orders.append([int(sequence.labels[0]) for sequence in found])
        assert sorted(orders[-1]) == list(range(20))
        for sequence, number in zip(found, orders[-1], strict=True):
            assert as_instance(sequence).equals(made()[number])
            assert {values.dtype for values in (*sequence[:2], *sequence[3:])} == {np.dtype(np.int64)}
    assert orders[0] != orders[1] != orders[2]


def test_a_function_of_seed_and_sample(path):
    source = StaticInstances(path, seed=1)
    samples = np.array([3, 47, 3, 19])
    numbers = [int(sequence.labels[0]) for sequence in source.sequences(samples)]
    assert numbers == [int(StaticInstances(path, seed=1).sequences(samples[i : i + 1])[0].labels[0]) for i in range(4)]
    assert StaticInstances(path, seed=1).fingerprint == source.fingerprint != StaticInstances(path, seed=2).fingerprint


def test_the_record_of_a_sample(path):
    source = StaticInstances(path, seed=1)
    for sample in (0, 7, 33):
        epoch, file, number = source.provenance(sample)
        (sequence,) = source.sequences(np.array([sample]))
        before = 3 * int(file.stem.rpartition("_")[2]) if "data_" in file.name else 0
        assert (epoch, before + number) == (sample // 20, sequence.labels[0]) and file.is_file()


def test_a_real_file():
    if not BERT_TFRECORD.exists():
        pytest.skip(f"{BERT_TFRECORD} is not there")
    source = StaticInstances(BERT_TFRECORD, seed=0)
    assert (source.num_sequences, source.sequence_length, source.max_predictions) == (45, 128, 20)
    expected = {instance.tokens.tobytes(): instance for instance in read_plain(BERT_TFRECORD)}
    assert all(as_instance(sequence).equals(expected[sequence.tokens.tobytes()]) for sequence in all_of(source))


@pytest.mark.parametrize("kind", ["plain", "remasked", "arrow"])
def test_mutated_files_are_refused_or_read(tmp_path, kind):
    WRITERS[kind](tmp_path / "made", instances())
    path = tmp_path / "data.arrow" if kind == "arrow" else tmp_path / "made"
    if kind == "arrow":
        shutil.copy(next((tmp_path / "made").glob("*.arrow")), path)
    formats = {"plain": "bert-tfrecord", "remasked": "bert-tfrecord-remasked", "arrow": "bert-arrow"}
    refused, _ = survive(
        lambda one: all_of(StaticInstances(one, seed=0, format_name=formats[kind])),
        path,
        mutated(path.read_bytes(), 1000, seed=5),
    )
    assert refused > 700


def test_damage_is_found_when_a_record_is_read(tmp_path):
    path = tmp_path / "out.tfrecord"
    write_plain(path, instances(made()))
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    source = StaticInstances(path, seed=0)
    with pytest.raises(DataError, match="does not match its checksum") as caught:
        all_of(source)
    assert one_line(caught.value, str(path))
    path.write_bytes(data[:-7])
    with pytest.raises(DataError, match="truncated"):
        StaticInstances(path, seed=0)


def test_records_of_another_padding(tmp_path):
    for number, length in enumerate((16, 18)):
        write_plain(tmp_path / f"{number}.tfrecord", instances(made(), sequence_length=length))
    with pytest.raises(DataError, match=r"padded to \(18, 4\), the first to \(16, 4\)"):
        all_of(StaticInstances(tmp_path, seed=0))


def test_what_holds_no_instances(tmp_path):
    (tmp_path / "empty.tfrecord").write_bytes(b"")
    with pytest.raises(DataError, match="no instance"):
        StaticInstances(tmp_path / "empty.tfrecord", seed=0, format_name="bert-tfrecord")
    (tmp_path / "x.npy").write_bytes(b"1")
    with pytest.raises(UserError, match="the format npy; expected instances: bert-tfrecord"):
        StaticInstances(tmp_path / "x.npy", seed=0)
