"""The sections of a recipe that are common to all models, one frozen dataclass each.

::

    [data]  [training]           data, length of the run, batch sizes
    [precision]  [memory]        dtypes; recomputation and offloading
    [checkpoint]  [evaluation]   when to save and to evaluate
    [tracking]                   when to log, and where

Fields have help and bounds. ``problems`` returns the mistakes within a section; `hornbook.config.recipe` checks
sections against each other.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple

from hornbook.config.optimizers import problems_of_steps
from hornbook.config.options import Problem, option, split_entry

Dtype = Literal["fp32", "bf16", "fp16"]
Compute = Literal["auto", "fp32", "bf16", "fp16"]
LossScaling = Literal["static", "dynamic", "histogram"]
DTYPE_BYTES: Final[Mapping[str, int]] = {"fp32": 4, "bf16": 2, "fp16": 2}
_MOMENTS: Final = {"exp_avg": "first_moment", "momentum": "first_moment", "exp_avg_sq": "second_moment"}
_NOT_PHASED: dict[str, tuple[object, str]] = {
    "training.compile": ("none", "takes layers that stay in memory"),
    "parallel.pipeline_parallel": (1, "spreads layers over ranks"),
    "parallel.tensor_parallel": (1, "cuts layers that stay in memory"),
    "checkpoint.background": (False, "copies all state into memory"),
    "sparsity.linears": ((), "keeps blocks in memory"),
    "sparsity.embedding_block_size": (None, "keeps blocks in memory"),
}
"""Options that exclude phased execution, each with the compatible value and the reason."""


class CacheOptions(NamedTuple):
    """Where copies and chunks of data at URLs are kept, None for the user's cache, and the most bytes of chunks."""

    folder: str | None = None
    limit: int = 32 << 30


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Training and validation data, and the sequence length."""

    sequence_length: int | None = option(None, help="tokens per sequence; none: max_positions", minimum=1)
    train: tuple[str, ...] = option((), help="token stores (folders or URLs) or labeled files to train on", path=True)
    weights: tuple[float, ...] = option(
        (), help="relative shares of the stores in the samples; []: proportional to size", above=0
    )
    max_samples: int | None = option(
        None, help="maximum number of samples per epoch, the same ones in each; none: all", minimum=1
    )
    validation: str | None = option(
        None,
        help=(
            "token store or labeled file for the validation loss; none: the validation splits of the "
            "training corpora, if any"
        ),
        path=True,
    )
    tokenizer: str | None = option(
        None, help="tokenizer file or folder, for instances and labeled texts; stores contain theirs", path=True
    )
    cache: str | None = option(
        None, help="folder for data read from URLs, which several runs may share; none: ~/.cache/hornbook", path=True
    )
    cache_gib: float = option(32.0, help="size limit of the cache of data read from URLs, in GiB", above=0)
    synthetic: bool = option(False, help="train on random tokens instead of a store")
    windows: Literal["stream", "documents"] = option(
        "stream",
        help=(
            "sequences of a decoder; stream: windows of the concatenated documents; documents: the "
            "beginning of each document that is long enough"
        ),
    )
    document_mask: bool = option(False, help="restrict the attention of a decoder to the token's own document")
    layout: Literal["auto", "padded", "packed", "unpadded"] = option(
        "auto", help="layout of an encoder's batches; auto: by the sequence lengths"
    )

    @property
    def chunk_cache(self) -> CacheOptions:
        """Return the options of the cache of data at URLs."""
        return CacheOptions(self.cache, int(self.cache_gib * (1 << 30)))

    def problems(self) -> list[Problem]:
        if self.weights and len(self.weights) != len(self.train):
            return [Problem(("train", "weights"), "weights needs one value for each store; set as many or remove it")]
        if len(self.weights) == 1:
            return [Problem(("train", "weights"), "weights applies only to several stores; remove it")]
        return []


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Length of the run, batch sizes and random seed."""

    steps: int | None = option(None, help="length of the run in optimizer steps", minimum=1)
    epochs: float | None = option(None, help="length of the run in passes over the training data", above=0)
    tokens: int | None = option(None, help="length of the run in trained tokens", minimum=1)
    global_batch_size: int = option(8, help="sequences per optimizer step, over all ranks", minimum=1)
    micro_batch_size: int = option(8, help="sequences per forward and backward pass on one rank", minimum=1)
    seed: int = option(1234, help="random seed for weights, sample order and dropout", minimum=0)
    compile: Literal["auto", "none", "blocks"] = option(
        "auto",
        help=(
            "blocks: compile each transformer block with torch.compile, which adds a minute or more at the start; "
            "auto: on a GPU with Triton, if all layers of a kind share one graph"
        ),
    )

    def problems(self) -> list[Problem]:
        problems, lengths = [], ("steps", "epochs", "tokens")
        if all(getattr(self, name) is None for name in lengths):
            problems.append(Problem(lengths, "the run has no length; set exactly one of the three"))
        if self.global_batch_size % self.micro_batch_size:
            fitting = math.gcd(self.global_batch_size, self.micro_batch_size)
            message = f"micro_batch_size must divide global_batch_size; set `training.micro_batch_size={fitting}`"
            problems.append(Problem(("global_batch_size", "micro_batch_size"), message))
        return problems


