"""The recipe: its sections, checks across sections, and conversion to text.

    recipe.toml, command line  ->  load_recipe  ->  Recipe(name="gpt2-small",
                                                           model=GPTConfig(num_layers=12, hidden_size=768, ...),
                                                           optimizer=AdamWConfig(learning_rate=6e-4, ...), ...)

``problems`` returns conflicts; ``recipe_from_dict(recipe_to_dict(r))`` validates a recipe.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, NamedTuple

from hornbook.config.description import description_of
from hornbook.config.models import EncoderConfig, GPTConfig, RobertaConfig, TransformerConfig, TunableConfig
from hornbook.config.objectives import (
    CausalLMConfig,
    ClassificationConfig,
    LabelledConfig,
    MaskedLMConfig,
    MaskingConfig,
    PretrainingConfig,
    SpanConfig,
)
from hornbook.config.optimizers import (
    AdamWConfig,
    ByStepConfig,
    CosineConfig,
    OptimizerConfig,
    ScheduleConfig,
    Shape,
    states_of,
)
from hornbook.config.options import TAGS, Checked, Problem, Spec, UnknownPart, choices, describe, option, script_of
from hornbook.config.parallel import SPLITS_NO_BACKWARD, ParallelConfig
from hornbook.config.sections import (
    DTYPE_BYTES,
    CheckpointConfig,
    DataConfig,
    EvaluationConfig,
    MemoryConfig,
    PrecisionConfig,
    TrackingConfig,
    TrainingConfig,
)
from hornbook.config.sparsity import SparsityConfig

COMMENT_COLUMN = 40
MOST_PARAMETERS = 10**15
"""A thousand times as many as the largest models have; PyTorch cannot describe a tensor of 2^63 bytes."""
SCRIPTS = "scripts"
"""Key of a stored recipe with the scripts of custom parts, by section."""
Key = tuple[str, str]

EXCLUSIVE = (
    (("training", "steps"), ("training", "epochs"), ("training", "tokens")),
    (("data", "train"), ("data", "synthetic")),
    (("schedule", "warmup_steps"), ("schedule", "warmup_fraction")),
    (("schedule", "decay_steps"), ("schedule", "decay_end")),
    (("precision", "loss_scale"), ("precision", "loss_scale_by_step")),
)
"""Options that exclude each other; one on the command line replaces the others of the recipe file."""
_ENCODERS = '"bert", "roberta", "groupbert", "modernbert"'
_ENCODER_OBJECTIVES = '"mlm", "mlm_nsp", "classification" or "span"'


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The complete options of a run; model, objective, optimizer and schedule may be of registered custom classes."""

    name: str = option("recipe", help="name of the run and its folder (default: name of the recipe's file)")
    model: TransformerConfig = field(default_factory=GPTConfig)
    data: DataConfig = field(default_factory=DataConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    objective: CausalLMConfig | MaskedLMConfig | PretrainingConfig | LabelledConfig = field(
        default_factory=CausalLMConfig
    )
    optimizer: OptimizerConfig = field(default_factory=AdamWConfig)
    schedule: ScheduleConfig | ByStepConfig = field(default_factory=CosineConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    sparsity: SparsityConfig = field(default_factory=SparsityConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

    @property
    def sequence_length(self) -> int:
        """Tokens per sequence, given or derived."""
        return self.data.sequence_length or self.model.max_positions

    def num_parameters(self) -> int:
        """Return the number of parameters; 0 for custom models that do not count them."""
        count: int = getattr(self.model, "num_parameters", int)()
        return count - sum(self.sparsity.num_absent(self.model).values()) if self.sparsity.is_sparse else count

    def states(self, name: str, shape: Shape) -> list[tuple[Shape, int]]:
        """Return the shape of each of the optimizer's state tensors for a parameter, and the bytes of its elements."""
        layer = name.removesuffix(".weight")
        own_name = f"{layer}.values" if layer != name and self.sparsity.covers(layer) else name
        states = states_of(self.optimizer, own_name, shape).items()
        return [(own, DTYPE_BYTES[self.precision.dtype_of_state(key)]) for key, own in states]

    def bytes_of_states(self) -> int:
        """Return the bytes of the optimizer's state; 0 for custom models that do not list their parameters."""
        absent = self.sparsity.num_absent(self.model) if self.sparsity.is_sparse else {}

        described = description_of(self.model)
        if described is None:
            return 0

        def of(num_layers: int) -> int:
            shapes = replace(described, num_layers=num_layers).shapes()
            return sum(size * math.prod(own) for name, shape in shapes for own, size in self.states(name, shape))

        if described.lacks:
            whole = of(described.num_layers)
        else:  # blocks are alike
            one, two = of(1), of(2)
            whole = one + (described.num_layers - 1) * (two - one)
        return whole - sum(
            count * size for name, count in absent.items() for _, size in self.states(f"{name}.weight", (1, 1))
        )

    def flops_per_token(self, length: float) -> float | None:
        """Return the FLOPs of a training step per token for sequences of ``length`` tokens, without absent blocks.

        None for custom models without a formula.
        """
        formula = getattr(self.model, "flops_per_token", None)
        if formula is None:
            return None
        scored: float = getattr(self.objective, "scored_share", 1.0)
        saved = self.sparsity.flops_saved(self.model, scored) if self.sparsity.is_sparse else 0.0
        flops: float = formula(length, scored=scored) - saved
        return flops

    def problems(self) -> list[Problem]:
        """Return conflicting options, by dotted keys: those of each section, then those of different sections."""
        own = [
            Problem(tuple(f"{section}.{key}" for key in problem.keys), problem.message)
            for section in SECTIONS
            if isinstance(options := getattr(self, section), Checked)
            for problem in options.problems()
        ]
        is_sparse, layout = self.sparsity != SparsityConfig(), self.parallel.conflicts(self.model)
        blocks = self.sparsity.conflicts(self.model, self.parallel) if is_sparse else ()
        memory = self.memory.conflicts(self)
        return [*own, *self._exclusive(), *self._conflicts(), *layout, *blocks, *memory, *self._inapplicable()]

    def _exclusive(self) -> Iterator[Problem]:
        for group in EXCLUSIVE:
            given = []
            for section, key in group:
                values = getattr(self, section)
                spec = describe(type(values)).get(key)
                if spec and getattr(values, key) != spec.default:
                    given.append(key)
            if len(given) > 1:
                keys = tuple(f"{group[0][0]}.{key}" for key in given)
                yield Problem(keys, f"{', '.join(given[:-1])} and {given[-1]} exclude each other; keep one")

    def _conflicts(self) -> Iterator[Problem]:
        model, data, objective, tasks = self.model, self.data, self.objective, self.evaluation.tasks
        is_encoder, is_synthetic = isinstance(model, EncoderConfig), data.synthetic
        by_family, task = ("objective.name", "model.family"), self.checkpoint.best_by.partition("/")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", self.name):
            yield Problem(("name",), "must be a folder name: at most 100 letters, digits, dots, dashes and underscores")
        if isinstance(model, TransformerConfig) and (count := model.num_parameters()) > MOST_PARAMETERS:
            sizes = [key for key in describe(type(model)) if type(size := getattr(model, key)) is int and size > 10**5]
            keys = tuple(f"model.{key}" for key in sizes or ("num_layers", "hidden_size"))
            yield Problem(
                keys, f"a model of {count:.1e} parameters; expected at most {MOST_PARAMETERS:.0e}; lower its sizes"
            )
        if self.sequence_length > model.max_positions:
            message = "sequence_length must not exceed max_positions; lower it or raise max_positions"
            yield Problem(("data.sequence_length", "model.max_positions"), message)
        if self.training.compile != "blocks" and self.parallel.async_tensor_parallel:
            message = 'async_tensor_parallel needs compiled blocks; set training.compile = "blocks", or remove it'
            yield Problem(("training.compile", "parallel.async_tensor_parallel"), message)
        if self.training.compile == "blocks" and self.parallel.pipeline_schedule not in SPLITS_NO_BACKWARD:
            message = f"compiled blocks cannot split their backward pass; choose {', '.join(SPLITS_NO_BACKWARD)}"
            yield Problem(("training.compile", "parallel.pipeline_schedule"), message)
        if self.training.compile == "blocks" and self.memory.offload_activations:
            message = "compiled blocks do not offload their activations; remove one of the two"
            yield Problem(("training.compile", "memory.offload_activations"), message)
        if self.training.compile == "blocks" and self.memory.recompute == "attention":
            message = 'compiled blocks cannot recompute only attention; set recompute = "all"'
            yield Problem(("training.compile", "memory.recompute"), message)
        if is_synthetic and model.vocab_size is None:
            message = "synthetic data needs a vocabulary size; set model.vocab_size"
            yield Problem(("data.synthetic", "model.vocab_size"), message)
        if is_synthetic and self.training.epochs is not None:
            message = "synthetic data has no epochs; set training.steps or training.tokens instead"
            yield Problem(("data.synthetic", "training.epochs"), message)
        if is_synthetic and isinstance(objective, LabelledConfig):
            message = "synthetic data has no labels; set data.train instead"
            yield Problem(("data.synthetic", "objective.name"), message)
        if task[1] and task[0] not in tasks:
            message = f"best_by needs a task that runs; add {task[0]} to evaluation.tasks"
            yield Problem(("checkpoint.best_by", "evaluation.tasks"), message)
        if is_encoder and isinstance(objective, CausalLMConfig):
            yield Problem(by_family, f'encoders cannot learn "causal_lm"; set objective.name to {_ENCODER_OBJECTIVES}')
        is_classifier = is_encoder or (isinstance(model, GPTConfig) and isinstance(objective, ClassificationConfig))
        if not is_classifier and isinstance(objective, MaskingConfig | LabelledConfig):
            also = ' or, for classes, "gpt"' if isinstance(objective, ClassificationConfig) else ""
            yield Problem(by_family, f"{objective.name} needs an encoder; set model.family to one of {_ENCODERS}{also}")
        if isinstance(model, RobertaConfig) and isinstance(objective, PretrainingConfig):
            yield Problem(by_family, 'RoBERTa has no next-sentence head; set objective.name to "mlm"')
        if getattr(objective, "unscored_tokens", 0) >= self.sequence_length:
            message = f"leaves no token to predict in sequences of {self.sequence_length:,} tokens; lower it"
            yield Problem(("objective.unscored_tokens", "data.sequence_length"), message)
        if getattr(model, "attention_block_size", None) and data.document_mask:
            message = "attention_block_size does not support document_mask; remove one of them"
            yield Problem(("model.attention_block_size", "data.document_mask"), message)
        if isinstance(objective, ClassificationConfig) and objective.text == objective.label:
            message = "text and label must be different fields; change one of them"
            yield Problem(("objective.text", "objective.label"), message)

    def _inapplicable(self) -> Iterator[Problem]:
        """Yield the options that have no effect with this model or objective; a subclass counts as its base."""
        model, data, name = self.model, self.data, "objective.name"
        if (window := getattr(model, "window", None)) and window > self.sequence_length:
            message = f"window must not exceed sequence_length, {self.sequence_length:,}; lower it or remove it"
            yield Problem(("model.window", "data.sequence_length"), message)
        is_masked, is_labeled = (isinstance(self.objective, kind) for kind in (MaskingConfig, LabelledConfig))
        head = "span" if isinstance(self.objective, SpanConfig) else "classification" if is_labeled else "pretraining"
        encoder = model if isinstance(model, EncoderConfig) else None
        has_own_tokenizer = data.synthetic or not (is_masked or is_labeled)
        is_sampled = self.tracking.sample_every_steps is not None
        rules = [
            (has_own_tokenizer and data.tokenizer, "data.tokenizer", name, "instances and labeled texts"),
            (encoder and data.document_mask, "data.document_mask", "model.family", "decoders"),
            (encoder and data.windows != "stream", "data.windows", "model.family", "decoders"),
            (not encoder and data.layout != "auto", "data.layout", "model.family", "encoders"),
            (encoder and is_sampled, "tracking.sample_every_steps", "model.family", "decoders"),
            (is_labeled and not encoder and is_sampled, "tracking.sample_every_steps", name, "causal_lm"),
            (is_labeled and not encoder and data.document_mask, "data.document_mask", name, "token stores"),
            (is_labeled and not encoder and data.windows != "stream", "data.windows", name, "token stores"),
            (is_labeled and data.weights, "data.weights", name, "token stores"),
        ]
        if isinstance(model, TunableConfig):
            is_foreign, is_counted = model.head not in ("pretraining", head), model.num_labels is not None
            rules += [
                (is_foreign, "model.head", name, f'{name} = "{model.head}"'),
                (is_counted and head != "classification", "model.num_labels", name, f'{name} = "classification"'),
            ]
        for broken, key, other, kind in rules:
            if broken:
                yield Problem((key, other), f"{key.rpartition('.')[2]} applies only to {kind}; remove it")


SECTIONS: dict[str, type] = {
    part.name: type(part.default_factory()) for part in fields(Recipe) if part.default_factory is not MISSING
}
"""The sections of a recipe, each with its default dataclass."""


def specs(section: str) -> dict[str, list[tuple[str, Spec]]]:
    """Return every option of a section by name, with the tags that have it (``""`` if the section has no tag).

    ``specs("schedule")["final_fraction"]`` is ``[("linear", Spec(...)), ("cosine", Spec(...)), ...]``.
    """
    classes = choices(section) if section in TAGS else {"": SECTIONS[section]}
    found: dict[str, list[tuple[str, Spec]]] = {}
    for tag, section_class in classes.items():
        for name, spec in describe(section_class).items():
            found.setdefault(name, []).append((tag, spec))
    return found


def dotted(key: Key) -> str:
    """Return a key as text: ``training.steps``, or ``name`` outside of sections."""
    return f"{key[0]}.{key[1]}" if key[0] else key[1]


class Change(NamedTuple):
    """A value that differs between two recipes."""

    key: str
    old: object
    new: object


def recipe_to_dict(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe as nested dictionaries of JSON types; ``scripts`` are those that registered custom parts."""
    parts = {section: getattr(recipe, section) for section in SECTIONS}
    scripts = {section: script for section in TAGS if (script := script_of(type(parts[section])))}
    nested = {section: _options(values) for section, values in parts.items()}
    return _options(recipe) | nested | ({SCRIPTS: scripts} if scripts else {})


def _options(values: object) -> dict[str, Any]:
    unknown = values.options if isinstance(values, UnknownPart) else {}
    return {name: getattr(values, name) for name in describe(type(values))} | unknown


def recipe_to_toml(recipe: Recipe, sources: Mapping[str, str] | None = None) -> str:
    """Return a recipe as TOML that loads as an equal recipe; with ``sources``, comments have the source of each value.

    An unset optional value is omitted, or written as ``"none"`` if its default is set.
    """
    blocks = [_block(recipe, "", sources)]
    blocks += [f"[{section}]\n{_block(getattr(recipe, section), f'{section}.', sources)}" for section in SECTIONS]
    return "\n".join(blocks)


def _block(values: object, prefix: str, sources: Mapping[str, str] | None) -> str:
    lines = []
    for name, value in _options(values).items():
        if value is not None or describe(type(values))[name].default is not None:
            line = f"{name} = {_toml(value)}"
        elif sources is not None:
            line = f"# {name} is unset"
        else:
            continue
        source = f" # {sources.get(prefix + name, 'default')}" if sources is not None else ""
        lines.append(f"{line:<{COMMENT_COLUMN - 1}}{source}".rstrip() + "\n")
    return "".join(lines)


def _toml(value: object) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str | bool):
        text = json.dumps(value, ensure_ascii=False)
        halves = range(0xD800, 0xE000)  # of characters, which TOML cannot escape
        return "".join(c if c.isprintable() or ord(c) in halves else f"\\U{ord(c):08x}" for c in text)
    return repr(value)


def entries_of(document: Mapping[str, object]) -> Iterator[tuple[Key, object]]:
    """Yield the keys and values of a parsed recipe; a table that is not a section is one value."""
    for name, value in document.items():
        if name in SECTIONS and isinstance(value, dict):
            yield from (((name, key), entry) for key, entry in value.items())
        else:
            yield ("", name), value


def changed_keys(old: Recipe, new: Recipe) -> list[Change]:
    """Return all values that differ, by dotted key; a value that only one recipe has is None in the other."""
    before, after = flatten(old), flatten(new)
    keys = [*before, *(key for key in after if key not in before)]
    return [Change(key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)]


def flatten(recipe: Recipe) -> dict[str, object]:
    """Return all values by dotted key."""
    parts = ((section, _options(getattr(recipe, section))) for section in SECTIONS)
    return {"name": recipe.name} | {f"{name}.{key}": value for name, part in parts for key, value in part.items()}
