"""Phased execution: each part of the model is loaded to the device in turn and processes all micro-batches.

::

    forward     embedding  b0 b1 b2 | block 0  b0 b1 b2 | block 1  b0 b1 b2 |      b: micro-batch
    both                                                                    | head  b0 b1 b2
    backward    embedding  b0 b1 b2 | block 0  b0 b1 b2 | block 1  b0 b1 b2 |      forward again, then backward

    rows        0: output of the embedding    1: output of block 0    ...    and one row of gradients, reused by all

So weights are loaded twice a step, independent of the number of micro-batches, and hidden states between layers are
stored and loaded instead (``Rows``). Graphcore's PopXL calls this phased, or batch-serialised, execution. Sums are
accumulated in the same order as in resident execution, so results agree bit for bit.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hornbook.engine.phased_home import Leaves, PhasedHome
from hornbook.engine.spaces import Lane, Space
from hornbook.engine.state import TrainState
from hornbook.model import LanguageModel
from hornbook.objective import Objective, weighted_loss
from hornbook.ops.operators import scalar_with_gradient
from hornbook.samples.batches import Batch, to_device

Result = TypeVar("Result")


class Phased:
    """The ``Executor``, and with ``forward`` the ``Forward``, of a model whose weights are in a ``PhasedHome``.

    Args:
        home: of the model.
        device: that computes.
    """

    def __init__(self, home: PhasedHome, device: torch.device) -> None:
        self.home, self._model, self._device = home, home.model, device
        self._blocks = [f"blocks.{layer}" for layer in range(len(home.model.blocks))]
        self.rows = Rows(home.rows, len(self._blocks), home.model)

    def __call__(
        self,
        state: TrainState,
        micro_batches: Sequence[Batch],
        objective: Objective,
        counts: Mapping[str, int],
        begin: Callable[[int], None],
    ) -> dict[str, Tensor]:
        """Run all micro-batches through one part after the other (see ``Executor``).

        ``begin`` is called for each micro-batch of each phase.
        """
        rows = self.rows
        rows.lay_out(micro_batches)
        self.home.restart_traffic()

        def batches(*loaded: int) -> Iterator[tuple[int, Batch, list[Tensor]]]:
            with closing(rows.read(loaded)) as states:
                for number, (micro_batch, tensors) in enumerate(zip(micro_batches, states, strict=True)):
                    begin(number)
                    yield number, to_device(micro_batch, self._device), tensors

        parts = ["embedding", *self._blocks, "head", *reversed(self._blocks), "embedding"]
        with closing(self.home.fetched(parts)) as fetched:
            self._embed(next(fetched), batches())
            for layer in range(len(self._blocks)):
                self._compute(layer, next(fetched), batches(layer))
            totals = self._both(next(fetched), batches(len(self._blocks)), objective, counts)
            for layer in reversed(range(len(self._blocks))):
                self._return(layer, next(fetched), batches(layer, rows.gradients))
            self._return_embedding(next(fetched), batches(rows.gradients))
        self.home.settle()
        return totals

    @torch.no_grad()
    def _embed(self, leaves: Leaves, batches: Iterator[tuple[int, Batch, list[Tensor]]]) -> None:
        for number, batch, _ in batches:
            self.rows.write(0, number, self._embedded(leaves, batch))

    @torch.no_grad()
    def _compute(self, layer: int, leaves: Leaves, batches: Iterator[tuple[int, Batch, list[Tensor]]]) -> None:
        for number, batch, states in batches:
            self.rows.write(layer + 1, number, self._block(layer, leaves, states.pop(), batch))

    def _both(
        self,
        leaves: Leaves,
        batches: Iterator[tuple[int, Batch, list[Tensor]]],
        objective: Objective,
        counts: Mapping[str, int],
    ) -> dict[str, Tensor]:
        """Run the head forward and backward; return the sums of the terms."""
        totals = {name: torch.zeros((), dtype=torch.float32, device=self._device) for name in objective.weights}
        for number, batch, states in batches:
            x_BTD = states.pop().requires_grad_()
            sums = functional_call(self._model.head, leaves, (objective.sums, x_BTD, batch))
            weighted_loss(sums, counts, objective.weights).backward()  # type: ignore[no-untyped-call]
            self.rows.write(self.rows.gradients, number, _gradient(x_BTD))
            totals = {name: total + sums[name].detach() for name, total in totals.items()}
            del sums, x_BTD  # free the memory before the micro-batch after the next one is read
        self.home.keep("head", leaves)
        return totals

    def _return(self, layer: int, leaves: Leaves, batches: Iterator[tuple[int, Batch, list[Tensor]]]) -> None:
        """Run a block forward again, and backward."""
        for number, batch, states in batches:
            gradient, x_BTD = states.pop(), states.pop().requires_grad_()
            y_BTD = self._block(layer, leaves, x_BTD, batch)
            scalar_with_gradient(y_BTD, gradient).backward()  # type: ignore[no-untyped-call]
            self.rows.write(self.rows.gradients, number, _gradient(x_BTD))
            del gradient, x_BTD, y_BTD  # free the memory before the micro-batch after the next one is read
        self.home.keep(self._blocks[layer], leaves)

    def _return_embedding(self, leaves: Leaves, batches: Iterator[tuple[int, Batch, list[Tensor]]]) -> None:
        for _, batch, states in batches:
            scalar_with_gradient(self._embedded(leaves, batch), states.pop()).backward()  # type: ignore[no-untyped-call]
        self.home.keep("embedding", leaves)

    @torch.no_grad()
    def forward(self, model: LanguageModel, batch: Batch, use: Callable[[Any, Tensor, Batch], Result], /) -> Result:
        """Run one batch through one part after the other; see ``Forward``."""
        batch = to_device(batch, self._device)
        with closing(self.home.fetched(["embedding", *self._blocks, "head"])) as fetched:
            x_BTD = self._embedded(next(fetched), batch)
            for layer in range(len(self._blocks)):
                x_BTD = self._block(layer, next(fetched), x_BTD, batch)
            result: Result = functional_call(model.head, next(fetched), (use, x_BTD, batch))
        return result

    def _embedded(self, leaves: Leaves, batch: Batch) -> Tensor:
        given = (batch["tokens"], batch["positions"], batch["keys"], batch.get("segments"))
        x_BTD: Tensor = functional_call(self._model.embedding, leaves, given)
        return x_BTD

    def _block(self, layer: int, leaves: Leaves, x_BTD: Tensor, batch: Batch) -> Tensor:
        block: nn.Module = self._model.blocks[layer]
        y_BTD: Tensor = functional_call(block, leaves, (x_BTD, self._model.make_context(batch)))
        return y_BTD


class Rows:
    """The stored hidden states: a row of micro-batches for each layer's output, and one row of gradients.

    Args:
        space: stores them.
        num_layers: of the model.
        model: determines the size and dtype of hidden states.
    """

    def __init__(self, space: Space, num_layers: int, model: LanguageModel) -> None:
        self._space, self.reader, self.writer = space, Lane("rows-in"), Lane("rows-out")
        self._num_rows, self._hidden_size = num_layers + 2, model.hidden_size
        self._dtype = model.compute_dtype
        self._shapes: list[tuple[int, ...]] = []
        self._offsets: list[int] = []
        """Offsets of the micro-batches in a row, in bytes, and of the end of the row."""
        self.gradients = num_layers + 1
        """The number of the row of gradients."""

    def lay_out(self, micro_batches: Sequence[Batch]) -> None:
        """Reserve space for the rows of a step; raises StorageError if there is not enough."""
        self._shapes = [(*batch["tokens"].shape, self._hidden_size) for batch in micro_batches]
        sizes = [batch["tokens"].numel() * self._hidden_size * self._dtype.itemsize for batch in micro_batches]
        self._offsets = [0, *accumulate(sizes)]
        self._space.reserve(self._num_rows * self._offsets[-1])

    def _offset(self, row: int, number: int) -> int:
        return row * self._offsets[-1] + self._offsets[number]

    def read(self, rows: Sequence[int]) -> Generator[list[Tensor], None, None]:
        """Yield the tensors of each micro-batch in ``rows``, while the next ones are being loaded."""
        self.writer.settle()
        numbers = range(len(self._shapes))
        with closing(self.reader.ahead([partial(self._load, rows, number) for number in numbers])) as loaded:
            yield from loaded

    def _load(self, rows: Sequence[int], number: int) -> list[Tensor]:
        shape = self._shapes[number]
        return [self._space.load(self._offset(row, number), shape, self._dtype) for row in rows]

    def write(self, row: int, number: int, states: Tensor) -> None:
        """Write the hidden states, or gradients, of a micro-batch to a row in the background."""
        self.writer.behind(partial(self._space.save, self._offset(row, number), states.detach()))


def _gradient(x_BTD: Tensor) -> Tensor:
    assert x_BTD.grad is not None, "the objective uses no hidden states"
    return x_BTD.grad
