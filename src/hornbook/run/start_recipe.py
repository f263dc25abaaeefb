"""Replace a recipe's ``[model]`` by the architecture of the weights that a run starts from.

    train my.toml --init-from runs/small
        [model] of runs/small        num_layers = 2, hidden_size = 48, ...   (but not head and num_labels)
        [model] of my.toml           num_layers = 12                         replaced, with a note
                                     residual_dropout = 0.1                  kept: the recipe sets dropout
        --model.num-layers 12                                                an error

A run that has begun has its architecture in its ``run.json``, so resuming does not need the source.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hornbook.config import Resolved, TransformerConfig
from hornbook.config.build import Draft, check, convert_leaf, read_draft
from hornbook.config.options import Mistake, describe, show
from hornbook.config.recipe_files import Leaf, Tree, merge
from hornbook.errors import UserError
from hornbook.exchange.contents import recipe_of, refuse_unknown_parts, stored_recipe
from hornbook.exchange.restore import read_source
from hornbook.run.initial_weights import FREE, InitFrom
from hornbook.run.run_folder import RunFolder, read_identity

_OF_THE_OBJECTIVE = ("head", "num_labels")


def start_recipe(
    reference: str,
    overrides: Sequence[str] | Tree = (),
    *,
    output: Path | None = None,
    init_from: InitFrom | None = None,
    require_data: bool = True,
) -> Resolved:
    """Return the recipe of a start: that of ``load_recipe``, with the architecture of the initial weights.

    Args:
        reference: the name of a bundled recipe, a recipe file, or the folder of a run.
        overrides: see ``load_recipe``.
        output: the run's folder; None for the recipe's own.
        init_from: initial weights of a new run, or those of the run in the folder.
        require_data: whether a recipe without training data is an error.

    Raises:
        RecipeError: see ``load_recipe``.
        UserError: an option of the command line contradicts the architecture.
        CheckpointError: the source is missing or damaged.
    """
    draft = read_draft(reference, overrides)
    if init_from is not None:
        folder = RunFolder(path=output or draft.output)
        draft = adopt(draft, *_model_of(folder, init_from.source))
    return check(draft, require_data=require_data)


def _model_of(folder: RunFolder, source: str) -> tuple[TransformerConfig, Path]:
    """Return the model of the run in the folder if it started from given weights, else the source's."""
    if folder.has_begun and folder.origin is not None:
        document = read_identity(folder.identity)["recipe"]
        refuse_unknown_parts(document, str(folder.path))
        return stored_recipe(document, str(folder.identity)).model, folder.path
    path, contents = read_source(source, only=(), warn=lambda _: None)  # `inspect` warns
    return recipe_of(contents, path).model, path


def adopt(draft: Draft, model: TransformerConfig, source: object) -> Draft:
    """Override the recipe file with the architecture of given weights.

    Args:
        draft: file and command line.
        model: the model of the weights.
        source: path of the weights.

    Raises:
        UserError: the command line contradicts the architecture; the message lists all contradictions.
    """
    theirs: Tree = {
        ("model", key): Leaf(value=getattr(model, key), source=f"initial weights, {source}")
        for key in describe(type(model))
        if key not in _OF_THE_OBJECTIVE and not (key in FREE and ("model", key) in draft.file)
    }
    if said := list(_apart(draft.overrides, theirs, model)):
        told = ", ".join(f"`model.{key}={show(new)}` (there: {show(old)})" for key, new, old in said)
        raise UserError(f"the architecture of {source} differs from {told}: remove these options, or `init_from`")
    unset = {key for key in theirs.keys() & draft.overrides.keys() if str(draft.overrides[key].value).lower() == "none"}
    file = {key: leaf for key, leaf in draft.file.items() if key not in draft.overrides}
    replaced = [f"{key} {show(old)} instead of {show(new)}" for key, new, old in _apart(file, theirs, model)]
    note = f"using the architecture of {source}, not of the recipe: {', '.join(replaced)}"
    return replace(
        draft,
        file=merge(draft.file, theirs),
        overrides={key: leaf for key, leaf in draft.overrides.items() if key not in unset},
        notes=(*draft.notes, note) if replaced else draft.notes,
    )


def _apart(tree: Tree, theirs: Tree, model: TransformerConfig) -> Iterator[tuple[str, object, object]]:
    """Yield the values in a tree that differ from the weights' model: key, value, and the model's value."""
    options = describe(type(model))
    for section_and_key, leaf in tree.items():
        key = section_and_key[1]
        if section_and_key not in theirs or key in FREE:
            continue
        with suppress(Mistake):  # reported with all other mistakes
            value = convert_leaf(leaf, options[key])
            if value is not None and value not in (getattr(model, key), getattr(model, f"effective_{key}", None)):
                yield key, value, getattr(model, key)
