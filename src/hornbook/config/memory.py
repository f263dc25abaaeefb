"""What a training keeps in the memory of its device, in ``[memory]``: less of it for more arithmetic or traffic.

Nothing here changes what is learned: recomputation, offload and phased execution leave every bit as it is, chunks of
the vocabulary leave all but rounding. So a run may resume with other values.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

from hornbook.config.options import Problem, option

_NOT_PHASED: dict[str, tuple[object, str]] = {
    "training.compile": ("none", "takes layers that stay in memory"),
    "parallel.pipeline_parallel": (1, "spreads layers over ranks"),
    "parallel.tensor_parallel": (1, "cuts layers that stay in memory"),
    "checkpoint.background": (False, "copies all state into memory"),
    "sparsity.linears": ((), "keeps blocks in memory"),
    "sparsity.embedding_block_size": (None, "keeps blocks in memory"),
}
"""Options that exclude phased execution, each with the value that does not, and why."""


@dataclass(frozen=True, kw_only=True)
class MemoryConfig:
    """What to recompute or to move off the device instead of keeping it there."""

    execution: Literal["resident", "phased"] = option(
        "resident",
        help="what the device holds during a step: resident: the whole model; phased: a layer at a time, for all "
        "micro-batches, while files (for a CPU) or the host's memory (for a GPU) hold the rest",
    )
    scratch: str | None = option(
        None,
        help="folder for the files of phased execution; none: the run's folder for a CPU, the host's memory for a GPU",
        path=True,
    )
    recompute: Literal["all", "attention"] | None = option(
        None,
        help="activations of layers to recompute in the backward pass: all but a layer's input, or those of attention "
        "between its projections; none: keep all",
    )
    recompute_layers: tuple[int, ...] = option(
        (), help="layers that recompute, counted from 0; []: every layer", minimum=0
    )
    recompute_budget: float | None = option(
        None,
        help="MiB of activations that the layers of a rank may keep for a micro-batch: the first layers that fit keep "
        "theirs, the others recompute; none: no layer keeps them",
        minimum=0,
    )
    offload_activations: bool = option(
        False, help="keep the activations of layers in the host's memory until the backward pass; for a GPU"
    )
    offload_optimizer: bool = option(
        False, help="keep the optimizer state in the host's memory between updates; for a GPU"
    )
    vocabulary_chunks: int = option(
        1,
        help="parts of the vocabulary that the head takes in turn, for fewer logits at a time; 1: all at once",
        minimum=1,
    )

    def problems(self) -> list[Problem]:
        """List conflicting options."""
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
        """Yield listed layers that the model does not have, and what ``recipe`` combines with phased execution."""
        num_layers: int | None = getattr(recipe.model, "num_layers", None)  # a model of one's own may count otherwise
        if num_layers is not None and (strays := [layer for layer in self.recompute_layers if layer >= num_layers]):
            message = f"layer {strays[0]} does not exist; the layers are 0 to {num_layers - 1}"
            yield Problem(("memory.recompute_layers", "model.num_layers"), message)
        for key, (safe, reason) in _NOT_PHASED.items():
            if self.execution == "phased" and attrgetter(key)(recipe) != safe:
                name = key.rpartition(".")[2]
                message = f'{name} {reason}; remove it, or set memory.execution to "resident"'
                yield Problem(("memory.execution", key), message)
