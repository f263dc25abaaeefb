"""The model card of an exported folder, ``README.md``: how to load the model, its data, its recipe and its numbers.

    recipe, checkpoint            -> the model, how its prompts begin, the recipe as TOML
    the stores' manifest.json     -> documents, tokens and sources of the data, as far as the stores are still there
    metrics.jsonl, evaluation.json of the run -> the numbers of this checkpoint, each with its step and its convention

Of paths, only the last part is published. The license is the user's decision: without one, the card has a line to fill.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from hornbook.checkpoint.tensors import Contents
from hornbook.config import EncoderConfig, LabelledConfig, Recipe, recipe_to_toml
from hornbook.config.options import describe, split_entry
from hornbook.config.recipe import SECTIONS
from hornbook.config.recipe_files import IDENTITY
from hornbook.corpora.folders import MANIFEST, Manifest
from hornbook.errors import HornbookError
from hornbook.exchange.contents import has_start_token, recipe_of, tokenizer_of
from hornbook.storage.json_files import read_json
from hornbook.track.evaluations import options_of, text_of
from hornbook.track.run_state import run_of
from hornbook.track.runs import RunFiles, read_run
from hornbook.track.units import number
from hornbook.version import __version__
from hornbook.wording import counted, one_line

MODEL_CARD: Final = "README.md"
_MOST_SOURCES: Final = 20
_KINDS: Final = {"classification": "text-classification", "span": "question-answering"}


@dataclass(frozen=True, kw_only=True)
class Card:
    """What a card needs besides the checkpoint.

    Attributes:
        title: name of the exported folder.
        architecture: transformers' class of the model.
        source: the checkpoint; None if it is not on disk, so that there are no numbers.
        license: identifier for the card's header; None leaves a line to fill.
        warn: called if a file with the run's numbers cannot be read.
    """

    title: str
    architecture: str
    source: Path | None
    license: str | None
    warn: Callable[[str], None]


def model_card(card: Card, contents: Contents) -> str:
    """Return the text of the card, in Markdown with a YAML header."""
    recipe = recipe_of(contents, "the checkpoint")
    is_trained = contents.step > 0
    run = _run(card) if is_trained else None
    parts = [_header(card, recipe), _opening(card, contents, recipe), _loading(card, contents, recipe)]
    if is_trained:
        parts += [_data(recipe), _training(contents, recipe, card), _numbers(contents.step, recipe, run)]
    stated = card.license or "Not stated yet: fill in `license` in the header of this file before you publish it."
    return "\n".join([*parts, f"## License\n\n{_cell(stated)}\n"])


def _header(card: Card, recipe: Recipe) -> str:
    head = getattr(recipe.model, "head", "pretraining")
    kind = _KINDS.get(head, "fill-mask" if isinstance(recipe.model, EncoderConfig) else "text-generation")
    license_line = f"license: {_word(card.license)}" if card.license else "# license: fill in before you publish"
    lines = ["library_name: transformers", f"pipeline_tag: {kind}", "tags:", "- hornbook", license_line]
    return "\n".join(["---", *lines, "---", ""])


def _opening(card: Card, contents: Contents, recipe: Recipe) -> str:
    model = recipe.model
    size = f"{counted(model.num_layers, 'layer')}, hidden size {model.hidden_size:,}"
    size += f", {model.num_parameters():,} parameters"
    limits = f"a vocabulary of {model.vocab_size or 0:,} tokens and {counted(model.max_positions, 'position')}"
    source = contents.documents.get("source")
    if contents.step:
        origin = f"Trained for {counted(contents.step, 'step')} and exported by hornbook {__version__}."
    else:
        name = (
            f" from {_code(_last(str(source['folder'])))}" if isinstance(source, Mapping) and "folder" in source else ""
        )
        origin = f"Imported{name}, and exported unchanged by hornbook {__version__}, which has not trained it."
    return f"# {_cell(card.title)}\n\nA model of the family {_code(model.family)}: {size}, {limits}. {origin}\n"


def _loading(card: Card, contents: Contents, recipe: Recipe) -> str:
    """Return the section with code that loads the model, and how its prompts begin."""
    name, tokenizer = card.architecture, tokenizer_of(contents, "the checkpoint")
    lines = [f"from transformers import {'AutoTokenizer, ' if tokenizer else ''}{name}", ""]
    lines += [f"model = {name}.from_pretrained({card.title!r}).eval()"]
    note = ""
    if tokenizer:
        lines.insert(2, f"tokenizer = AutoTokenizer.from_pretrained({card.title!r})")
    if tokenizer and not isinstance(recipe.model, EncoderConfig) and not isinstance(recipe.objective, LabelledConfig):
        lines += ['inputs = tokenizer(["Once upon a time"], return_tensors="pt", padding=True)']
        lines += ["outputs = model.generate(**inputs, do_sample=False, max_new_tokens=20)"]
        lines += ["print(tokenizer.batch_decode(outputs, skip_special_tokens=True)[0])"]
        end = _code(tokenizer.end_of_text or "")
        if has_start_token(contents):
            note = f"\nIn training, every document follows {end}, so the tokenizer puts it before each prompt.\n"
        else:
            note = f"\nPrompts have no start token; {end} ends a text.\n"
    code = "\n".join(lines)
    return f"## Load\n\n```python\n{code}\n```\n{note}"


def _data(recipe: Recipe) -> str:
    """Return the section on the data: the stores of the recipe, with their manifests if they are still there."""
    data = recipe.data
    if data.synthetic:
        return "## Data\n\nRandom tokens (`data.synthetic`), no text.\n"
    rows, sources = [], list[str]()
    stores = [split_entry(entry)[1] for entry in data.train]
    held_out = [data.validation] if data.validation else stores
    entries = [("train", path) for path in stores] + [("validation", path) for path in held_out]
    for split, path in entries:
        manifest = _manifest(Path(path), split)
        if manifest is None:
            rows += [f"| {_cell(_last(path))} | {split} | not known | not known | not known |"] * (split == "train")
            continue
        counts = (manifest.num_documents, manifest.num_tokens, manifest.num_bytes)
        rows.append(f"| {_cell(_last(path))} | {split} | {' | '.join(f'{count:,}' for count in counts)} |")
        sources += [_last(source) for source in manifest.sources]
    table = ["| store | split | documents | tokens | bytes of text |", "|---|---|---|---|---|", *rows]
    names = list(dict.fromkeys(sources))
    shown = ", ".join(_code(name) for name in names[:_MOST_SOURCES])
    more = f" and {len(names) - _MOST_SOURCES:,} more" if len(names) > _MOST_SOURCES else ""
    said = f"Sources, by their file names: {shown}{more}." if names else "The stores record no sources."
    return "\n".join(["## Data\n", *table, "", said, ""])


def _manifest(path: Path, split: str) -> Manifest | None:
    """Return the manifest of a corpus' split, or of a store; None if there is none that can be read."""
    folders = (path / split, *((path,) if split == "train" else ()))
    try:
        return next((Manifest.read(folder) for folder in folders if (folder / MANIFEST).is_file()), None)
    except HornbookError:
        return None


