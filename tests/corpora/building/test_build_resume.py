"""A build that was killed at any instant, or met a full disk, and started again."""

import io
import json
import os
import shutil
import sys

import pytest
from crashes import crashes_in_child
from tiny_text import READ_TEXTS, TEXTS, build_tiny, one_line, write_texts

from hornbook.corpora.building import batches, parts
from hornbook.errors import DataError, StorageError
from hornbook.storage.faults import count_operations, inject
from hornbook.text.documents import ReadOptions
from hornbook.text.quality.policy import QualityOptions, Tolerance
from hornbook.text.tokenizer import Tokenizer


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """A few parts of two batches; the faults are those of a process, so nobody waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(batches, "BATCH_BYTES", 1000)
    monkeypatch.setattr(parts, "BATCHES_PER_PART", 2)


@pytest.fixture
def tokenized(monkeypatch):
    """The texts that were tokenized, in their order."""
    seen = []
    encode_batch = Tokenizer.encode_batch
    monkeypatch.setattr(
        Tokenizer, "encode_batch", lambda self, texts: (seen.extend(texts), encode_batch(self, texts))[1]
    )
    return seen


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def records(target):
    """The records of the finished parts that are left."""
    folder = target.with_name(f".{target.name}.building") / "slices"
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*/0*.json"))]


def finished_documents(target):
    return sum(split["documents"] for record in records(target) for split in record["splits"].values())


def stop_after(batches):
    """A progress callback that is Ctrl-C when it is called after so many batches."""
    calls = []

    def on_progress(progress):
        calls.append(progress)
        if len(calls) > batches:
            raise KeyboardInterrupt

    return on_progress


def operations_of_a_build(tmp_path):
    with count_operations() as operations:
        build_tiny(tmp_path / "good", validation=0.0)
    return operations


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_a_crash_at_every_operation_and_another_start(tmp_path, tokenized, monkeypatch, stride):
    monkeypatch.setattr(batches, "BATCH_BYTES", 1600)
    operations = operations_of_a_build(tmp_path)
    good, target = contents(tmp_path / "good"), tmp_path / "corpus"
    texts = list(tokenized)
    assert sorted(texts) == sorted(READ_TEXTS)
    states = set()
    writes = [n for n, operation in enumerate(operations, 1) if operation.name == "write"]
    faults = [("any", n, "crash-before") for n in range(1, len(operations) + 1, stride)]
    faults += [("write", n, "crash-middle") for n in range(1, len(writes) + 1, 9)]
    for fault in faults:
        assert crashes_in_child(lambda: build_tiny(target, validation=0.0), *fault), fault
        was_committed = target.exists()
        done = len(TEXTS) if was_committed else finished_documents(target)
        states.add((done, was_committed))
        tokenized.clear()
        report = build_tiny(target, validation=0.0)
        assert contents(target) == good, fault
        assert tokenized == texts[done:], fault
        assert report.already_built == was_committed
        assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "good", "texts"]
        shutil.rmtree(target)
    assert len(states) == 4 and {(0, False), (len(TEXTS), False), (len(TEXTS), True)} < states


def test_a_disk_that_fails_at_every_operation_and_another_start(tmp_path, tokenized):
    operations = operations_of_a_build(tmp_path)
    good, target, texts = contents(tmp_path / "good"), tmp_path / "corpus", list(tokenized)
    kept = 0
    for n, operation in list(enumerate(operations, 1))[::3]:
        notices = []
        try:
            with inject("any", n, "enospc"):
                build_tiny(target, validation=0.0, on_notice=notices.append)
        except StorageError as error:
            assert one_line(error, str(tmp_path))
        done = len(TEXTS) if target.exists() else finished_documents(target)
        assert bool(notices) == (done > 0 and not target.exists()), operation
        assert not notices or ("run the same command to resume" in notices[0] and ".corpus.building" in notices[0])
        kept += bool(notices)
        tokenized.clear()
        build_tiny(target, validation=0.0)
        assert contents(target) == good and tokenized == texts[done:], operation
        shutil.rmtree(target)
    assert kept > len(operations) // 6


def test_an_interrupt_keeps_finished_parts_and_says_so(tmp_path):
    notices = []
    build_tiny(tmp_path / "good")
    with pytest.raises(KeyboardInterrupt):
        build_tiny(tmp_path / "corpus", on_progress=stop_after(5), on_notice=notices.append)
    work = tmp_path / ".corpus.building"
    assert notices == [f"kept 2 finished parts: run the same command to resume, or remove {work} to discard them"]
    progress = []
    build_tiny(tmp_path / "corpus", on_notice=notices.append, on_progress=progress.append)
    assert one_line(Exception(notices[1]), "resuming after 2 finished parts", "documents")
    assert 0 < progress[0].documents < progress[-1].documents == len(TEXTS)
    assert 0 < progress[0].read <= progress[-1].read == progress[-1].total
    assert contents(tmp_path / "corpus") == contents(tmp_path / "good")


def test_examples_of_dropped_documents_are_those_of_a_build_that_was_never_stopped(tmp_path):
    quality, allowed = QualityOptions(min_words=14), Tolerance(max_dropped=1.0, allow=("unused-file",))
    build_tiny(tmp_path / "good", quality=quality, tolerance=allowed)
    with pytest.raises(KeyboardInterrupt):
        build_tiny(tmp_path / "corpus", on_progress=stop_after(3), quality=quality, tolerance=allowed)
    (first, *_) = records(tmp_path / "corpus")
    assert len(first["report"]["examples"]["too short"]) == 3
    report = build_tiny(tmp_path / "corpus", quality=quality, tolerance=allowed)
    assert report.dropped["too short"] > 3 and len(report.examples["too short"]) == 3
    assert contents(tmp_path / "corpus") == contents(tmp_path / "good")


@pytest.mark.parametrize("change", ["options", "inputs"])
def test_parts_of_another_request_are_cleared(tmp_path, change, tokenized):
    with pytest.raises(KeyboardInterrupt):
        build_tiny(tmp_path / "corpus", on_progress=stop_after(5))
    tokenized.clear()
    options = {"end_of_text": "inserted"} if change == "options" else {}
    if change == "inputs":
        (tmp_path / "texts" / "0.txt").write_text("changed")
    notices = []
    build_tiny(tmp_path / "corpus", on_notice=notices.append, **options)
    assert len(notices) == 1 and "removed the parts of an interrupted build" in notices[0]
    assert len(tokenized) == len(TEXTS)
    build_tiny(tmp_path / "good", **options)
    assert contents(tmp_path / "corpus") == contents(tmp_path / "good")


@pytest.mark.parametrize("damage", ["torn tokens", "torn record", "no record", "no rows"])
def test_a_damaged_part_and_those_after_it_are_made_again(tmp_path, damage, tokenized):
    build_tiny(tmp_path / "good")
    with pytest.raises(KeyboardInterrupt):
        build_tiny(tmp_path / "corpus", on_progress=stop_after(5))
    done = sum(split["documents"] for split in records(tmp_path / "corpus")[0]["splits"].values())
    folder = tmp_path / ".corpus.building" / "slices" / "000000"
    if damage == "torn tokens":
        os.truncate(folder / "000001-train.bin", 10)
    elif damage == "torn record":
        os.truncate(folder / "000001.json", 10)
    else:
        (folder / ("000001.json" if damage == "no record" else "000001-train.npy")).unlink()
    tokenized.clear()
    build_tiny(tmp_path / "corpus")
    assert len(tokenized) == len(TEXTS) - done
    assert contents(tmp_path / "corpus") == contents(tmp_path / "good")


def test_a_slice_without_its_last_part_is_not_finished(tmp_path):
    with count_operations() as operations:
        build_tiny(tmp_path / "good")
    commit = sum(operation.name == "rename" for operation in operations)
    with pytest.raises(StorageError), inject("rename", commit, "enospc"):
        build_tiny(tmp_path / "corpus")
    assert [record["is_last"] for record in records(tmp_path / "corpus")][-2:] == [False, True]
    folder = tmp_path / ".corpus.building" / "slices" / "000000"
    sorted(folder.glob("0*.json"))[-1].unlink()
    build_tiny(tmp_path / "corpus")
    assert contents(tmp_path / "corpus") == contents(tmp_path / "good")


def test_what_was_left_out_is_counted_once(tmp_path):
    """Empty, unreadable and filtered documents before, between and behind the parts."""
    write_texts(tmp_path / "texts")
    lines = ['{"text": ""}', "broken", *(json.dumps({"text": text}) for text in (TEXTS[0], *TEXTS[20:26]))]
    (tmp_path / "texts" / "5b.jsonl").write_text("\n".join([*lines, *lines]))
    (tmp_path / "texts" / "z.jsonl").write_text("\n".join([*lines, "", '{"text": ""}', "broken"]))
    options = {
        "reading": ReadOptions(on_error="skip"),
        "quality": QualityOptions(exact_duplicates=True),
        "tolerance": Tolerance(allow=("unused-file",)),
    }
    good = build_tiny(tmp_path / "good", **options)
    assert (good.empty, good.faults) == (4, 4) and good.dropped == {"exact duplicates": 21}
    for number in range(1, 6):
        with pytest.raises(KeyboardInterrupt):
            build_tiny(tmp_path / "corpus", on_progress=stop_after(number), **options)
        report = build_tiny(tmp_path / "corpus", **options)
        assert contents(tmp_path / "corpus") == contents(tmp_path / "good")
        assert (report.empty, report.faults, report.dropped) == (good.empty, good.faults, good.dropped)
        shutil.rmtree(tmp_path / "corpus")


def test_a_suspicious_outcome_is_kept_for_a_change_of_mind(tmp_path, tokenized):
    quality, notices = QualityOptions(min_words=20), []
    with pytest.raises(DataError) as caught:
        build_tiny(tmp_path / "corpus", quality=quality, on_notice=notices.append)
    assert one_line(caught.value, "looks wrong", "were dropped; loosen the filters", "`allow='unused-file'`")
    assert "run the same command to resume" in notices[0]
    tokenized.clear()
    tolerance = Tolerance(allow=("unused-file",), max_dropped=0.9)
    report = build_tiny(tmp_path / "corpus", quality=quality, tolerance=tolerance)
    kept = sum(split.documents for split in report.splits.values())
    assert tokenized == [] and list(report.dropped.values()) == [len(TEXTS) - kept]
    assert build_tiny(tmp_path / "corpus", quality=quality).already_built


def test_a_stream_is_read_once_and_nothing_of_it_is_kept(tmp_path, monkeypatch):
    class StandardInput:
        buffer = io.BytesIO("".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode())

    monkeypatch.setattr(sys, "stdin", StandardInput)
    notices, options = [], {"reading": ReadOptions(format="jsonl"), "on_notice": None}
    options["on_notice"] = notices.append
    with pytest.raises(KeyboardInterrupt):
        build_tiny(tmp_path / "corpus", inputs=["-"], on_progress=stop_after(5), **options)
    assert notices == ["removed the unfinished build: an input is a stream, which can be read only once"]
    assert not (tmp_path / ".corpus.building").exists()
    StandardInput.buffer.seek(0)
    crash = ("rename", 4, "crash-after")
    assert crashes_in_child(lambda: build_tiny(tmp_path / "corpus", inputs=["-"], **options), *crash)
    assert records(tmp_path / "corpus")
    StandardInput.buffer.seek(0)
    report = build_tiny(tmp_path / "corpus", inputs=["-"], **options)
    assert "removed the parts of an interrupted build" in notices[1] and "a stream" in notices[1]
    assert sum(split.documents for split in report.splits.values()) == len(TEXTS)
