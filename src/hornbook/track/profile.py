"""What a profile says, and its file: ``profile.json`` in the profile's folder, beside the page and the traces."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hornbook.errors import DataError, UserError
from hornbook.storage.files import replace_file
from hornbook.storage.json_files import dump_json, read_json

FILE = "profile.json"
_FORMAT = 1


class Span(NamedTuple):
    """What a rank did in a part of the profiled step."""

    kind: str
    """data, forward, backward, update, or waiting (for other ranks)."""
    start: float
    """Seconds since the step began on this rank."""
    end: float


class ModuleTime(NamedTuple):
    """Seconds of a module in a step, its submodules apart."""

    name: str
    forward: float
    backward: float
    recomputed: float
    """Of forward passes that are made again in the backward pass."""
    waiting: float
    """For other ranks, in both passes."""
    calls: float

    @property
    def seconds(self) -> float:
        """All of them."""
        return self.forward + self.backward + self.recomputed + self.waiting


class OperatorTime(NamedTuple):
    """Seconds of an operator in a step, without those that it calls; of a kernel on a GPU."""

    name: str
    seconds: float
    calls: float


class Held(NamedTuple):
    """Tensors that were in memory at the peak."""

    kind: str
    """weights, gathered weights, optimizer state, gradients, activations, or temporary."""
    where: str
    """Module that made them, or the operator."""
    bytes: int


@dataclass(frozen=True, kw_only=True)
class RankProfile:
    """What one rank did in a step; times are medians over unprofiled steps."""

    data: float
    """Seconds for which it waited for its batch."""
    compute: float
    """Seconds of the forward and backward passes, and of the sums of gradients, waiting included."""
    update: float
    """Seconds of clipping and the update."""
    waiting: float
    """Seconds for which it waited for other ranks, in all phases."""
    idle: float | None
    """Share of ``compute`` for which the rank's pipeline stages had nothing to do; None without a pipeline."""
    peak_bytes: int
    """Most bytes of tensors at once."""
    process_bytes: int | None
    """What the process holds afterwards: resident memory, or tensors on a GPU with the allocator's peak."""
    memory: tuple[tuple[float, int], ...]
    """(Share of the step from 0 to 1, bytes of tensors), in time."""
    held: tuple[Held, ...]
    """What was in memory at the peak, the largest first."""
    spans: tuple[Span, ...]
    """Of one profiled step."""
    trace: str
    """Name of the Chrome trace in the profile's folder."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What ``hornbook profile`` measures."""

    facts: Mapping[str, str]
    """What a reader wants to know first: model, device, dtype, batch, versions."""
    step_seconds: float
    """Median of unprofiled steps, of the slowest rank."""
    tokens_per_second: float
    tflops: float | None
    mfu: float | None
    """None, as ``tflops``, for a model of one's own without a formula."""
    profiled_seconds: float
    """Of a step under the profiler, which the times by module and operator are of."""
    modules: tuple[ModuleTime, ...]
    """Sums over the ranks."""
    operators: tuple[OperatorTime, ...]
    """Sums over the ranks."""
    ranks: tuple[RankProfile, ...]

    @property
    def waiting(self) -> float:
        """Share of the step for which ranks wait for each other, their mean."""
        return sum(rank.waiting for rank in self.ranks) / len(self.ranks) / self.step_seconds

    @property
    def data(self) -> float:
        """Share of the step for which ranks wait for data, their mean."""
        return sum(rank.data for rank in self.ranks) / len(self.ranks) / self.step_seconds

    @property
    def idle(self) -> float | None:
        """Share of ``compute`` for which pipeline stages have nothing to do, their mean; None without a pipeline."""
        shares = [rank.idle for rank in self.ranks if rank.idle is not None]
        return sum(shares) / len(shares) if shares else None

    @property
    def peak_bytes(self) -> int:
        """Most bytes of tensors at once, of the rank that has most."""
        return max(rank.peak_bytes for rank in self.ranks)


def write_profile(folder: Path, profile: Profile) -> None:
    """Write ``profile.json``, atomically. Raises StorageError if it cannot be written."""
    replace_file(folder / FILE, dump_json({"format": _FORMAT, **asdict(profile)}))


def read_profile(path: Path) -> Profile:
    """Return a profile by its folder or its ``profile.json``.

    Raises:
        UserError: there is none.
        DataError: it is damaged, or of another version.
    """
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"{path}: no profile; expected a folder with {FILE}, which `hornbook profile RECIPE` writes")
    found = read_json(file, "profile")
    try:
        if found.pop("format") != _FORMAT:
            raise ValueError("it is of another version")
        return _profile(found)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{file}: not a profile of this version ({error}); run `hornbook profile` again") from error


def _profile(found: dict[str, Any]) -> Profile:
    ranks = [
        RankProfile(
            **{
                **rank,
                "memory": tuple((float(at), int(size)) for at, size in rank["memory"]),
                "held": tuple(Held(*row) for row in rank["held"]),
                "spans": tuple(Span(*row) for row in rank["spans"]),
            }
        )
        for rank in found["ranks"]
    ]
    return Profile(
        **{
            **found,
            "modules": tuple(ModuleTime(*row) for row in found["modules"]),
            "operators": tuple(OperatorTime(*row) for row in found["operators"]),
            "ranks": tuple(ranks),
        }
    )
