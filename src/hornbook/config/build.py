"""From the merged tree to a recipe, with every mistake on the way.

    {("model", "num_layers"): Leaf("x"), ("schedule", "final_fraction"): Leaf(0.1), ...}
        -> Built(recipe, sources, problems=[
               'model.num_layers = x (command line): expected an integer, got a string',
               'schedule.final_fraction (my.toml:9): no option of schedule.name = "constant", only of ...'])

Section by section: the tag picks the dataclass, each leaf is converted, and what fails stays at its default, so that
cross-checks can still run over the fields that are sound. The price: a cross-check that touches a failed field keeps
silent until that field is mended.
"""

import re
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from hornbook.config.options import Problem, Spec, describe
from hornbook.config.recipe import Recipe
from hornbook.config.registry import TAGS, choices
from hornbook.config.suggest import did_you_mean, nearest, usual
from hornbook.config.tree import Key, Leaf, Tree, dotted
from hornbook.config.values import Mistake, absolute, absolute_entry, convert, kind_of, parse_text, show
from hornbook.errors import RecipeError

DEFAULT = "default"
MOST_KEYS = 500
"""Above this nobody is helped by a suggestion for each."""

SECTIONS: dict[str, type] = {
    part.name: type(part.default_factory()) for part in fields(Recipe) if part.default_factory is not MISSING
}
"""The sections of a recipe, and their dataclass where no tag says otherwise."""


@dataclass(frozen=True, kw_only=True)
class Built:
    """A recipe and the source of each of its values; sound only where ``problems`` is empty."""

    recipe: Recipe
    sources: dict[str, str]
    problems: list[str]


@dataclass(frozen=True, kw_only=True)
class _Report:
    """What went wrong so far, and at which keys."""

    problems: list[str] = field(default_factory=list)
    failed: set[Key] = field(default_factory=set)

    def add(self, key: Key, leaf: Leaf, message: str, *, value: bool = True) -> None:
        """Add a line: the key, what was written there (if it was the value that is wrong), where, and the mistake."""
        has_value = value and not (leaf.is_text and leaf.value is None)
        written = f" = {show(leaf.value, quote=not leaf.is_text)}" if has_value else ""
        self.problems.append(f"{_printable(key)}{written} ({leaf.source}): {message}")
        self.failed.add(key)


def build(tree: Tree) -> Built:
    """Make a recipe of a merged tree, collecting all mistakes.

    Raises:
        RecipeError: the tree is so large that it is no recipe.
    """
    if len(tree) > MOST_KEYS:
        source = next(iter(tree.values())).source
        raise RecipeError([f"{source}: more than {MOST_KEYS} keys, where a recipe has some sixty; is it a recipe?"])
    report = _Report()
    for (section, key), leaf in tree.items():
        if section not in SECTIONS and (section or key not in describe(Recipe)):
            _report_stray((section, key), leaf, report)
    parts: dict[str, Any] = {section: _build_section(section, tree, report) for section in SECTIONS}
    parts |= _convert_all("", describe(Recipe), tree, report)
    recipe = Recipe(**parts)
    sources = dict.fromkeys(flatten(recipe), DEFAULT) | {dotted(key): leaf.source for key, leaf in tree.items()}
    for problem in conflicts(recipe):
        if not any(dotted(key) in problem.keys for key in report.failed):
            report.problems.append(describe_conflict(problem, recipe, sources))
    return Built(recipe=recipe, sources=sources, problems=report.problems)


def specs(section: str) -> dict[str, list[tuple[str, Spec]]]:
    """List every option of a section: by name, the choices (tags; "" without choice) that have it and how.

    ``specs("schedule")["final_fraction"]`` is ``[("linear", Spec(...)), ("cosine", Spec(...))]``.
    """
    classes = choices(section) if section in TAGS else {"": SECTIONS[section]}
    found: dict[str, list[tuple[str, Spec]]] = {}
    for tag, section_class in classes.items():
        for name, spec in describe(section_class).items():
            found.setdefault(name, []).append((tag, spec))
    return found


def flatten(recipe: Recipe) -> dict[str, object]:
    """List every value of a recipe by dotted key."""
    flat: dict[str, object] = {name: getattr(recipe, name) for name in describe(Recipe)}
    for section in SECTIONS:
        values = getattr(recipe, section)
        flat |= {f"{section}.{name}": getattr(values, name) for name in describe(type(values))}
    return flat


def conflicts(recipe: Recipe) -> Iterator[Problem]:
    """Yield what sections, and then the whole, say about values that do not fit together; keys are dotted."""
    for section in SECTIONS:
        check = getattr(getattr(recipe, section), "problems", None)
        for problem in check() if check else ():
            yield Problem(tuple(f"{section}.{key}" for key in problem.keys), problem.message)
    yield from recipe.problems()


