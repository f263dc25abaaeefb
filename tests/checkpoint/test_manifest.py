import hashlib
from pathlib import Path

import pytest
from tiny_checkpoints import contents, one_line

from hornbook.checkpoint import folder_of, load, save, verify
from hornbook.checkpoint.manifest import Entry, Manifest, is_plain_name, parse_step, read_manifest
from hornbook.errors import CheckpointError, StorageError
from hornbook.storage.json_files import dump_json

DIGEST = hashlib.sha256(b"abc").hexdigest()


def entry(**changes) -> dict:
    return {"kind": "file", "size": 3, "sha256": DIGEST, **changes}


def manifest(**changes) -> dict:
    return {"format": "hornbook checkpoint", "version": 1, "step": 5, "files": {"abc": entry()}, **changes}


def written(folder: Path, value: object) -> Path:
    """A checkpoint with the one file abc and any manifest."""
    (folder / "manifest.json").write_bytes(value if isinstance(value, bytes) else dump_json(value))
    (folder / "abc").write_bytes(b"abc")
    return folder


def test_the_format_stays_as_it_is(tmp_path):
    """Checkpoints of older versions must stay readable: this text is what version 1 wrote."""
    text = (
        '{\n  "files": {\n    "abc": {\n      "kind": "file",\n      "sha256": '
        f'"{DIGEST}",\n      "size": 3\n    }}\n  }},\n'
        '  "format": "hornbook checkpoint",\n  "step": 5,\n  "version": 1\n}\n'
    )
    expected = Manifest(step=5, files={"abc": Entry(kind="file", size=3, sha256=DIGEST)})
    assert expected.to_bytes() == text.encode()
    assert read_manifest(written(tmp_path, text.encode())) == expected
    assert verify(tmp_path) == []
    assert load(tmp_path).files == {"abc": b"abc"}


@pytest.mark.parametrize("step", [0, 5, 1200, 99_999_999, 100_000_000, 123_456_789_012])
def test_a_step_has_one_name(step, tmp_path):
    assert parse_step(folder_of(tmp_path, step).name) == step


@pytest.mark.parametrize(
    "name",
    [
        "step-5",
        "step-000000005",
        "step-0000005",
        "step-00000005 ",
        "step-00000005\n",
        "step-+0000005",
        "Step-00000005",
        "step-00000005.tmp-12",
        "step-\N{ARABIC-INDIC DIGIT FIVE}0000000",
        "step--0000005",
        "step-0000_005",
        "xstep-00000005",
        "step-" + "9" * 19,
    ],
)
def test_other_names_are_no_steps(name):
    assert parse_step(name) is None


@pytest.mark.parametrize("name", ["a", "model-00000.safetensors", "tokenizer.json", "A-1_b.c", "x" * 200])
def test_plain_names(name):
    assert is_plain_name(name)


TRICKS = ["", ".", "..", "../abc", "/etc/passwd", "a/b", "a\\b", "C:x", ".hidden", "-rf", "a\0", "a\n", "ü", "x" * 201]


@pytest.mark.parametrize(
    "name", [*TRICKS, "manifest.json", "a b", "~", "$HOME", "abc/", "./abc", "a/../abc", "\u202eabc"]
)
def test_names_that_could_lead_elsewhere_are_refused(tmp_path, name):
    assert not is_plain_name(name)
    (tmp_path / "in").mkdir()
    (tmp_path / "abc").write_bytes(b"abc")
    path = written(tmp_path / "in", manifest(files={"abc": entry(), name: entry()}))
    (problem,) = verify(path)
    assert "not a plain file name" in problem
    with pytest.raises(CheckpointError) as caught:
        load(path)
    assert one_line(caught.value)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b"", "not valid JSON"),
        (b"[]\n", "not a checkpoint's"),
        (b"{}\n", "not a checkpoint's"),
        (b'{"a": 1, "a": 1}', "twice"),
        (b"[" * 100_000, "not valid JSON"),
        (b" " + dump_json(manifest()), "not written by hornbook"),
        (dump_json(manifest())[:-1], "not written by hornbook"),
        (manifest(format="hornbook store"), "not a checkpoint's"),
        (manifest(version=3), "format version 3, but this hornbook reads 1 to 2"),
        (manifest(version=2), "must have step"),
        (manifest(version=True), "format version True"),
        (manifest(version="1"), "format version '1'"),
        (manifest(step=-1), "must have step"),
        (manifest(step=5.0), "must have step"),
        (manifest(step=True), "must have step"),
        (manifest(step="5"), "must have step"),
        (manifest(step=2**63), "must have step"),
        (manifest(more=1), "and nothing else"),
        (manifest(files=[]), "must be an object"),
        (manifest(files={"abc": []}), "must have kind, size and sha256"),
        (manifest(files={"abc": entry(more=1)}), "must have kind, size and sha256"),
        (manifest(files={"abc": entry(kind="pickle")}), "cannot have the kind 'pickle'"),
        (manifest(files={"abc": entry(kind=["file"])}), "cannot have the kind"),
        (manifest(files={"abc": entry(kind="tensors")}), "cannot have the kind 'tensors'"),
        (manifest(files={"abc": entry(size=-1)}), "malformed size"),
        (manifest(files={"abc": entry(size=3.0)}), "malformed size"),
        (manifest(files={"abc": entry(size=True)}), "malformed size"),
        (manifest(files={"abc": entry(sha256=DIGEST.upper())}), "malformed size or sha256"),
        (manifest(files={"abc": entry(sha256=7)}), "malformed size or sha256"),
        (manifest(files={"abc": entry(size=4)}), "has 3 bytes, expected 4"),
        (manifest(files={"abc": entry(sha256="0" * 64)}), "altered"),
        (manifest(files={}), "'abc' is not in the manifest"),
    ],
)
def test_a_malformed_manifest_is_reported(tmp_path, value, problem):
    (found,) = verify(written(tmp_path, value))
    assert problem in found and "\n" not in found


def test_a_manifest_that_cannot_be_read_is_a_problem_not_an_error(tmp_path, monkeypatch):
    def fail(path, **options):
        raise OSError(5, "Input/output error")

    written(tmp_path, manifest())
    monkeypatch.setattr("hornbook.storage.json_files.open_regular", fail)
    (problem,) = verify(tmp_path)
    assert "manifest.json: Input/output error" in problem
    with pytest.raises(StorageError):
        read_manifest(tmp_path)


def test_the_manifest_of_a_saved_checkpoint_names_its_kinds(tmp_path):
    files = read_manifest(save(tmp_path, contents(5))).files
    assert {name: item.kind for name, item in files.items()} == {
        "model-00000.safetensors": "tensors",
        "optimizer-00000.safetensors": "tensors",
        "state.json": "document",
        "recipe.json": "document",
        "tokenizer.json": "file",
    }
