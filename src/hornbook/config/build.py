"""Build a validated ``Recipe`` from recipe files and the command line, reporting all mistakes at once.

    [training]                       {("training", "steps"): Leaf(500, "my.toml:2")}          <- the file
    steps = 500                 +    {("training", "epochs"): Leaf("2", "command line", ...)} <- --training.epochs 2
                                =    {("training", "epochs"): Leaf("2", "command line, in place of training.steps ...")}

    -> Resolved(recipe=Recipe(...), sources={"training.epochs": "command line, ...", "training.seed": "default", ...})

Precedence: defaults < the recipe that the file starts from < the file < command line. Leaves are validated after
merging: the tag of each section selects its dataclass, and each leaf is converted. An invalid value is replaced by its
default, so that checks of several fields still run for the others; checks that involve an invalid field are skipped.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hornbook.config.options import (
    TAGS,
    Mistake,
    Problem,
    Spec,
    UnknownPart,
    absolute,
    choices,
    convert,
    describe,
    kind_of,
    parse_text,
    show,
)
from hornbook.config.parallel import rounds_of
from hornbook.config.recipe import SCRIPTS, SECTIONS, Key, Recipe, dotted, entries_of, flatten, specs
from hornbook.config.recipe_files import (
    COMMAND_LINE,
    Leaf,
    Tree,
    find_recipe,
    merge,
    read_leaves,
    run_of,
    split_overrides,
)
from hornbook.config.suggest import did_you_mean, why_unknown
from hornbook.errors import RecipeError, UserError
from hornbook.wording import counted

MOST_KEYS = 500
"""A recipe with more keys is rejected as a whole."""


@dataclass(frozen=True, kw_only=True)
class Draft:
    """The values of a recipe file and the command line, not yet validated."""

    file: Tree
    overrides: Tree
    path: Path
    notes: tuple[str, ...] = ()
    """Notes to the user about replaced values, one line each."""

    @property
    def name(self) -> str:
        """The name of the recipe."""
        return str((self.overrides.get(("", "name")) or self.file["", "name"]).value)

    @property
    def output(self) -> Path:
        """The default folder of the run: that of the recipe if it is a run's, otherwise ``runs/<name>``."""
        return run_of(self.path) or Path("runs") / self.name


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A validated recipe, the source of each value by dotted key, and the path of the recipe."""

    recipe: Recipe
    sources: dict[str, str]
    path: Path
    output: Path
    """The default folder of the run."""
    notes: tuple[str, ...] = ()
    """Notes to the user about replaced values, one line each."""


@dataclass(frozen=True, kw_only=True)
class _Report:
    """The mistakes found so far, and their keys.

    With ``keeps_unknown``, for stored recipes, an unregistered part other than the model becomes an ``UnknownPart``.
    """

    keeps_unknown: bool = False
    problems: list[str] = field(default_factory=list)
    failed: set[Key] = field(default_factory=set)

    def add(self, key: Key, leaf: Leaf, message: str, *, with_value: bool = True) -> None:
        """Add a line with the key, the given value, its source and the message."""
        name = dotted(key) if re.fullmatch(r"[\w.-]{1,60}", dotted(key)) else show(dotted(key))
        is_shown = with_value and not (leaf.is_text and leaf.value is None)
        written = f" = {show(leaf.value, quote=not leaf.is_text or leaf.value == '')}" if is_shown else ""
        self.problems.append(f"{name}{written} ({leaf.source}): {message}")
        self.failed.add(key)


def load_recipe(reference: str, overrides: Sequence[str] | Tree = (), *, require_data: bool = True) -> Resolved:
    """Load a recipe by name or path and apply options of the command line.

    Args:
        reference: the name of a bundled recipe, a recipe file, or the folder of a run.
        overrides: words such as ``["--optimizer.learning-rate", "3e-4", "--data.synthetic"]``, or the result of
            ``split_overrides`` for them.
        require_data: whether to reject a recipe with neither ``data.train`` nor ``data.synthetic``, such as the
            bundled ones.

    Raises:
        RecipeError: the file cannot be read, or lists all mistakes of file and command line.
    """
    return check(read_draft(reference, overrides), require_data=require_data)


def read_draft(reference: str, overrides: Sequence[str] | Tree = ()) -> Draft:
    """Return the draft that ``load_recipe`` validates; raise RecipeError if the file cannot be read."""
    tree, rest = (overrides, []) if isinstance(overrides, dict) else split_overrides(overrides)
    if rest:
        raise RecipeError([f"{show(rest[0])} (command line): expected a recipe option, section.key, and its value"])
    path = find_recipe(reference)
    file = read_leaves(path, str(path) if run_of(path) else reference)
    file_name = re.sub(r"[^A-Za-z0-9_.-]+", "-", path.stem).lstrip("_.-")[:100] or "recipe"
    file.setdefault(("", "name"), Leaf(value=file_name, source="name of the file"))
    return Draft(file=file, overrides=tree, path=path)


def check(draft: Draft, *, require_data: bool = True) -> Resolved:
    """Return the validated recipe of a draft; arguments and errors as for ``load_recipe``."""
    draft = _fit_micro_batch(draft)
    resolved = resolve(merge(draft.file, draft.overrides), draft.path, require_data=require_data)
    return replace(resolved, notes=(*draft.notes, *resolved.notes))


def resolve(tree: Tree, path: Path, *, require_data: bool = True) -> Resolved:
    """Validate a merged tree and return its recipe; ``path`` and ``require_data`` as in `Resolved` and `load_recipe`.

    Raises:
        RecipeError: lists all mistakes.
    """
    recipe, sources, problems = _build(tree)
    is_known = recipe.data.train or recipe.data.synthetic or any(problem.startswith("data.") for problem in problems)
    if require_data and not is_known:
        message = "no training data; set `data.train=PATH`, or use `data.synthetic`"
        problems.append(_conflict(Problem(("data.train",), message), recipe, sources))
    if problems:
        raise RecipeError(problems)
    output = run_of(path) or Path("runs") / recipe.name
    return Resolved(recipe=recipe, sources=sources, path=path, output=output, notes=tuple(_resets(tree, recipe)))


def _resets(tree: Tree, recipe: Recipe) -> Iterator[str]:
    """Yield a note for each section that another ``name`` set to its defaults, with all values that changed."""
    for section, tag in TAGS.items():
        leaf = tree.get((section, tag))
        before = (
            choices(section).get(str(leaf.dropped[section, tag].value))
            if leaf and (section, tag) in leaf.dropped
            else None
        )
        if leaf is None or before is None:
            continue
        now, old = getattr(recipe, section), {name: spec.default for name, spec in describe(before).items()}
        for (_, name), dropped in leaf.dropped.items():
            with suppress(Mistake):  # it does not count any more
                old[name] = convert_leaf(dropped, describe(before)[name])
        changed = [
            f"{name} {show(getattr(now, name))} (was {show(value)})"
            for name, value in old.items()
            if name != tag and (section, name) not in tree and getattr(now, name, value) != value
        ]
        if changed:
            chosen = f"{section}.{tag} = {show(leaf.value, quote=False)} ({leaf.source.partition(',')[0]})"
            yield f"{chosen} sets [{section}] to its own defaults: {', '.join(changed)}; set what should stay"


def _fit_micro_batch(draft: Draft) -> Draft:
    """Reduce the recipe's micro-batch size if it exceeds the global batch size of the command line."""
    batch, micro = ("training", "global_batch_size"), ("training", "micro_batch_size")
    if batch not in draft.overrides or micro in draft.overrides:
        return draft
    options = describe(SECTIONS["training"])
    before = draft.file.get(micro, Leaf(value=options[micro[1]].default, source="default"))
    try:
        largest, size = (
            convert_leaf(leaf, options[key]) for leaf, key in ((draft.overrides[batch], batch[1]), (before, micro[1]))
        )
    except Mistake:  # reported with all others
        return draft
    if not (isinstance(largest, int) and isinstance(size, int) and size > largest):
        return draft
    note = f"training.micro_batch_size is {largest}, the global batch size, instead of {size} ({before.source})"
    lowered = Leaf(value=largest, source=f"training.global_batch_size, instead of {size} ({before.source})")
    return replace(draft, file={**draft.file, micro: lowered}, notes=(*draft.notes, note))