def describe_conflict(problem: Problem, recipe: Recipe, sources: dict[str, str]) -> str:
    """Write a conflict on one line, with the values and where each comes from."""
    flat = flatten(recipe)
    values = (f"{key} = {show(flat[key])} ({sources[key]})" for key in problem.keys)
    return f"{', '.join(values)}: {problem.message}"


def _build_section(section: str, tree: Tree, report: _Report) -> object:
    """Make one section's dataclass of the leaves that are sound."""
    section_class = _choose(section, tree, report)
    if section_class is None:  # a wrong tag: the other keys may belong to any choice, and none can be cross-checked
        options = {name: found[0][1] for name, found in specs(section).items()}
        known = {key: leaf for key, leaf in tree.items() if key[0] == section and key[1] in options}
        _convert_all(section, options, known, report)
        report.failed.update((section, name) for name in options)
        return SECTIONS[section]()
    return section_class(**_convert_all(section, describe(section_class), tree, report))


def _choose(section: str, tree: Tree, report: _Report) -> type | None:
    """Find the dataclass that the section's tag names; None, and a problem, when there is no such choice."""
    if section not in TAGS or (section, TAGS[section]) not in tree:
        return SECTIONS[section]
    key = (section, TAGS[section])
    leaf, known = tree[key], choices(section)
    if isinstance(leaf.value, str) and leaf.value in known:
        return known[leaf.value]
    listed = ", ".join(f'"{tag}"' for tag in known)
    suggestion = did_you_mean(leaf.value, known) if isinstance(leaf.value, str) else ""
    report.add(key, leaf, f"no such choice, expected one of {listed}{suggestion}")
    return None


def _convert_all(section: str, options: dict[str, Spec], tree: Tree, report: _Report) -> dict[str, object]:
    """Convert the leaves of a section; mistakes and unknown keys go to the report."""
    values = {}
    for key, leaf in tree.items():
        if key[0] != section or key in report.failed:
            continue
        if key[1] not in options:
            report.add(key, leaf, _unknown(key, options, tree), value=False)
            continue
        try:
            values[key[1]] = _convert(leaf, options[key[1]])
        except Mistake as mistake:
            report.add(key, leaf, str(mistake))
    return values


def _convert(leaf: Leaf, spec: Spec) -> object:
    value = convert(parse_text(leaf.value, spec) if leaf.is_text else leaf.value, spec)
    resolve = absolute_entry if spec.named else absolute
    if spec.path and isinstance(value, tuple):
        return tuple(resolve(entry, leaf.folder) for entry in value)
    return absolute(value, leaf.folder) if spec.path and isinstance(value, str) else value


def _report_stray(key: Key, leaf: Leaf, report: _Report) -> None:
    """Report a leaf that belongs to no section."""
    if key[1] in SECTIONS and not key[0]:
        report.add(key, leaf, f"expected a table, [{key[1]}], got {kind_of(leaf.value)}")
        return
    if isinstance(leaf.value, dict):
        message = f"unknown section{did_you_mean(key[1], SECTIONS)}"
    else:
        message = f"unknown key{_suggestion(key, ())}"
    report.add(key, leaf, message, value=False)


def _unknown(key: Key, options: dict[str, Spec], tree: Tree) -> str:
    """Say why a section has no such key: it belongs to another choice, or it is misspelt."""
    section, name = key
    tags = [tag for tag, _ in specs(section).get(name, ())]
    if not any(tags):
        return f"unknown key{_suggestion(key, options)}"
    tag_key = (section, TAGS[section])
    chosen = tree[tag_key].value if tag_key in tree else describe(SECTIONS[section])[TAGS[section]].default
    others = " or ".join(f'"{tag}"' for tag in tags)
    return f'no option of {dotted(tag_key)} = "{chosen}", only of {others}; remove it or change {dotted(tag_key)}'


def _suggestion(key: Key, options: "dict[str, Spec] | tuple[()]") -> str:
    """Suggest what others call so, else the nearest key of the section, else the same word or the nearest of all."""
    everywhere = [*describe(Recipe), *(f"{section}.{name}" for section in SECTIONS for name in specs(section))]
    if meant := usual(dotted(key), everywhere):
        return f'; did you mean "{meant}"?'
    if near := nearest(key[1], options):
        return f'; did you mean "{dotted((key[0], near))}"?'
    same = [known for known in everywhere if known.endswith(f".{key[1]}")]
    return f'; did you mean "{same[0]}"?' if same else did_you_mean(dotted(key), everywhere)


def _printable(key: Key) -> str:
    name = dotted(key)
    return name if re.fullmatch(r"[\w.-]{1,60}", name) else show(name)