def _training(contents: Contents, recipe: Recipe, card: Card) -> str:
    state, training = contents.documents.get("state"), recipe.training
    tokens = number(state, "tokens") if isinstance(state, dict) else None
    facts = {
        "objective": recipe.objective.name,
        "steps": f"{contents.step:,}",
        "scored tokens": None if tokens is None else f"{int(tokens):,}",
        "sequences per step": f"{training.global_batch_size:,} of {recipe.sequence_length:,} tokens",
        "optimizer": recipe.optimizer.name,
        "peak learning rate": getattr(recipe.optimizer, "learning_rate", None),  # an unknown part has none
        "schedule": recipe.schedule.name,
        "compute": recipe.precision.compute,
        "initial weights": _initial_weights(card) or f"drawn from seed {training.seed}",
    }
    rows = [f"| {key} | {_cell(str(value))} |" for key, value in facts.items() if value is not None]
    toml = recipe_to_toml(_without_folders(recipe)).replace("```", "` ` `")
    told = "The recipe, in which paths are shortened to their last part:"
    return "\n".join(["## Training\n", "| | |", "|---|---|", *rows, "", told, "", f"```toml\n{toml}```", ""])


def _initial_weights(card: Card) -> str | None:
    """Return the name of the weights that the run started from; None for random ones."""
    folder = run_of(card.source) if card.source else None
    try:
        identity = read_json(folder / IDENTITY, "run identity") if folder else None
    except HornbookError:
        return None
    origin = identity.get("init_from") if isinstance(identity, dict) else None
    source = origin.get("source") if isinstance(origin, dict) else None
    return _last(source) if isinstance(source, str) else None