def fit_ranks(resolved: Resolved, num_ranks: int) -> Resolved:
    """Reduce the micro-batch size if the global batch does not divide among the ranks, unless the command line sets it.

    The training is the same. Without a size that divides, or in a pipeline, nothing is changed.
    """
    training, key = resolved.recipe.training, "training.micro_batch_size"
    try:
        sizes = resolved.recipe.parallel.sizes(num_ranks)
    except UserError:  # reported with the ranks
        return resolved
    share, left = divmod(training.global_batch_size, sizes.replicate * sizes.shard)
    size = training.micro_batch_size
    is_set = resolved.sources[key].startswith(COMMAND_LINE)
    if left or not share % size or is_set or sizes.pipeline > 1:
        return resolved
    fitting = next(smaller for smaller in range(min(size, share), 0, -1) if share % smaller == 0)
    note = f"{key} is {fitting} on {num_ranks} ranks, instead of {size} ({resolved.sources[key]})"
    recipe = replace(resolved.recipe, training=replace(training, micro_batch_size=fitting))
    return replace(resolved, recipe=recipe, notes=(*resolved.notes, note))


def refuse_misfit(recipe: Recipe, num_ranks: int) -> None:
    """Check the number of ranks and of pipeline micro-batches against a recipe, before any rank is connected.

    Raises:
        UserError: the sizes in ``[parallel]`` do not multiply to the number of ranks, the global batch does not divide
            among them, or it has too few micro-batches for the stages of a pipeline.
    """
    training, sizes = recipe.training, recipe.parallel.sizes(num_ranks)
    num_shares = sizes.replicate * sizes.shard
    refuse_uneven(training.global_batch_size, training.micro_batch_size, num_shares)
    if sizes.pipeline > 1:
        num_batches = training.global_batch_size // (training.micro_batch_size * num_shares)
        rounds_of(num_batches, sizes.pipeline, recipe.parallel.pipeline_schedule)


