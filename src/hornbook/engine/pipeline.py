"""Pipeline parallelism: each rank holds some of the layers and sends hidden states to the next.

::

    rank 0   embedding, blocks 0 1    F0 F1 F2    B0 F3 B1    B2    B3        F: forward, B: backward of a micro-batch
    rank 1   blocks 2 3, head            F0 B0 F1 B1 F2 B2 F3 B3              (schedule 1f1b)

The schedules are PyTorch's (`torch.distributed.pipelining`). Their input is the *number* of a micro-batch: each stage
looks up the batch, since all ranks of a pipeline load the same ones. Hidden states are sent as ``[tokens, D]``, padded
to the largest micro-batch. The last stage computes the loss, divided by global counts. Each weight processes the
micro-batches in order, so that gradients equal those of one process bit for bit.

The embedding's rank and the head's rank each hold a tied table: its values are sent to the head before they are used,
its gradient is sent back once a step. The head's copy is in no optimizer and no checkpoint. With the schedule v-shaped,
embedding and head are on the first rank, which holds the table once::

    rank 0   stage 0: embedding, block 0      stage 3: block 3, head
    rank 1       stage 1: block 1         stage 2: block 2
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from hornbook.config import ParallelConfig
from hornbook.config.parallel import SPLITS_NO_BACKWARD, rank_of, rounds_of
from hornbook.engine.state import TrainState
from hornbook.model import LanguageModel
from hornbook.objective import Objective, weighted_loss
from hornbook.ops.native.kernels import gradients_returned
from hornbook.parallel.ranks import blocked, local
from hornbook.parallel.world import World
from hornbook.samples.batches import Batch, to_device

Result = TypeVar("Result")


class Pipeline:
    """The ``Executor``, and with ``forward`` the ``Forward``, of a model whose layers are spread over ranks.

    Args:
        model: on the meta device; ``allocate(device, self.stages)`` allocates this rank's layers.
        world: has the ranks of the pipeline.
        config: has the schedule.
        stages: the layers of each stage; `hornbook.config.parallel.rank_of` maps stages to ranks.
    """

    def __init__(
        self, model: LanguageModel, world: World, config: ParallelConfig, stages: Sequence[Sequence[int]]
    ) -> None:
        self._model, self._ranks, self._device, self._kind = (
            model,
            world.pipeline,
            world.device,
            config.pipeline_schedule,
        )
        self._step = _Step(num_slices=world.sequence.size)
        self._rank_of_stage = [rank_of(number, world.pipeline.size, self._kind) for number in range(len(stages))]
        own = [number for number, rank in enumerate(self._rank_of_stage) if rank == world.pipeline.rank]
        self._stages = {number: Stage(model, number, stages, self._step, is_first=number == own[0]) for number in own}
        self._table = _TiedTable(model, world, head_rank=self._rank_of_stage[-1])
        self._schedules: dict[int, Any] = {}
        self.idle: list[float] = []
        """The share of the last step's forward and backward passes that each pipeline rank waited for others. Measured
        on CPUs only: a GPU's waits do not block the process."""

    @property
    def stages(self) -> "list[Stage]":
        """The stages of this rank."""
        return [*self._stages.values()]

    def __call__(
        self,
        state: TrainState,
        micro_batches: Sequence[Batch],
        objective: Objective,
        counts: Mapping[str, int],
        begin: Callable[[int], None],
    ) -> dict[str, Tensor]:
        """Run all micro-batches through the pipeline, round by round (see ``Executor``)."""
        rounds = rounds_of(len(micro_batches), self._ranks.size, self._kind)
        self._table.copy()
        totals = {name: torch.zeros((), device=self._device) for name in objective.weights}

        def loss(head: Any, x_BTD: Tensor, batch: Batch) -> Tensor:
            sums = objective.sums(head, x_BTD, batch)
            for name, total in totals.items():
                total += sums[name].detach()
            return weighted_loss(sums, counts, objective.weights)

        step, first, start = self._step, 0, time.perf_counter()
        step.use = loss
        if (widest := max(map(step.width, micro_batches))) > step.capacity:
            step.capacity = widest  # larger buffers between stages
            self._schedules.clear()
        with blocked() as waits, nullcontext() if self._kind in SPLITS_NO_BACKWARD else gradients_returned():
            for size in rounds:
                step.batches = micro_batches[first : first + size]
                step.begin = lambda number, first=first: begin(first + number)
                first += size
                numbers = torch.arange(size)
                given = (numbers,) if 0 in self._stages else ()
                target = {"target": numbers} if len(self._rank_of_stage) - 1 in self._stages else {}
                self._schedule(size).step(*given, number=numbers, return_outputs=False, **target)
        own_idle = sum(waits) / (time.perf_counter() - start)
        self._table.return_gradient()
        for part in state.home.parts:
            state.home.keep_gradients(part)
        on_cpu = self._device.type == "cpu"
        idle = [own_idle * (rank == self._ranks.rank) for rank in range(self._ranks.size * on_cpu)]
        everywhere = self._ranks.sum_tensor(torch.stack([*totals.values(), *torch.tensor(idle, device=self._device)]))
        self.idle = everywhere[len(totals) :].tolist() if on_cpu else []
        return dict(zip(totals, everywhere.unbind(), strict=False))

    @torch.no_grad()
    def forward(self, model: LanguageModel, batch: Batch, use: Callable[[Any, Tensor, Batch], Result], /) -> Result:
        """Run one batch through the stages in order and return the result of the last one on all ranks.

        See ``Forward``. ``use`` runs only on the head's rank.
        """
        self._table.copy()
        step, ranks, width = self._step, self._ranks, self._step.width(batch)
        result: Any = None
        step.batches, step.use, step.begin = [batch], use, None
        for number, stage in self._stages.items():
            wire = self._wire(max(width, step.capacity))
            if number - 1 in self._stages:
                wire = result
            elif number:
                ranks.move(wire[:width], self._rank_of_stage[number - 1], ranks.rank)
            result = stage(wire, number=torch.tensor([0]))
            stage.release()
            if stage.head is None and number + 1 not in self._stages:
                ranks.move(result[:width], ranks.rank, self._rank_of_stage[number + 1])
        on_host = ranks.share(_copied(result, torch.device("cpu")), self._rank_of_stage[-1])
        shared: Result = _copied(on_host, self._device)
        return shared

    def _wire(self, num_tokens: int) -> Tensor:
        hidden_size, dtype = self._model.hidden_size, self._model.compute_dtype
        return torch.empty(num_tokens, hidden_size, dtype=dtype, device=self._device)

    def _schedule(self, size: int) -> Any:
        """Return the schedule of a round of ``size`` micro-batches, created on first use.

        It has a receive buffer for each micro-batch. Without given shapes, PyTorch would infer them by a forward pass.
        """
        if size not in self._schedules:
            from torch.distributed import pipelining

            wire, loss = self._wire(self._step.capacity).requires_grad_(), torch.zeros((), requires_grad=True)
            stages = [
                pipelining.PipelineStage(
                    stage,
                    number,
                    len(self._rank_of_stage),
                    self._device,
                    input_args=(wire if number else torch.zeros(1, dtype=torch.int64),),
                    output_args=(wire if stage.head is None else loss.to(self._device),),
                    group=self._ranks.tensors,
                )
                for number, stage in self._stages.items()
            ]
            make, one_stage = {
                "gpipe": (pipelining.ScheduleGPipe, True),
                "1f1b": (pipelining.Schedule1F1B, True),
                "interleaved": (pipelining.ScheduleInterleaved1F1B, False),
                "zero-bubble": (pipelining.ScheduleInterleavedZeroBubble, False),
                "v-shaped": (pipelining.ScheduleZBVZeroBubble, False),
            }[self._kind]
            given = stages[0] if one_stage else stages
            self._schedules[size] = make(given, size, loss_fn=lambda loss, number: loss, scale_grads=False)
        return self._schedules[size]


