"""Profiles and their file: ``profile.json`` in the profile's folder, next to the page and the traces."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hornbook.errors import DataError, UserError
from hornbook.storage.files import replace_file
from hornbook.storage.json_files import dump_json, read_json

FILE = "profile.json"
_FORMAT = 2


class ModuleTime(NamedTuple):
    """Seconds per step of a module without its submodules."""

    name: str
    forward: float
    backward: float
    recomputed: float
    """Seconds of forward passes recomputed in the backward pass."""
    waiting: float
    """Seconds of waiting for other ranks, in both passes."""
    calls: float

    @property
    def seconds(self) -> float:
        """The sum of all times."""
        return self.forward + self.backward + self.recomputed + self.waiting


class OperatorTime(NamedTuple):
    """Seconds per step of an operator without those that it calls; on a GPU, of a kernel."""

    name: str
    seconds: float
    calls: float


class Held(NamedTuple):
    """Tensors in memory at the peak."""

    kind: str
    """weights, gathered weights, optimizer state, gradients, activations, or temporary."""
    where: str
    """Module or operator that created them."""
    bytes: int


@dataclass(frozen=True, kw_only=True)
class RankProfile:
    """The step of one rank; times are medians over unprofiled steps."""

    data: float
    """Seconds of waiting for the batch."""
    compute: float
    """Seconds of the forward and backward passes, and of reducing gradients, including waiting."""
    update: float
    """Seconds of clipping and the update."""
    waiting: float
    """Seconds of waiting for other ranks, in all phases."""
    idle: float | None
    """Share of ``compute`` for which the rank's pipeline stages were idle; None without a pipeline."""
    peak_bytes: int
    """Peak bytes of tensors."""
    process_bytes: int | None
    """The process's memory afterwards: resident memory, or the allocator's peak on a GPU."""
    memory: tuple[tuple[float, int], ...]
    """(Share of the step from 0 to 1, bytes of tensors), in order."""
    held: tuple[Held, ...]
    """Tensors in memory at the peak, largest first."""
    trace: str
    """Name of the Chrome trace in the profile's folder."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The measurements of ``hornbook profile``."""

    facts: Mapping[str, str]
    """Facts for the header: model, device, dtype, batch, versions."""
    step_seconds: float
    """Median over unprofiled steps, of the slowest rank."""
    tokens_per_second: float
    tflops: float | None
    mfu: float | None
    """None, like ``tflops``, for a custom model without a formula."""
    profiled_seconds: float
    """Seconds of a step under the profiler, to which the times by module and operator refer."""
    modules: tuple[ModuleTime, ...]
    """Sums over the ranks."""
    operators: tuple[OperatorTime, ...]
    """Sums over the ranks."""
    ranks: tuple[RankProfile, ...]

    @property
    def waiting(self) -> float:
        """Mean share of the step for which ranks wait for each other."""
        return sum(rank.waiting for rank in self.ranks) / len(self.ranks) / self.step_seconds

    @property
    def data(self) -> float:
        """Mean share of the step for which ranks wait for data."""
        return sum(rank.data for rank in self.ranks) / len(self.ranks) / self.step_seconds

    @property
    def idle(self) -> float | None:
        """Mean share of ``compute`` for which pipeline stages are idle; None without a pipeline."""
        shares = [rank.idle for rank in self.ranks if rank.idle is not None]
        return sum(shares) / len(shares) if shares else None

    @property
    def peak_bytes(self) -> int:
        """Peak bytes of tensors on the rank with the most."""
        return max(rank.peak_bytes for rank in self.ranks)


def write_profile(folder: Path, profile: Profile) -> None:
    """Write ``profile.json``, atomically. Raises StorageError if it cannot be written."""
    replace_file(folder / FILE, dump_json({"format": _FORMAT, **asdict(profile)}))


def read_profile(path: Path) -> Profile:
    """Read a profile from its folder or its ``profile.json``.

    Raises:
        UserError: there is none.
        DataError: it is damaged, or has another version.
    """
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"{path}: no profile; expected a folder with {FILE}, which `hornbook profile RECIPE` writes")
    found = read_json(file, "profile")
    try:
        if found.pop("format") != _FORMAT:
            raise ValueError("it has another version")
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
