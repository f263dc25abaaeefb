"""Builds by several processes, with workers and parents that are killed; the corpus is that of one process."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny_documents import some_words
from tiny_text import TEXTS, build_tiny, one_line, tiny_tokenizer

from hornbook.corpora.building import engines
from hornbook.corpora.building.engines import Workshop
from hornbook.corpora.building.request import BuildOptions, load_job, plan_build
from hornbook.errors import DataError, HornbookError, StorageError, UserError
from hornbook.storage import lock_folder
from hornbook.text import slices
from hornbook.text.documents import ReadOptions
from hornbook.text.quality.policy import QualityOptions, Tolerance
from hornbook.text.reading import Slice

PAGE = " ".join(some_words(150, 1))
QUALITY = {
    "quality": QualityOptions(min_words=4, exact_duplicates=True, near_duplicates=0.8),
    "reading": ReadOptions(on_error="skip"),
    "tolerance": Tolerance(max_dropped=1.0, allow=("unused-file",)),
}


@pytest.fixture(autouse=True)
def many_slices(monkeypatch):
    monkeypatch.setattr(slices, "SLICE_BYTES", 1500)


@pytest.fixture
def texts(tmp_path):
    """A dozen slices with copies, similar texts, broken lines and an empty file among them."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(4):
        some = [*TEXTS[number * 10 :][:20], *(f"{PAGE} {number} {text}" for text in TEXTS[:9])]
        lines = [json.dumps({"text": text}) for text in some]
        lines.insert(7, "broken" * (number % 2))
        (folder / f"{number}.jsonl").write_text("\n".join(lines))
    (folder / "5.txt").write_text("plain\r\ntext of a file\r\n")
    return folder


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_build_by_workers_is_that_of_one_process(tmp_path, texts):
    progress = []
    good = build_tiny(tmp_path / "one", **QUALITY)
    made = build_tiny(tmp_path / "two", workers=2, on_progress=progress.append, **QUALITY)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert (made.dropped, made.examples, made.messages) == (good.dropped, good.examples, good.messages)
    assert good.dropped["exact duplicates"] > 5 and good.dropped["near duplicates"] > 5 and good.faults == 2
    assert progress[0].read == 0 and progress[-1].read == progress[-1].total
    assert [each.documents for each in progress] == sorted(each.documents for each in progress)
    assert not (tmp_path / ".two.building").exists()


@pytest.mark.slow
def test_the_slices_of_another_size_make_the_same_corpus(tmp_path, texts, monkeypatch):
    build_tiny(tmp_path / "one", **QUALITY)
    for size in (1, 5000, 1 << 20):
        monkeypatch.setattr(slices, "SLICE_BYTES", size)
        build_tiny(tmp_path / f"{size}", **QUALITY)
        assert contents(tmp_path / "one") == contents(tmp_path / f"{size}")


def test_the_error_of_a_worker_is_that_of_one_process(tmp_path, texts):
    errors = []
    for workers in (1, 2):
        with pytest.raises(DataError) as caught:
            build_tiny(tmp_path / "corpus", workers=workers)
        errors.append(str(caught.value))
    assert errors[0] == errors[1] and "1.jsonl, line 8: not valid JSON" in errors[0]


@pytest.mark.parametrize("broken", [(1, 3), (3, 1, 0), (2,), (0, 1, 2, 3)])
def test_the_error_is_that_of_the_first_slice_whichever_ends_first(broken):
    def get(task, number):
        assert task == number
        if number in broken:
            raise DataError(f"slice {number}")

    with pytest.raises(DataError, match=f"slice {min(broken)}"):
        engines._run_in_order(range(9), lambda: 2, lambda number: number, lambda tasks: [max(tasks)], get, list)


