"""The folder of a run: its paths, and the check that a run in it is the same run.

::

    runs/demo/  run.json  recipe.toml  environment.json  metrics.jsonl  samples.jsonl  checkpoints/  report.html

``hornbook train FOLDER``, or the same command again, resumes it. ``run.json`` holds the identity of the run: the recipe
of its last start, the fingerprints of its data, and the origin of its initial weights, if any.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, get_type_hints

from hornbook import checkpoint
from hornbook.config import Recipe, changed_keys, recipe_to_dict, recipe_to_toml
from hornbook.config.recipe_files import IDENTITY
from hornbook.corpora.folders import OF_CORPORA
from hornbook.errors import DataError, HornbookError, StorageError, UserError
from hornbook.exchange.contents import refuse_unknown_parts, stored_recipe
from hornbook.run.initial_weights import InitFrom, Origin
from hornbook.run.utilization import Peak
from hornbook.storage import remove_file, replace_file
from hornbook.storage.json_files import dump_json, read_bytes, read_json
from hornbook.track.environment import sessions

_FORMAT = 1
_MAY_CHANGE = (
    "name",
    "data.train",  # paths; the fingerprints identify the content
    "data.validation",
    "data.tokenizer",  # also a path
    "data.cache",
    "data.cache_gib",
    "data.layout",
    "training.steps",
    "training.epochs",
    "training.tokens",
    "training.micro_batch_size",
    "precision.kernels",
    "parallel.",
    "memory.",
    "checkpoint.",
    "evaluation.",
    "tracking.",
)

_CHOICE: Final[dict[str, type]] = {"dial": str, "options": dict, "reasons": list}
_TIME: Final[dict[str, type]] = {"begun": float, "seconds": float}
"""Of a choice, and of one for a time besides."""


class RunFolder:
    """Paths inside a run's folder.

    Args:
        path: the run's folder, which may be missing.

    Attributes:
        checkpoints: the folder of checkpoints.
        metrics: the log of metrics, one JSON object per line.
        samples: the log of sampled texts, one JSON object per line.
        environment: the record of each session's environment.
        identity: the identity of the run.
        choice: what `hornbook train auto` chose, before the run began.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.checkpoints = path, path / "checkpoints"
        self.metrics, self.samples = path / "metrics.jsonl", path / "samples.jsonl"
        self.environment, self.identity = path / "environment.json", path / IDENTITY
        self.choice = path / "choice.json"

    @property
    def forms(self) -> dict[str, str] | None:
        """The forms of native kernels in the run's last session; None if there is no run or they are not recorded."""
        told = [session.get("kernels", {"forms": {}}) for session in self._sessions]
        forms = told[-1].get("forms") if told and isinstance(told[-1], dict) else None
        return {name: isa for name, isa in forms.items() if isinstance(isa, str)} if isinstance(forms, dict) else None

    @property
    def peaks(self) -> list[Peak]:
        """The peak rates of the run's sessions, the newest first; none where they are not recorded."""
        told = [Peak.of(session.get("peak")) for session in self._sessions]
        return [peak for peak in reversed(told) if peak is not None]

    @property
    def _sessions(self) -> list[dict[str, Any]]:
        if not self.has_begun:
            return []
        try:
            return sessions(self.environment)
        except HornbookError:  # a damaged record must not stop a run
            return []

    @property
    def has_begun(self) -> bool:
        """Whether the folder has results of a run to protect: a logged step, or a checkpoint."""
        has_checkpoint = self.checkpoints.is_dir() and any(self.checkpoints.iterdir())
        return has_checkpoint or (self.metrics.exists() and self.metrics.stat().st_size > 0)

    @property
    def origin(self) -> Origin | None:
        """The origin of the run's weights; None for random weights, or without a run."""
        recorded = read_identity(self.identity)["init_from"] if self.identity.exists() else None
        return Origin(**recorded) if recorded else None

    @property
    def not_yet_loaded(self) -> InitFrom | None:
        """The requested initial weights of a run that was stopped before its first step."""
        if self.has_begun or (origin := self.origin) is None:
            return None
        return InitFrom(source=origin.path, keep_optimizer=origin.keep_optimizer)

    @property
    def last_recipe(self) -> Recipe | None:
        """The recipe of the run's last start; None if no run has begun.

        Raises:
            RecipeError: it names an unregistered part.
            CheckpointError, DataError: it is malformed.
        """
        if not (self.has_begun and self.identity.exists()):
            return None
        document = read_identity(self.identity)["recipe"]
        refuse_unknown_parts(document, str(self.path))
        return stored_recipe(document, str(self.identity))

    def time_limit(self, name: str) -> tuple[float, float] | None:
        """Return the `time.time` at which choosing began and the seconds that were given; None if the length is fixed.

        Args:
            name: of the recipe; a choice for another one is ignored.

        Raises:
            DataError: the choice is malformed.
        """
        choice = self.read_choice()
        return (choice["begun"], choice["seconds"]) if choice.get("name") == name and "seconds" in choice else None

    def is_chosen(self, name: str) -> bool:
        """Return whether ``hornbook train auto`` chose the run with the recipe ``name``; not by a damaged choice."""
        try:
            return self.read_choice().get("name") == name
        except HornbookError:  # at its end, a run needs it no longer
            return False

    @property
    def prediction(self) -> tuple[float | None, float | None, float | None]:
        """Bits per byte for a nat per token, and the bounds of the loss, by `hornbook train auto`; None if unknown."""
        found = self.read_choice().get("predicted")
        told = found if isinstance(found, dict) else {}
        bits, low, high = (told.get(key) for key in ("bits_per_nat", "low", "high"))
        are_numbers = isinstance(low, float) and isinstance(high, float)
        return bits if isinstance(bits, float) else None, low if are_numbers else None, high if are_numbers else None

    def read_choice(self) -> dict[str, Any]:
        """Return what `hornbook train auto` chose: ``dial``, ``options`` and ``reasons``; empty if it chose nothing.

        Raises:
            DataError: the file is malformed.
        """
        if not self.choice.exists():
            return {}
        found = read_json(self.choice, "choice")
        kinds = _CHOICE | (_TIME if isinstance(found, dict) and found.keys() & _TIME else {})
        if not isinstance(found, dict) or not all(isinstance(found.get(name), kind) for name, kind in kinds.items()):
            raise DataError(
                f"{self.choice}: expected what `hornbook train auto` chose; restore the file, or remove it and resume "
                "the run by its folder"
            )
        return found

    def what_is_saved(self) -> str:
        """Describe the newest checkpoint on disk, from which the run would resume."""
        steps = checkpoint.steps_in(self.checkpoints)
        if not steps:
            return f"{self.path} has no checkpoint"
        return f"the newest checkpoint in {self.path} is that of step {steps[-1]}"

    def enter(
        self, recipe: Recipe, fingerprints: dict[str, str | None], origin: Origin | None = None
    ) -> Callable[[], None]:
        """Write the recipe of this start; reject a folder with another run that has made a step.

        Args:
            recipe: complete.
            fingerprints: fingerprints of the data by split.
            origin: the origin of the run's weights; None for random ones.

        Returns:
            A function that restores the files, for a start that is rejected later.

        Raises:
            UserError: the folder has a run with another model, data, seed, batch or optimization.
        """
        self.refuse_other_run(recipe, fingerprints)
        identity = {"format": _FORMAT, "recipe": recipe_to_dict(recipe), "data": fingerprints}
        identity |= {"init_from": asdict(origin) if origin else None}
        files = {self.identity: dump_json(identity), self.path / "recipe.toml": recipe_to_toml(recipe).encode()}
        before = {path: read_bytes(path, "the file") if path.exists() else None for path in files}

        def put_back() -> None:
            with suppress(StorageError):
                for path, content in before.items():
                    remove_file(path) if content is None else replace_file(path, content)

        for path, content in files.items():
            replace_file(path, content)
        return put_back

    def correct(self, recipe: Recipe) -> None:
        """Write the recipe of a run that has changed its own length."""
        identity = read_identity(self.identity) | {"recipe": recipe_to_dict(recipe)}
        replace_file(self.identity, dump_json(identity))
        replace_file(self.path / "recipe.toml", recipe_to_toml(recipe).encode())

    def refuse_other_run(self, recipe: Recipe, fingerprints: dict[str, str | None]) -> None:
        """Raise UserError for a folder with another run that has made a step, see `enter`, or with a corpus."""
        if (old := self.last_recipe) is None:
            if self.has_begun:
                raise UserError(f"{self.path} contains a run without its {IDENTITY}: choose another `output`")
            if any((self.path / name).exists() for name in OF_CORPORA):
                raise UserError(f"{self.path} is a corpus: choose another `output` for a run")
            return
        changes = differences(old, read_identity(self.identity)["data"], recipe, fingerprints)
        if changes:
            raise UserError(
                f"{self.path} contains another run: {'; '.join(changes)}. Restore the old values to resume it, "
                "or choose another `output` for a new run"
            )


