"""Optimizer updates as functions on lists of slots: (parameter, gradient, named state).

::

    slots = [Slot(parameter, gradient, {"exp_avg": m, "exp_avg_sq": v}, role="matrix"), ...]
    adamw(slots, config, learning_rate=1e-3, count=7)        # the seventh update, in place

A function of lists can be called with all parameters at once or block by block, with the state wherever it lives, so
phased execution, sparsity and sharding need no other optimizer. The number of the update is an argument, not a state
that could fall out of step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial, singledispatch

from torch import Tensor

from hornbook.config.optimizers import AdamConfig, AdamWConfig, LambConfig, MomentumConfig, SGDConfig, read_scales
from hornbook.errors import UserError
from hornbook.optim import adam, lamb, sgd
from hornbook.optim.slots import Slot
from hornbook.wording import first_few


@dataclass(frozen=True, kw_only=True)
class Update:
    """An optimizer: the names of its state tensors, and the function ``(slots, learning_rate, count)``."""

    state_names: tuple[str, ...]
    """Of all parameters."""
    apply: Callable[[Sequence[Slot], float, int], None]
    clips: bool = False
    """Whether ``apply`` multiplies gradients by ``Slot.clip``, in the pass that reads them."""
    further_names: Callable[[str, Tensor], tuple[str, ...]] = lambda name, parameter: ()
    """More state tensors of some parameters, by the parameter's name and value, of which only the shape counts."""


UPDATES: dict[type, tuple[Callable[..., None], tuple[str, ...]]] = {
    AdamWConfig: (adam.adamw, AdamWConfig.state_names),
    AdamConfig: (adam.adam, AdamConfig.state_names),
    LambConfig: (lamb.lamb, LambConfig.state_names),
    SGDConfig: (sgd.sgd, SGDConfig.state_names),
    MomentumConfig: (sgd.momentum, MomentumConfig.state_names),
}
"""The function ``(slots, config, *, learning_rate, count)`` of each optimizer, and the names of its state tensors."""


@singledispatch
def build_update(config: object) -> Update:
    """Return the update rule of a recipe's ``[optimizer]`` section (``build_update.register`` adds one).

    Raises:
        UserError: nothing is registered for this dataclass.
    """
    name = type(config).__name__
    raise UserError(f"there is no optimizer for {name}: register a function for it with build_update.register")


def _update(config: object, rule: Callable[..., None], state_names: tuple[str, ...]) -> Update:
    return Update(
        state_names=state_names,
        apply=lambda slots, rate, count: rule(slots, config, learning_rate=rate, count=count),
        clips=state_names == adam.STATE_NAMES,
    )


for _config, (_rule, _names) in UPDATES.items():
    build_update.register(_config, partial(_update, rule=_rule, state_names=_names))


def in_groups(update: Update, config: object, names: Sequence[str]) -> Update:
    """Return ``update`` with the parameter groups of a recipe's ``[optimizer]`` section, given by patterns of names.

    ::

        no_decay = ["*.positions"]                  learning_rate_scale = ["embedding.*=0.1", "blocks.0.*=0.5"]

    A pattern is that of a shell: ``*`` stands for any characters, dots included, ``?`` for one, ``[0-3]`` for one of a
    set.

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
        examples = [*names[:1], *[name for name in names if name.endswith("qkv.bias")][:1], *names[-1:]]
        raise UserError(
            f"{'; '.join(first_few(unmatched))}; the names are such as {', '.join(examples)}: "
            "mend the pattern or remove it"
        )
    if not exempt and not scales:
        return update

    def grouped(slot: Slot) -> Slot:
        scale = next((scale for pattern, scale in scales.items() if fnmatchcase(slot.name, pattern)), 1.0)
        is_exempt = any(fnmatchcase(slot.name, pattern) for pattern in exempt)
        return replace(slot, is_exempt=is_exempt, rate_scale=slot.rate_scale * scale)

    return replace(update, apply=lambda slots, rate, count: update.apply([*map(grouped, slots)], rate, count))