def test_a_killed_worker_is_one_line_and_the_next_build_resumes(tmp_path, texts):
    build_tiny(tmp_path / "good", **QUALITY)
    killed, notices = [], []

    def kill(progress):
        if progress.documents and not killed:
            children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
            workers = [pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
            killed.extend(workers[:1])
            os.kill(int(workers[0]), signal.SIGKILL)

    with pytest.raises(HornbookError) as caught:
        build_tiny(tmp_path / "corpus", workers=2, on_progress=kill, on_notice=notices.append, **QUALITY)
    assert one_line(caught.value, "a worker was killed, probably since memory ran out", "`workers`", "resume")
    assert caught.value.exit_code == 1 and killed and "run the same command to resume" in notices[0]
    build_tiny(tmp_path / "corpus", workers=2, on_notice=notices.append, **QUALITY)
    assert one_line(Exception(notices[1]), "resuming after")
    assert contents(tmp_path / "corpus") == contents(tmp_path / "good")


def test_a_slice_that_another_process_builds_is_refused(tmp_path, texts):
    build_tiny(tmp_path / "good", **QUALITY)
    work = tmp_path / ".corpus.building"
    work.mkdir()
    with lock_folder(work):
        pass
    with pytest.raises(KeyboardInterrupt):
        build_tiny(tmp_path / "corpus", on_progress=_interrupt, **QUALITY)
    with lock_folder(work / "slices" / "000005"), pytest.raises(UserError, match="in use by another process"):
        build_tiny(tmp_path / "corpus", **QUALITY)
    build_tiny(tmp_path / "corpus", **QUALITY)
    assert contents(tmp_path / "corpus") == contents(tmp_path / "good")


def _interrupt(progress):
    if progress.documents > 20:
        raise KeyboardInterrupt


def test_a_stream_has_one_reader(tmp_path):
    with pytest.raises(UserError) as caught:
        build_tiny(tmp_path / "corpus", inputs=["-"], workers=2)
    assert one_line(caught.value, "an input is a stream", "`workers`")


@pytest.mark.parametrize(
    ("options", "part"), [({"workers": 0}, "`workers=0`"), ({"workers": 2, "ray": "local"}, "remove one of them")]
)
def test_numbers_of_workers_that_mean_nothing(tmp_path, texts, options, part):
    with pytest.raises(UserError) as caught:
        build_tiny(tmp_path / "corpus", **options)
    assert one_line(caught.value, part)


@pytest.mark.slow
def test_a_full_disk_of_a_worker_is_one_line_and_the_next_build_resumes(tmp_path, texts, monkeypatch):
    build_tiny(tmp_path / "good", **QUALITY)
    notices = []
    monkeypatch.setenv("HORNBOOK_FAULT", "write:60:enospc")
    with pytest.raises(StorageError) as caught:
        build_tiny(tmp_path / "corpus", workers=2, on_notice=notices.append, **QUALITY)
    assert one_line(caught.value, "cannot write", "No space left on device", "free some space")
    assert caught.value.exit_code == 1 and "run the same command to resume" in notices[0]
    monkeypatch.delenv("HORNBOOK_FAULT")
    build_tiny(tmp_path / "corpus", workers=2, on_notice=notices.append, **QUALITY)
    assert "resuming after" in notices[1] and contents(tmp_path / "corpus") == contents(tmp_path / "good")


def test_a_version_that_differs_is_one_line(tmp_path, texts, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        build_tiny(tmp_path / "corpus", on_progress=_interrupt, **QUALITY)
    path = tmp_path / ".corpus.building" / "plan.json"
    plan = json.loads(path.read_text())
    path.write_text(json.dumps(plan | {"tokenizers": "0.0.1"}))
    engines._workshop.cache_clear()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as caught:
        engines._build_slice(str(path.parent), 0, 1, "auto")
    assert one_line(caught.value, "tokenizers 0.0.1", "use the same version everywhere")


KILLED = """
import sys
from pathlib import Path
sys.path[:0] = {paths!r}
if __name__ == "__main__":
    import test_engines
    test_engines.slices.SLICE_BYTES = 1500
    show = lambda progress: print(progress.documents, flush=True)
    test_engines.build_tiny(Path({output!r}), workers=2, on_progress=show, **test_engines.QUALITY)
"""


@pytest.mark.slow
@pytest.mark.parametrize("wait", [0.0, 0.3, 0.7, 1.1])
def test_a_killed_parent_leaves_no_workers_and_the_next_build_resumes(tmp_path, texts, wait):
    build_tiny(tmp_path / "good", **QUALITY)
    here = Path(__file__).parent
    script = tmp_path / "build.py"
    paths = [str(here), str(here.parents[1] / "helpers")]
    script.write_text(KILLED.format(paths=paths, output=str(tmp_path / "corpus")))
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, start_new_session=True) as parent:
        parent.stdout.readline()
        time.sleep(wait)
        parent.send_signal(signal.SIGKILL)
    for _ in range(100):
        names = (path.name for path in Path("/proc").iterdir() if path.name.isdigit())
        left = [pid for pid in map(int, names) if _session(pid) == parent.pid]
        if not left:
            break
        time.sleep(0.05)
    assert not left, "workers end with their parent"
    build_tiny(tmp_path / "corpus", workers=2, **QUALITY)
    assert contents(tmp_path / "corpus") == contents(tmp_path / "good")


def _session(pid):
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def test_one_process_reads_the_next_slice_while_one_is_written_and_skips_finished_ones(tmp_path, texts):
    build_tiny(tmp_path / "good", **QUALITY)
    job = plan_build(sorted(map(str, texts.iterdir())), tiny_tokenizer(), tmp_path / "corpus", BuildOptions(**QUALITY))
    job.work.mkdir()
    with lock_folder(job.work):
        job.write()
    workshop, built, started = Workshop(job, 1), [], []
    workshop.build_slices([2, 5])
    numbers = range(len(job.slices))

    def follow():
        for number in numbers:
            started.append(number)
            yield number

    workshop.build_slices(follow(), lambda number, meter, counts: built.append((number, started[-1])))
    assert [number for number, _ in built] == [number for number in numbers if number not in (2, 5)]
    assert any(latest > number for number, latest in built)
    workshop.build_slices(numbers, lambda *batch: pytest.fail("all are finished"))
    build_tiny(tmp_path / "corpus", **QUALITY)
    assert contents(tmp_path / "corpus") == contents(tmp_path / "good")


def test_workers_get_the_slices_of_the_plan(tmp_path, texts):
    job = plan_build(sorted(map(str, texts.iterdir())), tiny_tokenizer(), tmp_path / "corpus", BuildOptions(**QUALITY))
    assert len(job.slices) > 8
    job.work.mkdir()
    job.write()
    again = load_job(job.work)
    assert again.slices == job.slices and isinstance(again.slices[0], Slice)
    assert again.options == BuildOptions(**QUALITY | {"tolerance": Tolerance()})
    assert again.tokenizer.digest == job.tokenizer.digest and again.request == job.request
    assert job.is_written()