def refuse_uneven(global_batch_size: int, micro_batch_size: int, world_size: int) -> None:
    """Raise UserError if a global batch does not divide into whole micro-batches for every rank.

    The message suggests the largest smaller micro-batch that divides, since training is the same, or a global batch.
    """
    if global_batch_size >= 1 and global_batch_size % (micro_batch_size * world_size) == 0:
        return
    sizes = range(min(micro_batch_size, global_batch_size), 0, -1)
    if fitting := next((size for size in sizes if global_batch_size % (size * world_size) == 0), None):
        mend = f"set training.micro_batch_size to {fitting}, which does not change the training"
    else:
        share = global_batch_size // world_size
        multiples = sorted({max(share, 1) * world_size, (share + 1) * world_size})
        mend = f"take a multiple of {world_size}, such as {' or '.join(map(str, multiples))}"
    raise UserError(
        f"global_batch_size {global_batch_size} does not divide into micro-batches of {micro_batch_size} on "
        f"{counted(world_size, 'rank')}: {mend}"
    )


def recipe_from_dict(document: object, label: str = "recipe") -> Recipe:
    """Return the validated recipe of a document of ``recipe_to_dict``; missing keys get their defaults.

    An objective, optimizer or schedule that is not registered becomes an ``UnknownPart``, since only training needs it.

    Raises:
        RecipeError: lists all mistakes, each with ``label``.
    """
    if not isinstance(document, Mapping):
        raise RecipeError([f"{label}: expected a table of sections, got {kind_of(document)}"])
    leaves = {key: Leaf(value=value, source=label) for key, value in entries_of(document) if key != ("", SCRIPTS)}
    recipe, _, problems = _build(leaves, keeps_unknown=True)
    if problems:
        raise RecipeError(problems)
    return recipe


