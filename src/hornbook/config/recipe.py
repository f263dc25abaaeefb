"""What a run is made of: one frozen dataclass a section, and the recipe that holds them.

    recipe.toml, command line  ->  load_recipe  ->  Recipe(name="gpt2-small",
                                                           model=GPTConfig(num_layers=12, hidden_size=768, ...),
                                                           optimizer=AdamWConfig(learning_rate=6e-4, ...), ...)

Each field carries its help and bounds (``option``), and each section lists its own cross-field mistakes
(``problems``), so that all of them are reported at once. The price: a ``Recipe`` built by hand in Python is only
checked on its way through ``recipe_from_dict(recipe_to_dict(recipe))``; what comes from a file or the command line
always is.
"""

import math
import re
from dataclasses import dataclass, field
from typing import Literal

from hornbook.config import by_step
from hornbook.config.models import EncoderConfig, GPTConfig, RobertaConfig, TransformerConfig
from hornbook.config.objectives import (
    CausalLMConfig,
    ClassificationConfig,
    LabelledConfig,
    MaskedLMConfig,
    MaskingConfig,
    PretrainingConfig,
    SpanConfig,
)
from hornbook.config.optimizers import AdamWConfig, OptimizerConfig
from hornbook.config.options import Problem, option
from hornbook.config.schedules import ByStepConfig, CosineConfig, ScheduleConfig
from hornbook.config.values import Mistake, split_entry


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is read: token stores, and the length of a window."""

    sequence_length: int | None = option(None, help="tokens of a window; none: max_positions", minimum=1)
    train: tuple[str, ...] = option((), help="token stores to train on", path=True)
    weights: tuple[float, ...] = option((), help="shares of the stores in the samples; []: by their sizes", above=0)
    max_samples: int | None = option(
        None, help="train on so many samples, again in each epoch; none: all that the data hold", minimum=1
    )
    validation: str | None = option(None, help="token store for the validation loss", path=True)
    tokenizer: str | None = option(
        None, help="tokenizer of instances or labelled texts: a file or folder; stores have their own", path=True
    )
    synthetic: bool = option(False, help="train on random tokens instead of a store")
    document_mask: bool = option(False, help="keep a decoder's attention within a document")
    layout: Literal["auto", "padded", "packed", "unpadded"] = option(
        "auto", help="how an encoder's sequences lie in rows; auto: by their lengths"
    )

    def problems(self) -> list[Problem]:
        """List what does not fit together."""
        problems = []
        if self.train and self.synthetic:
            problems.append(Problem(("train", "synthetic"), "give one of them, not both"))
        if self.weights and len(self.weights) != len(self.train):
            problems.append(Problem(("train", "weights"), "give one weight for each store, or none"))
        elif self.weights and len(self.train) == 1:
            problems.append(Problem(("train", "weights"), "one store has all samples: leave weights out"))
        return problems


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How long, in what batches, from which seed."""

    steps: int | None = option(None, help="length of the run in optimizer steps", minimum=1)
    epochs: float | None = option(None, help="length of the run in passes over the training store", above=0)
    tokens: int | None = option(None, help="length of the run in trained tokens", minimum=1)
    global_batch_size: int = option(8, help="sequences of one optimizer step, over all ranks", minimum=1)
    micro_batch_size: int = option(8, help="sequences of one forward and backward pass on one rank", minimum=1)
    seed: int = option(1234, help="seed of weights, sample order and dropout", minimum=0)

    def problems(self) -> list[Problem]:
        """List what does not fit together."""
        lengths = ("steps", "epochs", "tokens")
        given = tuple(name for name in lengths if getattr(self, name) is not None)
        problems = []
        if not given:
            problems.append(Problem(lengths, "the run has no length; give exactly one of the three"))
        elif len(given) > 1:
            problems.append(
                Problem(given, "the run has more than one length; give exactly one of steps, epochs, tokens")
            )
        if self.global_batch_size % self.micro_batch_size:
            fitting = math.gcd(self.global_batch_size, self.micro_batch_size)
            message = f"micro_batch_size must divide global_batch_size; give --training.micro-batch-size {fitting}"
            problems.append(Problem(("global_batch_size", "micro_batch_size"), message))
        return problems


