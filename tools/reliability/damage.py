"""Damage to files: bits, bytes, truncations, swaps, and contents that were forged and hashed anew.

In turn, a trial damages a checkpoint, a corpus, a tokenizer, a run's folder or the cache of native operators, or forges
a checkpoint from which a run then resumes. A third of the trials damage nothing: what is intact must be taken without
a warning.
"""

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from actions import assert_whole
from small_runs import STEPS, digest, train_small
from tiny_checkpoints import saved
from trials import Part, Trial, in_child

import hornbook
from hornbook.checkpoint import load, newest_sound, save, verify
from hornbook.corpora.folders import splits_of
from hornbook.corpora.inspection import verify_hashes, verify_store
from hornbook.corpora.store import open_store
from hornbook.errors import HornbookError
from hornbook.ops.native import build, cache
from hornbook.ops.native.choice import KERNELS
from hornbook.ops.native.trials import seconds
from hornbook.text.tokenizer import Tokenizer

_TEXT = "story 3: the cat sat on the mat, é😀"
Damage = Callable[[Path, Random], None]
KIND = "sparse, rewired"
"""Of the run whose checkpoints are forged, which has positions of blocks, too."""


def _flip(path: Path, draws: Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(draws.choice((1, 1, 1, 8))):
        data[draws.randrange(len(data))] ^= 1 << draws.randrange(8)
    path.write_bytes(data)


def _truncate(path: Path, draws: Random) -> None:
    os.truncate(path, draws.randrange(path.stat().st_size))


def _zero(path: Path, draws: Random) -> None:
    data = path.read_bytes()
    at = draws.randrange(len(data))
    path.write_bytes(data[:at] + bytes(min(len(data) - at, draws.choice((16, 512, 4096)))) + data[at + 4096 :])


def _extend(path: Path, draws: Random) -> None:
    path.write_bytes(path.read_bytes() + draws.randbytes(draws.choice((1, 8, 4096))))


def _repeat(path: Path, draws: Random) -> None:
    data = path.read_bytes()
    at, size = draws.randrange(len(data)), draws.choice((1, 8, 64))
    path.write_bytes(data[:at] + data[at : at + size] + data[at:])


def _swap(path: Path, draws: Random) -> None:
    others = [file for file in sorted(path.parent.iterdir()) if file.is_file() and file != path]
    if not others:
        _remove(path, draws)
        return
    other = draws.choice(others)
    first, second = path.read_bytes(), other.read_bytes()
    path.write_bytes(second)
    other.write_bytes(first)


def _remove(path: Path, draws: Random) -> None:
    path.unlink()


def _make_stale(path: Path, draws: Random) -> None:
    """Put an older step's file of the same name and size in place of a file, or beside it as another rank's."""
    older = path.parent.with_name("step-00000005") / path.name
    if older.exists() and draws.random() < 0.7:
        shutil.copy(older, path)
    else:
        shutil.copy(path, path.with_name("model-00001.safetensors"))


DAMAGES: dict[str, Damage] = {
    "bits": _flip,
    "truncated": _truncate,
    "zeroed": _zero,
    "extended": _extend,
    "repeated": _repeat,
    "swapped": _swap,
    "removed": _remove,
}
STALE = {"stale": _make_stale}
"""Only checkpoints have files of ranks and of other steps."""


def _prepare(shared: Path) -> None:
    saved(shared / "checkpoints", 5, 10)
    texts = shared / "texts"
    texts.mkdir()
    for number in range(40):
        (texts / f"{number:02d}.txt").write_text(f"story {number}: " + "the cat sat on the mat, " * (number % 9))
    tokenizer = hornbook.train_tokenizer(texts, vocab_size=300, output=shared / "tokenizer")
    hornbook.build_corpus(texts, tokenizer, output=shared / "corpus", validation=0.2)
    (shared / "corpus.sha256").write_text(_tokens(shared / "corpus"))
    _, problem = in_child(lambda: train_small(KIND, shared / KIND / "run"), shared / "log")
    assert problem is None, problem
    built = build.library().parent
    shutil.copytree(built, shared / "native" / built.name, ignore=shutil.ignore_patterns("lock", "compiling-*"))


def _run(trial: Trial) -> str:
    what = ("checkpoint", "corpus", "resumed", "tokenizer", "run's folder", "native library")[trial.number % 6]
    is_intact = trial.number // 6 % 3 == 0
    damages = sorted(DAMAGES | STALE if what == "checkpoint" else DAMAGES)
    damage = None if is_intact else trial.draws.choice(damages)
    match what:
        case "checkpoint":
            _damage_checkpoint(trial, damage)
        case "corpus":
            _damage_corpus(trial, damage)
        case "tokenizer":
            _damage_tokenizer(trial, damage)
        case "run's folder":
            _damage_run(trial, damage)
        case "native library":
            _damage_library(trial, damage)
        case _:
            damage = _forge(trial, is_intact=is_intact)
    return f"{what}: {damage or 'intact'}"


def _damage_checkpoint(trial: Trial, damage: str | None) -> None:
    folder = trial.folder / "checkpoints"
    shutil.copytree(trial.shared / "checkpoints", folder)
    bad = folder / "step-00000010"
    if damage is None:
        assert_whole(folder, [(5, 10)])
        return
    file = trial.draws.choice(sorted(bad.iterdir()))
    before = _bytes_of(bad)
    (DAMAGES | STALE)[damage](file, trial.draws)
    if _bytes_of(bad) == before:  # zeros where there were zeros
        return
    warnings: list[str] = []
    assert verify(bad), f"{file.name} {damage}: verify found nothing"
    assert _refused(lambda: load(bad)), f"{file.name} {damage}: it was loaded"
    assert newest_sound(folder, warnings.append) == folder / "step-00000005", "the checkpoint before was not taken"
    assert len(warnings) == 1, warnings


def _damage_corpus(trial: Trial, damage: str | None) -> None:
    corpus = trial.folder / "corpus"
    shutil.copytree(trial.shared / "corpus", corpus)
    expected = (trial.shared / "corpus.sha256").read_text()
    if damage is None:
        _verify_corpus(corpus)
        assert _tokens(corpus) == expected
        return
    file = trial.draws.choice(sorted(file for file in corpus.rglob("*") if file.is_file()))
    DAMAGES[damage](file, trial.draws)
    if not _refused(lambda: _verify_corpus(corpus)):
        assert _tokens(corpus) == expected, f"{file.name} {damage}: nothing was found, but the tokens are others"


def _verify_corpus(corpus: Path) -> None:
    assert splits_of(corpus) == ("train", "validation")
    for split in ("train", "validation"):
        verify_hashes(corpus, split)
        verify_store(corpus, split)


def _tokens(corpus: Path) -> str:
    """Return the hash of all documents' tokens and texts."""
    digest = hashlib.sha256()
    for split in ("train", "validation"):
        store = open_store(corpus, split)
        for number in range(store.num_documents):
            tokens = np.asarray(store.document(number), dtype=np.int64)
            digest.update(tokens.tobytes() + b"|" + str(store.source(number)).partition("/texts")[2].encode())
    return digest.hexdigest()


def _damage_tokenizer(trial: Trial, damage: str | None) -> None:
    """Damage a tokenizer, which has no checksum: it must be refused, or encode and decode."""
    folder = trial.folder / "tokenizer"
    shutil.copytree(trial.shared / "tokenizer", folder)
    whole = Tokenizer.load(folder).encode(_TEXT)
    if damage is not None:
        DAMAGES[damage](trial.draws.choice(sorted(folder.iterdir())), trial.draws)
    found: list[list[int]] = []

    def use() -> None:
        tokenizer = Tokenizer.load(folder)
        found.append(list(tokenizer.encode(_TEXT)))
        tokenizer.decode(found[0])

    was_refused = _refused(use)
    assert damage is not None or (not was_refused and found == [list(whole)]), "an intact tokenizer was refused"


def _damage_run(trial: Trial, damage: str | None) -> None:
    """Damage a file of a run without its last checkpoint, and resume: refused, or the same weights in the end."""
    run = trial.folder / "run"
    shutil.copytree(trial.shared / KIND / "run", run)
    shutil.rmtree(run / "checkpoints" / f"step-{STEPS:08d}")
    file = trial.draws.choice(sorted(file for file in run.iterdir() if file.is_file() and file.stat().st_size))
    if damage is not None:
        DAMAGES[damage](file, trial.draws)
    was_refused = _refused(lambda: train_small(KIND, run))
    assert damage is not None or not was_refused, "an intact run was not resumed"
    if not was_refused:
        assert digest(run) == digest(trial.shared / KIND / "run"), f"{file.name} {damage}: it ended in another state"


def _damage_library(trial: Trial, damage: str | None) -> None:
    """Damage the compiled operators, their hash, the record of their forms or the measured times."""
    os.environ["XDG_CACHE_HOME"] = str(trial.folder)
    whole = next((trial.shared / "native").iterdir())
    folder = trial.folder / "hornbook" / "native" / whole.name
    shutil.copytree(whole, folder)
    library = folder / cache.LIBRARY
    times = folder / "seconds.json"
    if not times.exists():
        times.write_text("{}")
    file = trial.draws.choice(sorted(folder.iterdir()))
    before = file.read_bytes()
    if damage is not None:
        DAMAGES[damage](file, trial.draws)
    is_code = file == library or file.suffix == ".sha256"
    is_changed = not file.exists() or file.read_bytes() != before
    if damage == "swapped":
        is_code = library.read_bytes() != (whole / cache.LIBRARY).read_bytes()
    flaw = cache.find_flaw(library)
    assert not is_code or bool(flaw) == is_changed, f"{file.name} {damage}: {flaw or 'it would be loaded'}"
    if not flaw:
        build.missing_forms(folder)
        measured = seconds(KERNELS[0])
        assert measured and all(time > 0 for time in measured.values()), f"{file.name} {damage}: times {measured}"


@dataclass
class Forged:
    """Contents of a checkpoint that can be changed."""

    state: dict[str, Any]
    tensors: dict[str, dict[str, torch.Tensor]]


Forgery = Callable[[Forged, Random], None]


def _forge_state(made: Forged, draws: Random) -> None:
    """Put something else in place of a number of the state that decides what a resumed run does."""
    name = draws.choice(("step", "num_updates", "samples", "tokens"))
    impossible = [-1, 10**30, 2.5, "20", None, [20]] + [STEPS + 1] * (name in ("step", "num_updates"))
    made.state[name] = draws.choice(impossible)


def _forge_step(made: Forged, draws: Random) -> None:
    """Put another step that the run had into the state."""
    made.state["step"] = draws.randrange(STEPS)


def _forge_shape(made: Forged, draws: Random) -> None:
    group, name = _tensor(made, draws)
    tensor = made.tensors[group][name]
    made.tensors[group][name] = draws.choice((tensor.flatten()[:-1], tensor[None], tensor.new_zeros(0)))


def _forge_dtype(made: Forged, draws: Random) -> None:
    group, name = _tensor(made, draws)
    tensor = made.tensors[group][name]
    others = {torch.float32, torch.bfloat16, torch.float16, torch.int64} - {tensor.dtype}
    made.tensors[group][name] = tensor.to(draws.choice(sorted(others, key=str)))


def _forge_less(made: Forged, draws: Random) -> None:
    group, name = _tensor(made, draws)
    del made.tensors[group][name]


def _forge_more(made: Forged, draws: Random) -> None:
    group, name = _tensor(made, draws)
    made.tensors[group][f"{name}.more"] = made.tensors[group][name]


def _forge_positions(made: Forged, draws: Random) -> None:
    """Move a block outside of its matrix, or onto another one."""
    name = draws.choice([name for name in made.tensors["model"] if name.endswith((".rows", ".columns"))])
    positions = made.tensors["model"][name].clone()
    positions.view(-1)[draws.randrange(positions.numel())] = draws.choice((-1, 10**6, 2**31 - 1, -(2**31)))
    made.tensors["model"][name] = positions


def _tensor(made: Forged, draws: Random) -> tuple[str, str]:
    group = draws.choice(sorted(made.tensors))
    return group, draws.choice(sorted(made.tensors[group]))


FORGERIES: dict[str, Forgery] = {
    "state": _forge_state,
    "step": _forge_step,
    "shape": _forge_shape,
    "dtype": _forge_dtype,
    "a tensor less": _forge_less,
    "a tensor more": _forge_more,
    "positions": _forge_positions,
}


def _forge(trial: Trial, *, is_intact: bool) -> str | None:
    """Save other contents with hashes that match, and resume: refused in one line, before anything is trained."""
    run = trial.folder / "run"
    shutil.copytree(trial.shared / KIND / "run", run)
    path = run / "checkpoints" / f"step-{STEPS:08d}"
    loaded = load(path)
    state = dict(loaded.documents["state"])
    made = Forged(state=state, tensors={group: dict(tensors.items()) for group, tensors in loaded.tensors.items()})
    turn = trial.number // 6 - trial.number // 18 - 1  # of those that are not intact
    forgery = None if is_intact else list(FORGERIES)[turn % len(FORGERIES)]
    if forgery:
        FORGERIES[forgery](made, trial.draws)
    shutil.rmtree(run / "checkpoints")
    documents = {**loaded.documents, "state": made.state}
    save(run / "checkpoints", replace(loaded, tensors=made.tensors, documents=documents))
    was_refused = _refused(lambda: train_small(KIND, run))
    assert was_refused == (forgery is not None), (
        f"a forged checkpoint ({forgery}) was {'refused' if was_refused else 'taken'}"
    )
    return forgery


def _refused(action: Callable[[], object]) -> bool:
    """Return whether the action raised an error of one line."""
    try:
        action()
    except HornbookError as error:
        assert "\n" not in str(error), f"an error of several lines: {error}"
        return True
    return False


def _bytes_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


DAMAGE = Part(
    name="damage",
    promise="damaged files of checkpoints, corpora, tokenizers, runs and compiled operators, and forged checkpoints, "
    "are refused in one line or harmless; intact ones are taken",
    run=_run,
    prepare=_prepare,
    trials=3000,
    short=50,
)