def _build(tree: Tree, *, keeps_unknown: bool = False) -> tuple[Recipe, dict[str, str], list[str]]:
    """Return the recipe of the merged tree, the source of each value, and all mistakes, one line each."""
    if len(tree) > MOST_KEYS:
        source = next(iter(tree.values())).source
        raise RecipeError([f"{source}: more than {MOST_KEYS} keys, so it is probably not a recipe"])
    report = _Report(keeps_unknown=keeps_unknown)
    for (section, key), leaf in tree.items():
        if section not in SECTIONS and (section or key not in describe(Recipe)):
            _report_stray((section, key), leaf, report)
    parts: dict[str, Any] = {section: _build_section(section, tree, report) for section in SECTIONS}
    recipe = Recipe(**parts, **_convert_all("", describe(Recipe), tree, report))
    sources = dict.fromkeys(flatten(recipe), "default") | {dotted(key): leaf.source for key, leaf in tree.items()}
    failed = {dotted(key) for key in report.failed}
    conflicts = [problem for problem in recipe.problems() if failed.isdisjoint(problem.keys)]
    return recipe, sources, report.problems + [_conflict(problem, recipe, sources) for problem in conflicts]


def _conflict(problem: Problem, recipe: Recipe, sources: dict[str, str]) -> str:
    """Return a problem as one line, with the values and their sources."""
    flat = flatten(recipe)
    values = (f"{key} = {show(flat[key])} ({sources[key]})" for key in problem.keys)
    return f"{', '.join(values)}: {problem.message}"


def _build_section(section: str, tree: Tree, report: _Report) -> object:
    """Return the dataclass of a section with the valid values."""
    tag = (section, TAGS.get(section, ""))
    leaf, known = tree.get(tag) if section in TAGS else None, choices(section) if section in TAGS else {}
    if leaf is None or (isinstance(leaf.value, str) and leaf.value in known):
        chosen = SECTIONS[section] if leaf is None else known[str(leaf.value)]
        return chosen(**_convert_all(section, describe(chosen), tree, report))
    if report.keeps_unknown and section != "model" and isinstance(leaf.value, str):
        given = {key[1]: own.value for key, own in tree.items() if key[0] == section}
        report.failed.update({tag, *((section, name) for name in given)})  # checks of these keys are skipped
        return UnknownPart(name=leaf.value, options={key: value for key, value in given.items() if key != tag[1]})
    suggestion = did_you_mean(leaf.value, known) if isinstance(leaf.value, str) else ""
    listed = ", ".join(f'"{name}"' for name in known)
    report.add(tag, leaf, f"no such choice, expected one of {listed}{suggestion}")
    options = {name: owners[0][1] for name, owners in specs(section).items()}  # of all choices
    _convert_all(section, options, {key: leaf for key, leaf in tree.items() if key[1] in options}, report)
    report.failed.update((section, name) for name in options)
    return SECTIONS[section]()


def _convert_all(section: str, options: dict[str, Spec], tree: Tree, report: _Report) -> dict[str, Any]:
    """Return the converted leaves of a section; report mistakes and unknown keys."""
    values = {}
    for key, leaf in tree.items():
        if key[0] != section or key in report.failed:
            continue
        if key[1] not in options:
            tag = tree.get((section, TAGS.get(section, "")))
            report.add(key, leaf, why_unknown(key, options, tag.value if tag else None), with_value=False)
            continue
        try:
            values[key[1]] = convert_leaf(leaf, options[key[1]])
        except Mistake as mistake:
            near = did_you_mean(str(leaf.value), words) if (words := options[key[1]].choices) else ""
            report.add(key, leaf, f"{mistake}{near}")
    return values


def convert_leaf(leaf: Leaf, spec: Spec) -> object:
    """Return the value of a leaf, converted and validated; raise Mistake if it is invalid."""
    value = convert(parse_text(leaf.value, spec) if leaf.is_text else leaf.value, spec)
    if leaf.folder is None or not spec.path:
        return value
    if isinstance(value, tuple):
        return tuple(absolute(entry, leaf.folder, named=spec.named) for entry in value)
    return absolute(value, leaf.folder) if isinstance(value, str) else value


def _report_stray(key: Key, leaf: Leaf, report: _Report) -> None:
    """Report a leaf outside of all sections."""
    if key[1] in SECTIONS and not key[0]:
        report.add(key, leaf, f"expected a table, [{key[1]}], got {kind_of(leaf.value)}")
    elif isinstance(leaf.value, dict):
        report.add(key, leaf, f"unknown section{did_you_mean(key[1], SECTIONS)}", with_value=False)
    else:
        report.add(key, leaf, why_unknown(key, {}), with_value=False)
