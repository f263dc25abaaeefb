import json
import shutil

import pytest
from cases import mostly_slow
from crashes import crashes_in_child
from tiny_documents import some_words
from tiny_text import TEXTS, build_tiny, one_line, tiny_tokenizer, write_texts

from hornbook.corpora.building.builder import BuildOptions
from hornbook.corpora.building.separate import build_part, merge_parts
from hornbook.errors import DataError, UserError
from hornbook.storage import lock_folder
from hornbook.storage.faults import count_operations
from hornbook.text import slices
from hornbook.text.quality.policy import QualityOptions, Tolerance

QUALITY = QualityOptions(exact_duplicates=True, near_duplicates=0.8)
ALL = Tolerance(max_dropped=1.0, allow=("unused-file",))


@pytest.fixture(autouse=True)
def many_slices(monkeypatch):
    monkeypatch.setattr(slices, "SLICE_BYTES", 800)
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


@pytest.fixture
def texts(tmp_path):
    write_texts(tmp_path / "texts")
    page = " ".join(some_words(150, 1))
    more = [*TEXTS[::2], page, f"{page} more", f"{page} still more"]
    (tmp_path / "texts" / "more.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in more))
    return tmp_path / "texts"


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def build(texts, part, **options):
    chosen = BuildOptions(**{"validation": 0.25, "quality": QUALITY} | options)
    return build_part([texts], tiny_tokenizer(), texts.parent / "corpus", chosen, part)


@pytest.mark.parametrize(
    "parts", mostly_slow([[(3, 3), (1, 3), (2, 3)], [(1, 1)], [(k, 40) for k in range(40, 0, -1)]])
)
def test_parts_merged_are_the_corpus_of_one_build(tmp_path, texts, parts):
    good = build_tiny(tmp_path / "good", quality=QUALITY, tolerance=ALL)
    reports = [build(texts, part) for part in parts]
    assert sum(report.built for report in reports) == reports[0].slices > 3
    assert [report.missing for report in reports][-1] == 0
    merged = merge_parts(tmp_path / "corpus", ALL)
    assert contents(tmp_path / "corpus") == contents(tmp_path / "good")
    assert (merged.splits, merged.dropped) == (good.splits, good.dropped) and min(good.dropped.values()) > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "good", "texts"]
    assert merge_parts(tmp_path / "corpus").already_built


def test_a_merge_removes_the_parts_that_a_killed_one_left(tmp_path, texts):
    build(texts, (1, 1))
    shutil.copytree(tmp_path / ".corpus.building", tmp_path / "left")
    merge_parts(tmp_path / "corpus", ALL)
    (tmp_path / "left").rename(tmp_path / ".corpus.building")
    assert merge_parts(tmp_path / "corpus").already_built
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "texts"]


def test_missing_parts_are_one_line_and_a_build_without_parts_makes_them(tmp_path, texts):
    build_tiny(tmp_path / "good", quality=QUALITY, tolerance=ALL)
    with pytest.raises(UserError) as caught:
        merge_parts(tmp_path / "corpus")
    assert one_line(caught.value, "no parts to merge", "--part K/N")
    report = build(texts, (1, 2))
    with pytest.raises(UserError) as caught:
        merge_parts(tmp_path / "corpus")
    assert one_line(
        caught.value, f"{report.missing} of {report.slices} slices", "(numbers 1, 3", "run their parts again"
    )
    notices = []
    build_tiny(tmp_path / "corpus", quality=QUALITY, tolerance=ALL, on_notice=notices.append)
    assert "resuming after" in notices[0]
    assert contents(tmp_path / "corpus") == contents(tmp_path / "good")


