"""Parameter groups by patterns of names: no weight decay, and a learning rate of their own.

    no_decay = ["*.positions"]                      learning_rate_scale = ["embedding.*=0.1", "blocks.0.*=0.5"]

A pattern is that of a shell: ``*`` stands for any characters, dots included, ``?`` for one, ``[0-3]`` for one of a set.
"""

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from hornbook.config.optimizers import read_scales
from hornbook.errors import UserError
from hornbook.optim.slots import Slot
from hornbook.optim.updates import Update
from hornbook.wording import first_few


def in_groups(update: Update, config: object, names: Sequence[str]) -> Update:
    """Return ``update`` with the groups of a recipe's ``[optimizer]`` section.

    Args:
        update: takes slots; those that it gets have ``is_exempt`` and ``rate_scale``.
        config: may have ``no_decay`` and ``learning_rate_scale``.
        names: of all parameters of the model.

    Raises:
        UserError: a pattern matches no name.
    """
    exempt: Sequence[str] = getattr(config, "no_decay", ())
    scales = read_scales(getattr(config, "learning_rate_scale", ()))
    unmatched = [
        f"optimizer.{option}: {pattern!r} matches no parameter"
        for option, patterns in (("no_decay", exempt), ("learning_rate_scale", scales))
        for pattern in patterns
        if not any(fnmatchcase(name, pattern) for name in names)
    ]
    if unmatched:
        raise UserError(
            f"{'; '.join(first_few(unmatched))}; the names are such as {', '.join(_examples(names))}: "
            "mend the pattern or remove it"
        )
    if not exempt and not scales:
        return update

    def grouped(slot: Slot) -> Slot:
        scale = next((scale for pattern, scale in scales.items() if fnmatchcase(slot.name, pattern)), 1.0)
        return replace(slot, is_exempt=any(fnmatchcase(slot.name, pattern) for pattern in exempt), rate_scale=scale)

    return replace(update, apply=lambda slots, rate, count: update.apply([*map(grouped, slots)], rate, count))


def _examples(names: Sequence[str]) -> list[str]:
    return [*names[:1], *[name for name in names if name.endswith("qkv.bias")][:1], *names[-1:]]