@dataclass(frozen=True, kw_only=True)
class PrecisionConfig:
    """In what numbers forward and backward are computed; master weights are fp32 always."""

    compute: Literal["auto", "fp32", "bf16"] = option("auto", help="auto: bf16 where the device is fast at it")
    loss_scale: float = option(1.0, help="factor of the loss while gradients travel; fp32 and bf16 need none", above=0)
    loss_scale_by_step: tuple[str, ...] = option(
        (), help="STEP=SCALE, from that update (from 0) on; in place of loss_scale"
    )

    def problems(self) -> list[Problem]:
        """List what does not fit together, and the first mistake in the table."""
        if not self.loss_scale_by_step:
            return []
        if self.loss_scale != 1.0:
            return [Problem(("loss_scale", "loss_scale_by_step"), "give one of them, not both")]
        try:
            by_step.read(self.loss_scale_by_step)
        except Mistake as mistake:
            return [Problem(("loss_scale_by_step",), str(mistake))]
        return []


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When the state is saved and what is kept."""

    every_steps: int = option(1000, help="steps between checkpoints", minimum=1)
    keep_last: int = option(2, help="newest checkpoints to keep", minimum=1)
    keep_best: bool = option(True, help="also keep the best one")
    best_by: str = option("validation", help="what the best is chosen by: validation (its loss) or TASK/METRIC")

    def problems(self) -> list[Problem]:
        """List what is wrong with the measure of the best."""
        if self.best_by != "validation" and not re.fullmatch(r"[^/]+/[^/]+", self.best_by):
            return [Problem(("best_by",), 'expected "validation" or TASK/METRIC, as in "lambada/last_word_accuracy"')]
        return []


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """What is measured in the course of training, and when."""

    every_steps: int = option(500, help="steps between validation losses", minimum=1)
    max_windows: int | None = option(None, help="windows of a validation loss; none: all", minimum=1)
    tasks: tuple[str, ...] = option((), help="tasks of `hornbook evaluate` to run as well")
    task_data: tuple[str, ...] = option((), help="their data, PATH for all or TASK=PATH for one", path=True, named=True)
    tasks_every_steps: int | None = option(None, help="steps between tasks; none: every_steps", minimum=1)
    early_stopping_patience: int | None = option(
        None, help="end the run after so many measurements of checkpoint.best_by without improvement", minimum=1
    )
    early_stopping_min_delta: float = option(0.0, help="smallest change that counts as an improvement", minimum=0)

    def problems(self) -> list[Problem]:
        """List what does not fit together."""
        problems = []
        named = [name for name, _ in map(split_entry, self.task_data) if name is not None]
        strays = [name for name in named if name not in self.tasks]
        if strays:
            message = f"data for {', '.join(strays)}, not among the tasks; add it there"
            problems.append(Problem(("task_data", "tasks"), message))
        if self.early_stopping_min_delta and self.early_stopping_patience is None:
            message = "without a patience nothing is stopped; give early_stopping_patience, too"
            problems.append(Problem(("early_stopping_min_delta", "early_stopping_patience"), message))
        return problems


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """What a run writes down on its way."""

    log_every_steps: int = option(10, help="steps between rows of metrics", minimum=1)
    sample_every_steps: int | None = option(None, help="steps between text samples; none: no samples", minimum=1)
    sample_tokens: int = option(64, help="tokens of a text sample", minimum=1)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides a run. Model, objective, optimizer and schedule may also be of a registered class."""

    name: str = option("recipe", help="name of the run's folder; default: name of the recipe's file")
    model: TransformerConfig = field(default_factory=GPTConfig)
    data: DataConfig = field(default_factory=DataConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    objective: CausalLMConfig | MaskedLMConfig | PretrainingConfig | LabelledConfig = field(
        default_factory=CausalLMConfig
    )
    optimizer: OptimizerConfig = field(default_factory=AdamWConfig)
    schedule: ScheduleConfig | ByStepConfig = field(default_factory=CosineConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)

    @property
    def sequence_length(self) -> int:
        """Tokens of a window, given or derived."""
        return self.data.sequence_length or self.model.max_positions

    def problems(self) -> list[Problem]:
        """List what does not fit together across sections."""
        problems = []
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", self.name):
            message = "names a folder: expected letters, digits, dots, dashes and underscores, 100 at most"
            problems.append(Problem(("name",), message))
        if self.sequence_length > self.model.max_positions:
            message = "sequence_length must not exceed max_positions, the rows of the position table"
            problems.append(Problem(("data.sequence_length", "model.max_positions"), message))
        if self.data.synthetic and self.model.vocab_size is None:
            message = "random tokens need a vocabulary size; give model.vocab_size"
            problems.append(Problem(("data.synthetic", "model.vocab_size"), message))
        if self.data.synthetic and self.training.epochs is not None:
            message = "random tokens have no end; give training.steps or training.tokens"
            problems.append(Problem(("data.synthetic", "training.epochs"), message))
        task, slash, _ = self.checkpoint.best_by.partition("/")
        if slash and task not in self.evaluation.tasks:
            message = f"the best is chosen by a task that is not run; add {task} to the tasks"
            problems.append(Problem(("checkpoint.best_by", "evaluation.tasks"), message))
        return problems + self._problems_of_kind() + self._problems_of_labels()

    def _problems_of_kind(self) -> list[Problem]:
        """List what an encoder has no use for, or a decoder; an objective of one's own is of its base's kind."""
        is_encoder, learned = isinstance(self.model, EncoderConfig), self.objective
        is_causal, hides_tokens = (isinstance(learned, kind) for kind in (CausalLMConfig, MaskingConfig))
        rules = [
            (is_encoder and is_causal, "objective.name", 'an encoder learns "mlm", "mlm_nsp" or labels'),
            (not is_encoder and hides_tokens, "objective.name", "masked tokens are for encoders"),
            (
                isinstance(self.model, RobertaConfig) and isinstance(learned, PretrainingConfig),
                "objective.name",
                'RoBERTa has no head for pairs; give "mlm"',
            ),
            (
                self.data.tokenizer is not None
                and (not (hides_tokens or isinstance(learned, LabelledConfig)) or self.data.synthetic),
                "data.tokenizer",
                "only instances and labelled texts go without one of their own; leave it out",
            ),
            (is_encoder and self.data.document_mask, "data.document_mask", "an encoder's sequences never see others"),
            (not is_encoder and self.data.layout != "auto", "data.layout", "only an encoder's sequences are laid out"),
            (
                is_encoder and self.tracking.sample_every_steps is not None,
                "tracking.sample_every_steps",
                "an encoder writes no text",
            ),
        ]
        return [Problem((key, "model.family"), message) for broken, key, message in rules if broken]

    def _problems_of_labels(self) -> list[Problem]:
        """List what does not fit a model that learns labels, or one that does not."""
        is_labelled, finds_spans = (isinstance(self.objective, kind) for kind in (LabelledConfig, SpanConfig))
        head = "span" if finds_spans else "classification" if is_labelled else "pretraining"
        encoder = self.model if isinstance(self.model, EncoderConfig) else EncoderConfig()
        rules = [
            (is_labelled and encoder is not self.model, "model.family", "labels are learned by encoders"),
            (is_labelled and self.data.synthetic, "data.synthetic", "nobody labelled random tokens; give data.train"),
            (is_labelled and bool(self.data.weights), "data.weights", "labelled files have no weights"),
            (encoder.head not in ("pretraining", head), "model.head", f'such a head learns "{encoder.head}"'),
            (encoder.num_labels is not None and head != "classification", "model.num_labels", "only classes do"),
        ]
        problems = [Problem((key, "objective.name"), message) for broken, key, message in rules if broken]
        if isinstance(self.objective, ClassificationConfig) and self.objective.text == self.objective.label:
            keys = ("objective.text", "objective.label")
            problems.append(Problem(keys, "the text is not its own class; name another"))
        return problems
