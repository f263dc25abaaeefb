"""Bucketed all-reduce of gradients, overlapped with the backward pass.

::

    backward     head | block 3 | block 2 | block 1 | block 0 | embedding
    sums                [ head, block 3 ]   [ blocks 2 1 ]      [ ... ]  [ token table ]
                  a bucket is sent when its last gradient is ready, and copied back when it is summed

All ranks send the same buckets in the same order: a rank that skipped a module sends zeros for it after the backward
pass. The token table is last, since its two gradients are added first.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hornbook.config.shapes import BUCKET_ELEMENTS
from hornbook.parallel.ranks import Ranks, local


class GradientSums:
    """The sum of the parameters' gradients over ranks, in place, in their dtype.

    Args:
        parameters: ideally in the order in which the backward pass computes their gradients; the last one's gradient
            changes after the backward pass. The same on all ranks.
        ranks: two or more.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], ranks: Ranks) -> None:
        self._ranks = ranks
        self._buckets = _buckets(parameters)
        self._bucket_of = {id(parameter): n for n, bucket in enumerate(self._buckets) for parameter in bucket}
        self._missing: list[int] = []
        self._sent = 0
        self._under_way: list[tuple[list[nn.Parameter], Tensor, dist.Work]] = []
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._note)  # type: ignore[no-untyped-call]

    def expect(self) -> None:
        """Send buckets during the next backward pass, the last of a step."""
        self._missing = [len(bucket) for bucket in self._buckets]
        self._missing[-1] += 1

    def finish(self) -> None:
        """Send the remaining buckets, and wait for all sums.

        Afterwards, a parameter has a gradient if it had one on any rank.
        """
        while self._sent < len(self._buckets):
            self._send()
        parameters = [parameter for bucket in self._buckets for parameter in bucket]
        holders = self._ranks.sum_integers([parameter.grad is not None for parameter in parameters])
        for parameter, count in zip(parameters, holders, strict=True):
            if count and parameter.grad is None:
                parameter.grad = torch.empty_like(parameter, dtype=parameter.grad_dtype)
        self._collect(wait=True)
        self._missing, self._sent = [], 0

    def _note(self, parameter: Tensor) -> None:
        if not self._missing:
            return
        self._missing[self._bucket_of[id(parameter)]] -= 1
        while self._missing[self._sent] == 0:
            self._send()
            self._collect(wait=False)

    def _send(self) -> None:
        bucket = self._buckets[self._sent]
        flat = torch.cat([_flat(parameter) for parameter in bucket])
        self._under_way.append((bucket, flat, self._ranks.start_sum(flat)))
        self._sent += 1

    def _collect(self, *, wait: bool) -> None:
        """Copy finished sums back, with ``wait`` all of them, and free their memory."""
        while self._under_way and (wait or self._under_way[0][2].is_completed()):
            bucket, flat, work = self._under_way.pop(0)
            self._ranks.end_sum(work)
            sizes = [local(parameter.detach()).numel() for parameter in bucket]
            for parameter, part in zip(bucket, torch.split(flat, sizes), strict=True):
                if parameter.grad is not None:
                    gradient = local(parameter.grad)
                    gradient.copy_(part.view_as(gradient))


def _flat(parameter: nn.Parameter) -> Tensor:
    """Return this rank's part of the gradient as a vector, zeros if there is no gradient."""
    return (
        torch.zeros_like(local(parameter.detach()), dtype=parameter.grad_dtype).flatten()
        if parameter.grad is None
        else local(parameter.grad).flatten()
    )


def _buckets(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Return the parameters in groups of at most 16 MiB in fp32, or of one larger tensor."""
    buckets: list[list[nn.Parameter]] = [[]]
    size = 0
    for parameter in parameters:
        num = local(parameter.detach()).numel()
        if size and size + num > BUCKET_ELEMENTS:
            buckets.append([])
            size = 0
        buckets[-1].append(parameter)
        size += num
    return buckets