def test_parts_of_another_build_are_refused_and_stay(tmp_path, texts):
    build(texts, (1, 2))
    before = contents(tmp_path / ".corpus.building")
    with pytest.raises(UserError) as caught:
        build(texts, (2, 2), validation=0.5)
    assert one_line(caught.value, "parts of a build with other options")
    (texts / "0.txt").write_text("changed")
    with pytest.raises(UserError, match="with other inputs"):
        build(texts, (2, 2))
    assert contents(tmp_path / ".corpus.building") == before
    with pytest.raises(DataError, match="an input changed during the build"):
        build_all_and_change(tmp_path, texts)


def build_all_and_change(tmp_path, texts):
    shutil.rmtree(tmp_path / ".corpus.building")
    build(texts, (1, 1))
    (texts / "0.txt").write_text("changed again")
    merge_parts(tmp_path / "corpus", ALL)


def test_a_plan_of_another_version_is_one_line(tmp_path, texts):
    build(texts, (1, 2))
    path = tmp_path / ".corpus.building" / "plan.json"
    path.write_text(path.read_text().replace('"hornbook": "', '"hornbook": "0.'))
    for action in (lambda: build(texts, (2, 2)), lambda: merge_parts(tmp_path / "corpus")):
        with pytest.raises(DataError) as caught:
            action()
        assert one_line(caught.value, "plan.json was written with hornbook 0.", "use the same version everywhere")


def test_a_suspicious_corpus_keeps_its_parts(tmp_path, texts):
    build(texts, (1, 1))
    with pytest.raises(DataError, match="looks wrong"):
        merge_parts(tmp_path / "corpus", Tolerance(max_dropped=0.01))
    assert merge_parts(tmp_path / "corpus", ALL).output == tmp_path / "corpus"


@pytest.mark.parametrize("part", [(0, 3), (4, 3), (1, 0), (-1, 2)])
def test_what_is_no_part(texts, part):
    with pytest.raises(UserError) as caught:
        build(texts, part)
    assert one_line(caught.value, f"`part={part[0]}/{part[1]}`")


def test_a_part_of_a_corpus_that_exists_or_of_a_stream(tmp_path, texts):
    (tmp_path / "corpus").mkdir()
    with pytest.raises(UserError, match="exists already"):
        build(texts, (1, 2))
    with pytest.raises(UserError, match="an input is a stream, which has no parts"):
        build_part(["-"], tiny_tokenizer(), tmp_path / "other", BuildOptions(), (1, 2))


def test_two_of_the_same_part_do_not_mix(tmp_path, texts):
    build(texts, (1, 2))
    with lock_folder(tmp_path / ".corpus.building" / "slices" / "000001"), pytest.raises(UserError) as caught:
        build(texts, (2, 2))
    assert one_line(caught.value, "in use by another process")


def test_a_part_waits_for_the_one_that_writes_the_plan(tmp_path, texts, monkeypatch):
    waits = []
    with lock_folder(tmp_path / ".corpus.building"):
        monkeypatch.setattr("hornbook.corpora.building.separate._WAITS", 3)
        monkeypatch.setattr("time.sleep", waits.append)
        with pytest.raises(UserError, match="in use by another process"):
            build(texts, (1, 2))
    assert waits.count(0.5) == 2


@pytest.mark.slow
def test_a_crash_of_a_part_at_every_operation_and_another_start(tmp_path, texts, monkeypatch):
    monkeypatch.setattr(slices, "SLICE_BYTES", 4000)
    build_tiny(tmp_path / "good", quality=QUALITY, tolerance=ALL)
    target = tmp_path / "corpus"

    def run():
        build(texts, (1, 2))
        build(texts, (2, 2))
        merge_parts(target, ALL)

    with count_operations() as operations:
        run()
    shutil.rmtree(target)
    for n in range(1, len(operations) + 1, 3):
        assert crashes_in_child(run, "any", n, "crash-before"), n
        if not target.exists():
            run()
        assert contents(target) == contents(tmp_path / "good"), operations[n - 1]
        shutil.rmtree(target)
        shutil.rmtree(tmp_path / ".corpus.building", ignore_errors=True)
