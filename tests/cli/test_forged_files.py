"""Files of a run as an attacker or an accident may leave them: one line, exit code 2, and nothing built before it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tiny_text import build_tiny

from hornbook.checkpoint.manifest import MANIFEST, Entry, read_manifest
from hornbook.cli.main import main
from hornbook.storage.files import sha256_file

STEP = "checkpoints/step-00000002"
IN_CHECKPOINT = tuple(f"{STEP}/{name}" for name in ("state.json", "recipe.json", "tokenizer.json"))
BY_PRODUCTS = ("environment.json", "evaluation.json")

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(10**9, 10**15)
    | st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and a finished run of two steps."""
    folder = tmp_path_factory.mktemp("home")
    build_tiny(folder / "corpus")
    assert main([*command(folder, folder / "run")]) == 0
    assert main(["evaluate", str(folder / "run"), "--threads", "1"]) == 0
    return folder


def command(home: Path, run: Path, *more: str) -> list[str]:
    """The command that trains the run, or goes on with it."""
    sizes = "--model.num-layers 1 --model.hidden-size 32 --model.max-positions 48 --data.sequence-length 48"
    steps = "--training.steps 2 --training.global-batch-size 4 --training.micro-batch-size 4 --schedule.warmup-steps 0"
    rest = "--tracking.sample-every-steps none --precision.compute fp32 --device cpu --threads 1"
    return [*f"train demo --data.train {home}/corpus --output {run} {sizes} {steps} {rest}".split(), *more]


def forge(run: Path, name: str, data: bytes | None) -> None:
    """Give a file of a run other content, or none, and let the manifest of its checkpoint agree."""
    path = run / name
    path.unlink() if data is None else path.write_bytes(data)
    if name.startswith(STEP):
        manifest = read_manifest(path.parent)
        files = {file: entry for file, entry in manifest.files.items() if file != path.name}
        if data is not None:
            entry = manifest.files[path.name]
            files[path.name] = Entry(kind=entry.kind, size=len(data), sha256=sha256_file(path))
        tensors = {group: held for group, held in manifest.tensors.items() if f"{group}-00000.safetensors" in files}
        (path.parent / MANIFEST).write_bytes(replace(manifest, files=files, tensors=tensors).to_bytes())