@dataclass(frozen=True, kw_only=True)
class PrecisionConfig:
    """Dtypes of activations, weights, gradients and optimizer state, and the loss scale.

    ::

        bytes per parameter      weight + gradient + exp_avg + exp_avg_sq
          all fp32                 4    +    4     +    4    +     4        16
          moments bf16             4    +    4     +    2    +     2        12
          all bf16                 2    +    2     +    2    +     2         8
          all bf16, momentum       2    +    2     +    2                    6
    """

    compute: Compute = option(
        "auto", help="dtype of the activations; auto: bf16 if the device supports it natively, else fp32"
    )
    kernels: Literal[
        "auto", "torch", "native", "avx2", "avx512", "avx512bf16", "avx512fp16", "amx", "neon", "neonbf16"
    ] = option(
        "auto",
        help=(
            "operators on a CPU: PyTorch's (torch) or hornbook's (native, or its form for an instruction set); auto: "
            "native where faster"
        ),
    )
    partials: Literal["auto", "fp32", "half"] = option(
        "auto",
        help=(
            "dtype of partial sums in bf16 and fp16 products; half: faster but less accurate, for GPUs and for CPUs "
            "with AVX512-FP16; auto: PyTorch's default on a GPU, fp32 on a CPU"
        ),
    )
    weights: Dtype = option(
        "fp32", help="dtype of the stored weights; bf16 and fp16 have no fp32 copy, and updates round stochastically"
    )
    gradients: Dtype = option("fp32", help="dtype in which gradients accumulate over micro-batches")
    first_moment: Dtype = option("fp32", help="dtype of the stored mean of gradients (exp_avg, momentum)")
    second_moment: Dtype = option("fp32", help="dtype of the stored mean of squared gradients (exp_avg_sq)")
    loss_scaling: Literal["auto", "static", "dynamic", "histogram"] = option(
        "auto",
        help=(
            "static: fixed scale; dynamic: halved when gradients overflow; histogram: also halved when "
            "gradients come near overflow; auto: dynamic for fp16 activations without a given loss "
            "scale, else static"
        ),
    )
    loss_scale: float | None = option(
        None,
        help="loss scale, or its initial value if it is not static; none: 1 if static, else 32768",
        above=0,
    )
    loss_scale_by_step: tuple[str, ...] = option(
        (), help="STEP=SCALE: loss scale from that step on, counted from 0; replaces loss_scale"
    )
    loss_scale_interval: int = option(
        2000, help="updates without overflow after which a dynamic loss scale doubles", minimum=1
    )

    @property
    def effective_loss_scaling(self) -> LossScaling:
        """Kind of loss scaling, given or derived."""
        if self.loss_scaling != "auto":
            return self.loss_scaling
        is_given = self.loss_scale is not None or self.loss_scale_by_step
        return "dynamic" if self.compute == "fp16" and not is_given else "static"

    @property
    def is_plain(self) -> bool:
        """Whether weights, gradients and optimizer states are stored in fp32."""
        return {self.weights, self.gradients, self.first_moment, self.second_moment} == {"fp32"}

    def dtype_of_state(self, name: str) -> Dtype:
        """Return the dtype of an optimizer state by name; fp32 for states of custom optimizers."""
        dtype: Dtype = getattr(self, _MOMENTS[name]) if name in _MOMENTS else "fp32"
        return dtype

    def stored_name(self, name: str) -> str:
        """Return the name of an optimizer state in checkpoints: in fp16, a mean of squares is stored as its root."""
        return "exp_avg_rms" if name == "exp_avg_sq" and self.second_moment == "fp16" else name

    @property
    def bytes_per_parameter(self) -> int:
        """Bytes of a parameter's weight and gradient."""
        return DTYPE_BYTES[self.weights] + DTYPE_BYTES[self.gradients]

    def problems(self) -> list[Problem]:
        """Return mistakes in the table, and options that have no effect."""
        problems = []
        if self.partials == "half" and self.compute == "fp32":
            message = "fp32 products have no 16-bit partial sums; remove partials, or set compute to bf16 or fp16"
            problems.append(Problem(("partials", "compute"), message))
        if self.loss_scale_by_step and self.effective_loss_scaling != "static":
            message = 'loss_scale_by_step is a static loss scale; remove it, or set loss_scaling = "static"'
            problems.append(Problem(("loss_scale_by_step", "loss_scaling"), message))
        elif self.loss_scale_by_step:
            problems += problems_of_steps("loss_scale_by_step", self.loss_scale_by_step)
        return problems


