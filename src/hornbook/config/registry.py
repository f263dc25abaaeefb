"""Which dataclass describes a section, by its tag: the table through which one's own model or objective comes in.

    [schedule]                       choices("schedule")["cosine"] -> CosineConfig
    name = "cosine"                  so that ``final_fraction`` is an option here
    final_fraction = 0.1             and an error under ``name = "constant"``

A third party adds a choice with one line, ``register("model", "mine", MyConfig)``, before the recipe is loaded. The
price is a table in module state; it only grows, and a tag never changes its meaning. A class that is defined again, by
a notebook's cell or a module that is reloaded, takes its own place.
"""

import dataclasses
from functools import partial
from typing import Any

from hornbook.config.options import describe
from hornbook.errors import UserError

TAGS = {"model": "family", "objective": "name", "optimizer": "name", "schedule": "name"}
"""The sections that have a choice of dataclass, and the key that chooses."""

REQUIRED = {"model": ("vocab_size", "max_positions"), "optimizer": ("learning_rate", "clip_norm")}
"""Fields that the rest of a recipe leans on, whatever the choice."""

_CHOICES: dict[str, dict[str, type]] = {section: {} for section in TAGS}


def register(section: str, tag: str, dataclass: type) -> None:
    """Make ``dataclass`` the description of ``section`` when its tag is ``tag``.

    Args:
        section: ``model``, ``objective``, ``optimizer`` or ``schedule``.
        tag: the value of the section's ``family`` or ``name`` in a recipe.
        dataclass: frozen; its tag field's default is ``tag``; the fields of ``REQUIRED`` are there. It
            may have ``problems() -> list[Problem]`` for checks that look at several fields.

    Raises:
        UserError: unknown section, a tag that is taken, or a class that cannot serve.
    """
    if section not in TAGS:
        raise UserError(f'section "{section}" has no choices; expected one of {", ".join(TAGS)}')
    if definition_of(_CHOICES[section].get(tag, dataclass)) != definition_of(dataclass):
        raise UserError(
            f'{section}.{TAGS[section]} = "{tag}" is taken by {_CHOICES[section][tag].__name__}; choose another'
        )
    _check(section, tag, dataclass)
    _CHOICES[section][tag] = dataclass


def choices(section: str) -> dict[str, type]:
    """Return the dataclasses of a section by tag, in order of registration."""
    return dict(_CHOICES[section])


def definition_of(part: Any) -> tuple[str, str]:
    """Return module and name of a class or function: what stays the same when its definition is run again."""
    while isinstance(part, partial):
        part = part.func
    return part.__module__, getattr(part, "__qualname__", type(part).__qualname__)


def _check(section: str, tag: str, dataclass: type) -> None:
    if not dataclasses.is_dataclass(dataclass) or not dataclass.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise UserError(f"{dataclass.__name__}: expected a frozen dataclass, @dataclass(frozen=True, kw_only=True)")
    fields = describe(dataclass)
    tag_field = fields.get(TAGS[section])
    if tag_field is None or tag_field.default != tag:
        raise UserError(f'{dataclass.__name__}: expected a field {TAGS[section]}: str = option("{tag}", help="...")')
    missing = [name for name in REQUIRED.get(section, ()) if name not in fields]
    if missing:
        raise UserError(f"{dataclass.__name__}: expected the fields {', '.join(missing)}, which every {section} has")
