"""The parts of the suite, those that take longest first, so that two at a time end together."""

from pathlib import Path

import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor  # noqa: F401 - here, so that no forked trial has to import them
from bombs import BOMBS
from crash_points import CRASH_POINTS
from damage import DAMAGE
from deaths import DEATHS
from elastic import ELASTIC, WORLD_SIZES
from inputs import INPUTS
from layouts import LAYOUTS_PART
from names import NAMES
from pickles import PICKLES
from power_loss import POWER_LOSS
from rank_deaths import RANKS
from resources import RESOURCES
from resumes import RESUMES
from together import SOAK, TOGETHER
from trials import Choice, Outcome, Part, run_part
from web import WEB

PARTS: tuple[Part, ...] = (
    SOAK,
    LAYOUTS_PART,
    RANKS,
    WORLD_SIZES,
    ELASTIC,
    DEATHS,
    POWER_LOSS,
    DAMAGE,
    RESOURCES,
    INPUTS,
    RESUMES,
    CRASH_POINTS,
    WEB,
    PICKLES,
    BOMBS,
    NAMES,
    TOGETHER,
)


def run_named(name: str, *, results: Path, choice: Choice) -> list[Outcome]:
    """Run the part ``name``; see `run_part`."""
    return run_part(next(part for part in PARTS if part.name == name), results, choice)