@dataclass(frozen=True, kw_only=True)
class MemoryConfig:
    """Options that reduce memory at the cost of computation or transfers.

    Recomputation, offloading and phased execution do not change any bit of the results, vocabulary chunks change only
    rounding. So a run may resume with other values.
    """

    execution: Literal["resident", "phased"] = option(
        "resident",
        help=(
            "resident: keep the whole model on the device; phased: one layer at a time, for all "
            "micro-batches, with the rest in files (for a CPU) or host memory (for a GPU)"
        ),
    )
    scratch: str | None = option(
        None,
        help="folder for the files of phased execution; none: the run folder for a CPU, host memory for a GPU",
        path=True,
    )
    recompute: Literal["all", "attention"] | None = option(
        None,
        help=(
            "activations to recompute in the backward pass; all: all of a layer except its input; "
            "attention: those between attention's projections; none: keep all"
        ),
    )
    recompute_layers: tuple[int, ...] = option((), help="layers that recompute, counted from 0; []: all", minimum=0)
    recompute_budget: float | None = option(
        None,
        help=(
            "MiB of activations per micro-batch that the layers of a rank may keep; the first layers "
            "that fit do not recompute; none: all layers recompute"
        ),
        minimum=0,
    )
    offload_activations: bool = option(
        False, help="offload activations of layers to host memory until the backward pass; requires a GPU"
    )
    offload_optimizer: bool = option(
        False, help="offload the optimizer state to host memory between updates; requires a GPU"
    )
    vocabulary_chunks: int = option(
        1,
        help="number of vocabulary chunks for which the head computes logits, one after the other",
        minimum=1,
    )

    def problems(self) -> list[Problem]:
        problems = []
        if self.execution == "phased":
            for key in ("recompute", "offload_activations", "offload_optimizer"):
                if getattr(self, key):
                    message = f"phased execution recomputes every layer and offloads everything; remove {key}"
                    problems.append(Problem(("execution", key), message))
        elif self.scratch is not None:
            message = 'scratch has no effect without phased execution; set execution = "phased", or remove it'
            problems.append(Problem(("scratch", "execution"), message))
        for key in ("recompute_layers", "recompute_budget"):
            if getattr(self, key) not in ((), None) and self.recompute is None:
                message = f'{key} has no effect without recompute; set recompute = "all" or "attention", or remove it'
                problems.append(Problem((key, "recompute"), message))
        if self.recompute_layers and self.recompute_budget is not None:
            message = "recompute_layers and recompute_budget both choose the layers; keep one"
            problems.append(Problem(("recompute_layers", "recompute_budget"), message))
        return problems

    def conflicts(self, recipe: Any) -> Iterator[Problem]:
        """Yield listed layers that the model does not have, and options that exclude phased execution."""
        num_layers: int | None = getattr(recipe.model, "num_layers", None)  # custom models may not have num_layers
        if num_layers is not None and (strays := [layer for layer in self.recompute_layers if layer >= num_layers]):
            message = f"layer {strays[0]} does not exist; the layers are 0 to {num_layers - 1}"
            yield Problem(("memory.recompute_layers", "model.num_layers"), message)
        if self.execution == "phased" and getattr(recipe.model, "residual_scales", False):
            message = "residual_scales reads the embedding's result in every layer, which phased execution does not"
            mend = 'remove it, or set memory.execution to "resident"'
            yield Problem(("memory.execution", "model.residual_scales"), f"{message} keep; {mend}")
        for key, (safe, reason) in _NOT_PHASED.items():
            if self.execution == "phased" and attrgetter(key)(recipe) not in (safe, "auto"):
                name = key.rpartition(".")[2]
                message = f'{name} {reason}; remove it, or set memory.execution to "resident"'
                yield Problem(("memory.execution", key), message)


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When to save checkpoints and which to keep."""

    every_steps: int = option(1000, help="steps between checkpoints", minimum=1)
    keep_last: int = option(2, help="number of newest checkpoints to keep", minimum=1)
    keep_best: bool = option(True, help="also keep the best checkpoint")
    background: bool = option(
        False, help="write checkpoints in a thread while training continues, from a copy of the state in memory"
    )
    best_by: str = option("validation", help="criterion for the best checkpoint: validation (loss) or TASK/METRIC")

    def problems(self) -> list[Problem]:
        """Return a malformed ``best_by``."""
        if self.best_by != "validation" and not re.fullmatch(r"[^/]+/[^/]+", self.best_by):
            return [Problem(("best_by",), 'expected "validation" or TASK/METRIC, as in "lambada/last_word_accuracy"')]
        return []


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Validation, evaluation tasks and early stopping during training."""

    every_steps: int = option(500, help="steps between validations", minimum=1)
    max_windows: int | None = option(None, help="maximum windows per validation; none: all", minimum=1)
    tasks: tuple[str, ...] = option((), help="tasks of `hornbook evaluate` to run during training")
    task_data: tuple[str, ...] = option(
        (), help="data for the tasks: PATH for all, or TASK=PATH for one", path=True, named=True
    )
    tasks_every_steps: int | None = option(None, help="steps between task evaluations; none: every_steps", minimum=1)
    early_stopping_patience: int | None = option(
        None,
        help="end the run after this many measurements of checkpoint.best_by without improvement; none: never",
        minimum=1,
    )
    early_stopping_min_delta: float = option(0.0, help="smallest change that counts as an improvement", minimum=0)

    def problems(self) -> list[Problem]:
        problems = []
        named = [name for name, _ in map(split_entry, self.task_data) if name is not None]
        if strays := [name for name in named if name not in self.tasks]:
            message = f"task_data applies only to tasks that run; add {', '.join(strays)} to tasks, or remove its data"
            problems.append(Problem(("task_data", "tasks"), message))
        for name in ("task_data", "tasks_every_steps"):
            if getattr(self, name) and not self.tasks and not strays:
                problems.append(Problem((name, "tasks"), f"{name} has no effect without tasks; set them, or remove it"))
        if self.early_stopping_min_delta and self.early_stopping_patience is None:
            message = "early_stopping_min_delta applies only with early_stopping_patience; set that, or remove it"
            problems.append(Problem(("early_stopping_min_delta", "early_stopping_patience"), message))
        return problems


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """How often to log metrics and text samples, and the trackers that get them as well."""

    log_every_steps: int = option(10, help="steps between rows of metrics", minimum=1)
    sample_every_steps: int | None = option(None, help="steps between text samples; none: no samples", minimum=1)
    sample_tokens: int = option(64, help="tokens per text sample", minimum=1)
    trackers: tuple[str, ...] = option(
        (), help="trackers that also receive metrics and samples: tensorboard, wandb, mlflow, trackio"
    )
    project: str = option("hornbook", help="project name for the trackers; MLflow's experiment")
    histogram_every_steps: int | None = option(
        None, help="steps between histograms of weights and gradients for the trackers; none: no histograms", minimum=1
    )

    def problems(self) -> list[Problem]:
        if self.histogram_every_steps is not None and not self.trackers:
            message = "histogram_every_steps has no effect without trackers; set them, or remove it"
            return [Problem(("histogram_every_steps", "trackers"), message)]
        if len(set(self.trackers)) < len(self.trackers):
            return [Problem(("trackers",), "trackers names one twice; remove it")]
        return []