def read_identity(path: Path) -> dict[str, Any]:
    """Return the content of a ``run.json``: ``recipe``, as a document, ``data`` and ``init_from``.

    Raises DataError if it is malformed, or has another version.
    """
    identity = read_json(path, "run identity")
    if not isinstance(identity, dict) or identity.get("format") != _FORMAT:
        raise DataError(f"{path}: expected the identity of a run, of format {_FORMAT}; restore the file")
    data, origin = identity.get("data"), identity.setdefault("init_from", None)
    if not isinstance(data, dict) or not all(isinstance(value, str | None) for value in data.values()):
        raise DataError(f"{path}: expected fingerprints of the data under `data`; restore the file")
    kinds = get_type_hints(Origin)
    is_origin = isinstance(origin, dict) and {key: type(value) for key, value in origin.items()} == kinds
    if origin is not None and not is_origin:
        raise DataError(f"{path}: expected under `init_from` null, or {', '.join(kinds)}; restore the file")
    return {"recipe": None, **identity}


def differences(
    old: Recipe, data: Mapping[str, str | None], recipe: Recipe, fingerprints: Mapping[str, str | None]
) -> list[str]:
    """Return the differences of recipe and data fingerprints from those of the run that are not allowed."""
    changes = [
        f"{key} was {before!r} and is now {after!r}"
        for key, before, after in changed_keys(old, recipe)
        if not key.startswith(_MAY_CHANGE)
    ]
    for split, fingerprint in fingerprints.items():
        if data.get(split) != fingerprint:
            changes.append(f"the {split} data were {_short(data.get(split))} and are now {_short(fingerprint)}")
    return changes


def _short(fingerprint: str | None) -> str:
    return fingerprint[:12] if fingerprint else "absent"