def _without_folders(recipe: Recipe) -> Recipe:
    changes = dict[str, Any]()
    for section in SECTIONS:
        values = getattr(recipe, section)
        paths = {name: getattr(values, name) for name, spec in describe(type(values)).items() if spec.path}
        short = {
            name: tuple(map(_short, value)) if isinstance(value, tuple) else _short(value)
            for name, value in paths.items()
        }
        changes[section] = replace(values, **short)
    return replace(recipe, **changes)


def _short(entry: Any) -> Any:
    """Return a path, or ``NAME=PATH``, with only the last part of the path; None for None."""
    if not isinstance(entry, str):
        return entry
    name, path = split_entry(entry)
    return Path(path).name if name is None else f"{name}={Path(path).name}"


def _run(card: Card) -> RunFiles | None:
    try:
        folder = run_of(card.source) if card.source else None
        run = read_run(folder) if folder else None
    except HornbookError as error:
        card.warn(f"the model card has no numbers of the run: {error}")
        return None
    for problem in run.damaged if run else ():
        card.warn(f"the model card lacks what is in a damaged file: {problem}")
    return run


def _numbers(step: int, recipe: Recipe, run: RunFiles | None) -> str:
    rows = list(_number_rows(step, recipe, run)) if run else []
    if not rows:
        return "## Numbers\n\nNone were recorded for this checkpoint.\n"
    table = ["| measure | value | after step | how it was measured |", "|---|---|---|---|", *rows]
    return "\n".join(["## Numbers\n", *table, ""])


def _number_rows(step: int, recipe: Recipe, run: RunFiles) -> Iterator[str]:
    """Yield the rows of the numbers table: losses of the log up to ``step``, and evaluations of this checkpoint."""
    means = f"mean in nats over the scored tokens of `{recipe.objective.name}`"
    ways = {
        "train": f"{means} since the previous row of the log, on training data, with dropout as in the recipe",
        "validation": f"{means}, {_held_out(recipe, run)}",
    }
    for kind, way in ways.items():
        logged = [row for row in run.of_kind(kind) if number(row, "loss") is not None and row["step"] <= step]
        if logged:
            yield _number_row(f"{kind} loss", logged[-1].get("loss"), logged[-1]["step"], way)
    bits = [
        row for row in run.of_kind("validation") if number(row, "bits_per_byte") is not None and row["step"] <= step
    ]
    if bits:
        way = f"the validation loss per byte of text instead, in bits; {_held_out(recipe, run)}"
        yield _number_row("validation bits per byte", bits[-1]["bits_per_byte"], bits[-1]["step"], way)
    for evaluation in run.tasks:
        if evaluation.get("step") != step:
            continue
        text = ", ".join(filter(None, (_last(text_of(evaluation)), options_of(evaluation))))
        for row in evaluation["rows"]:
            way = "; ".join(filter(None, (str(row.get("convention") or ""), f"on {text}")))
            yield _number_row(f"{evaluation.get('name')}: {row.get('metric')}", row.get("value"), step, way)


def _held_out(recipe: Recipe, run: RunFiles) -> str:
    most = recipe.evaluation.max_windows
    part = f"{most:,} of its sequences" if most else "all of its sequences"
    return f"on {_last(run.held_out)}: {part}, each up to {recipe.sequence_length:,} tokens, without overlap or dropout"


def _number_row(measure: str, value: object, step: int, way: str) -> str:
    shown = f"{value:.6g}" if isinstance(value, int | float) else "none"
    return f"| {_cell(measure)} | {shown} | {step:,} | {_cell(way)} |"


def _last(path: str) -> str:
    """Return the last part of a path; ``corpora/mine, validation split`` keeps its end."""
    return path.rstrip("/").rpartition("/")[2]


def _cell(text: str) -> str:
    """Return a text of others as one line of Markdown without HTML, which does not end a table's cell."""
    return one_line(" ".join(text.split())).replace("|", "\\|").replace("`", "'").replace("<", "&lt;")


def _code(text: str) -> str:
    """Return a text of others as code in a line of Markdown, outside of tables."""
    return f"`{one_line(' '.join(text.split())).replace('`', chr(39))}`"


def _word(text: str) -> str:
    return "".join(character for character in text if character.isalnum() or character in "-.+_")