@dataclass
class _Step:
    """The state of the current step that the stages of a rank share."""

    batches: Sequence[Batch] = ()
    """The micro-batches of the round."""
    use: Callable[[Any, Tensor, Batch], Any] | None = None
    """Called by the last stage with the head, the hidden states and the batch."""
    begin: Callable[[int], None] | None = None
    """Called with the number of each micro-batch of a training step before this rank computes it."""
    capacity: int = 0
    """Tokens that a buffer between stages (a wire) holds."""
    num_slices: int = 1
    """Sequence-parallel ranks, each of which sends its slice of the tokens of a row."""

    def width(self, batch: Batch) -> int:
        """Return how many tokens of a batch are sent between stages."""
        num_rows, num_tokens = batch["tokens"].shape
        return num_rows * -(-num_tokens // self.num_slices)


class Stage(nn.Module):
    """A pipeline stage: some blocks of a model, with the embedding in the first stage and the head in the last.

    Args:
        model: the whole model.
        number: of this stage.
        stages: the layers of each stage.
        step: has the micro-batches and the function that the last stage computes.
        is_first: whether this is the rank's first stage.
    """

    def __init__(
        self, model: LanguageModel, number: int, stages: Sequence[Sequence[int]], step: _Step, *, is_first: bool
    ) -> None:
        super().__init__()
        self.embedding = None if number else model.embedding
        self.blocks = nn.ModuleList(model.blocks[layer] for layer in stages[number])
        self.head = model.head if number == len(stages) - 1 else None
        self._make_context, self._step, self._is_first = model.make_context, step, is_first

    @property
    def parts(self) -> list[nn.Module]:
        """The modules of this stage: the embedding, if it has it, its blocks, and the head, if it has it."""
        return [part for part in (self.embedding, *self.blocks, self.head) if part is not None]

    def forward(self, wire: Tensor, number: Tensor) -> Any:
        """Return the output ``[capacity, D]`` for the micro-batch ``number``; the last stage returns its result."""
        step, device = self._step, next(self.parameters()).device
        if self._is_first and step.begin is not None:
            step.begin(int(number))
        batch = to_device(step.batches[int(number)], device)
        tokens_BT = batch["tokens"]
        if self.embedding is None:
            x_BTD = wire[: step.width(batch)].view(len(tokens_BT), -1, wire.shape[1])
        else:
            x_BTD = self.embedding(tokens_BT, batch["positions"], batch["keys"], batch.get("segments"))
        if len(self.blocks):
            context = self._make_context(batch)
            for block in self.blocks:
                x_BTD = block(x_BTD, context)
        if self.head is None:
            return functional.pad(x_BTD.flatten(0, 1), (0, 0, 0, max(step.capacity - step.width(batch), 0)))
        return self.head(step.use, x_BTD, batch)

    def release(self) -> None:
        """Free weights that were gathered for a forward pass without a backward pass."""
        for module in self.modules():
            reshard = getattr(module, "reshard", None)
            if reshard is not None:
                reshard()


class _TiedTable:
    """The tied token table of a pipeline, whose head may be on another rank than the embedding.

    On the same rank, they share the table, or each has a shard of it.
    """

    def __init__(self, model: LanguageModel, world: World, head_rank: int) -> None:
        self._model, self._ranks, self._head_rank, self._is_current = model, world.pipeline, head_rank, False
        if self._ranks.rank == head_rank and (head_rank or world.is_sharded):
            model.head.hold_copy()

    def copy(self) -> None:
        """Copy the values of the table to the head, unless they are current."""
        if not self._model.head.is_tied or self._is_current:
            return
        if self._head_rank:
            table = self._model.head.table if self._ranks.rank else self._model.embedding.tokens
            self._ranks.move(local(table.detach()), 0, self._head_rank)
        elif not self._ranks.rank:
            self._model.tie()
        self._is_current = True

    def return_gradient(self) -> None:
        """Send the head's gradient of the table to the embedding's rank, which adds it; an update follows."""
        self._is_current = False
        table, ranks = self._model.head.table, self._ranks
        if not self._head_rank or not self._model.head.is_tied or not ranks.sum_integers([table.grad is not None])[0]:
            return
        if ranks.rank == 0:
            table.grad = torch.empty_like(table, dtype=table.grad_dtype)
        ranks.move(local(table if table.grad is None else table.grad), self._head_rank, 0)
        if ranks.rank:
            table.grad = None


def _copied(result: Any, device: torch.device) -> Any:
    """Return a copy on ``device`` of a ``Forward``'s result, a tensor or a mapping or tuple of tensors."""
    if isinstance(result, Tensor):
        return result.detach().to(device, copy=True)
    if isinstance(result, Mapping):
        return {name: _copied(value, device) for name, value in result.items()}
    return tuple(_copied(value, device) for value in result) if isinstance(result, tuple) else result