def forged_copy(home: Path, target: Path, name: str, change: Any) -> Path:
    """A copy of the run with one file changed: ``change`` takes the parsed JSON and returns other JSON."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(home / "run", target)
    forge(target, name, json.dumps(change(json.loads((target / name).read_text()))).encode())
    return target


def with_value(document: Any, position: int, value: Any) -> Any:
    """Replace, or if ``value`` is ``...`` remove, one of all keys of the nested objects of ``document``."""
    places: list[tuple[dict[str, Any], str]] = []

    def collect(node: Any) -> None:
        for key, below in node.items() if isinstance(node, dict) else ():
            places.append((node, key))
            collect(below)

    collect(document)
    node, key = places[position % len(places)]
    if value is ...:
        del node[key]
    else:
        node[key] = value
    return document


def refused(words: list[str], capfd: pytest.CaptureFixture[str], *, may_pass: bool = False) -> str:
    """Run a command, which has to end with one line of error and exit code 2, and return the line."""
    capfd.readouterr()
    status = main(words)
    errors = [line for line in capfd.readouterr().err.splitlines() if line.startswith("hornbook: error: ")]
    assert (status, len(errors)) == (2, 1) or (may_pass and (status, errors) == (0, [])), (words[0], status, errors)
    return "".join(errors)


@pytest.mark.slow
@settings(
    max_examples=25, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    name=st.sampled_from([*IN_CHECKPOINT, "run.json", *BY_PRODUCTS]),
    position=st.integers(0, 500),
    value=st.just(...) | anything,
    how=st.sampled_from(["key", "key", "key", "whole", "bytes", "gone"]),
    raw=st.binary(max_size=40),
)
def test_every_forgery_is_reported_in_one_line(
    home: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    name: str,
    position: int,
    value: Any,
    how: str,
    raw: bytes,
) -> None:
    run = tmp_path / "run"
    if how == "key":
        forged_copy(home, run, name, lambda document: with_value(document, position, value))
    else:
        forged_copy(home, run, name, lambda document: document)
        forge(
            run, name, {"whole": json.dumps(None if value is ... else value).encode(), "bytes": raw, "gone": None}[how]
        )
    new = tmp_path / "new"
    shutil.rmtree(new, ignore_errors=True)
    refused(["evaluate", str(run), "--threads", "1"], capfd, may_pass=True)
    refused(["checkpoint", "export", str(run), "--output", str(tmp_path / "out")], capfd, may_pass=True)
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    keep = ["--init-from", str(run), "--init-optimizer", "keep"]
    refused([*command(home, new), *keep], capfd, may_pass=True)
    words = command(home, run, "--training.steps", "3", "--schedule.name", "constant")
    if name in BY_PRODUCTS:
        assert main(command(home, run)) == 0
    refused(words, capfd, may_pass=True)


ABSURD = (("vocab_size", 10**12), ("max_positions", 10**13), ("feed_forward_size", 10**13))


@pytest.mark.parametrize(("key", "value"), ABSURD, ids=[key for key, _ in ABSURD])
def test_sizes_that_no_weights_have_are_refused_before_a_model_is_built(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], key: str, value: int
) -> None:
    def change(recipe: Any) -> Any:
        recipe["model"][key] = value
        return recipe

    run = forged_copy(home, tmp_path / "run", f"{STEP}/recipe.json", change)
    line = refused(["evaluate", str(run), "--threads", "1"], capfd)
    assert "step-00000002/recipe.json describes a model of " in line
    assert "iB in fp32, but its weights take 93.4 KiB: restore" in line
    option = f"--model.{key.replace('_', '-')}"
    line = refused(command(home, tmp_path / "new", option, str(value)), capfd)
    assert "parameters takes " in line
    assert not (tmp_path / "new").exists()


LIMITS = (("num_layers", 10**9), ("hidden_size", 10**12), ("hidden_size", 10**18), ("vocab_size", 10**18))


@pytest.mark.parametrize(("key", "value"), LIMITS)
def test_sizes_that_no_model_has_are_refused_wherever_a_recipe_is_read(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], key: str, value: int
) -> None:
    def change(recipe: Any) -> Any:
        recipe["model"] |= {key: value, "num_heads": 1}
        return recipe

    run = forged_copy(home, tmp_path / "run", f"{STEP}/recipe.json", change)
    sizes = [f"--model.{key.replace('_', '-')}", str(value), "--model.num-heads", "1"]
    for words in (
        ["evaluate", str(run), "--threads", "1"],
        ["checkpoint", "export", str(run), "--output", str(tmp_path / "out")],
        ["plan", "gpt2-small", *sizes],
        command(home, tmp_path / "new", *sizes),
        command(home, tmp_path / "new", *sizes, "--dry-run"),
    ):
        line = refused(words, capfd)
        limit = "at most 10000" if key == "num_layers" else "expected at most 1e+15"
        assert f"model.{key} = {value} (" in line and limit in line, words
    assert not (tmp_path / "new").exists() and not (tmp_path / "out").exists()


@pytest.mark.parametrize(("key", "value"), [("hidden_size", 10**6), ("num_layers", 10**4)])
def test_an_export_compares_the_recipe_with_the_weights_first(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], key: str, value: int
) -> None:
    def change(recipe: Any) -> Any:
        recipe["model"] |= {key: value, "num_heads": 1}
        return recipe

    run = forged_copy(home, tmp_path / "run", f"{STEP}/recipe.json", change)
    line = refused(["checkpoint", "export", str(run), "--output", str(tmp_path / "out")], capfd)
    assert "but its weights take 93.4 KiB: restore" in line


def test_a_batch_that_no_memory_holds_is_refused(home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    line = refused(command(home, tmp_path / "new", "--training.global-batch-size", "100000000000"), capfd)
    assert "the token ids of one step take 34.9 TiB on each rank" in line
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", BY_PRODUCTS)
@pytest.mark.parametrize("content", [b"", b"[", b'{"tasks": 5, "sessions": [', b"\xff"])
def test_a_damaged_by_product_stops_no_run(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, content: bytes
) -> None:
    shutil.copytree(home / "run", tmp_path / "run")
    (tmp_path / "run" / name).write_bytes(content)
    assert main(command(home, tmp_path / "run")) == 0
    error = capfd.readouterr().err
    assert error.count(f"{name}: the ") == 1, "said once, though the run's start, end and report need it"
    assert "error:" not in error
    assert (tmp_path / "run" / name).read_bytes() == content, "the file is left for whoever can repair it"


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


ODD_SESSIONS = {
    "half a character": b'{"command": "\\ud800"}',
    "a huge number": b'{"cores": 1e999}',
    **{f"{depth} levels": b'{"gpus": ' + nested(depth) + b"}" for depth in (200, 400, 800, 900, 950, 1000, 3000)},
    "forms of odd types": b'{"kernels": {"forms": {"linear_f32": [1], "block_sparse_f32": {}, "adamw": 5}}}',
    "kernels of another type": b'{"kernels": 5}',
    "sessions of another type": b"5",
}


@pytest.mark.parametrize("kind", ODD_SESSIONS)
def test_an_unusual_value_in_the_environment_stops_no_run(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    shutil.copytree(home / "run", tmp_path / "run")
    (tmp_path / "run/environment.json").write_bytes(b'{"sessions": [' + ODD_SESSIONS[kind] + b"]}")
    assert main(command(home, tmp_path / "run")) == 0
    assert "error:" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (f"{STEP}/state.json", None, "state.json is missing or has no `step`"),
        (f"{STEP}/state.json", b'{"step": 2, "samples": "8"}', "state.json: samples is '8'"),
        (f"{STEP}/state.json", b'{"step": 1}', "state.json has step 1"),
        ("run.json", b"[]", "run.json: expected the identity of a run"),
        ("run.json", b'{"format": 1, "data": {}, "init_from": {}}', "run.json: expected under --init-from"),
        ("run.json", b'{"format": 1, "data": {}}', "run.json: expected a table of sections"),
    ],
)
def test_a_resume_names_the_malformed_file(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, data: bytes | None, message: str
) -> None:
    shutil.copytree(home / "run", tmp_path / "run")
    forge(tmp_path / "run", name, data)
    assert message in refused(command(home, tmp_path / "run"), capfd)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (f"{STEP}/recipe.json", None, "has no recipe.json to describe the weights"),
        (f"{STEP}/recipe.json", b'{"model": {"num_layers": "x"}, "optimizer": 3}', "step-00000002/recipe.json"),
        (f"{STEP}/tokenizer.json", b"\xff", "step-00000002/tokenizer.json cannot be read"),
        (f"{STEP}/tokenizer.json", b"{}", "step-00000002/tokenizer.json cannot be read"),
        (f"{STEP}/model-00000.safetensors", None, "has no weights: it has no tensors in the group model"),
    ],
)
def test_an_evaluation_names_the_malformed_file(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, data: bytes | None, message: str
) -> None:
    shutil.copytree(home / "run", tmp_path / "run")
    forge(tmp_path / "run", name, data)
    assert message in refused(["evaluate", str(tmp_path / "run"), "--threads", "1"], capfd)
