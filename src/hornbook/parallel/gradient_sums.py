"""All-reduce of gradients in buckets, overlapped with the backward pass.

::

    backward     head | block 3 | block 2 | block 1 | block 0 | embedding
    sums                [ head, block 3 ]   [ blocks 2 1 ]      [ ... ]  [ token table ]
                  a bucket is sent when its last gradient is ready

A bucket is one operation on a list of gradients, which it changes in place: NCCL sums them in one kernel, and no
gradient is copied. gloo copies a bucket to one tensor and back.

All ranks send the same buckets in the same order: a rank that skipped a module sends zeros for it after the backward
pass. The token table is last, since its two gradients are added first.
"""

from collections.abc import Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from hornbook.config.shapes import BUCKET_ELEMENTS
from hornbook.parallel.ranks import Ranks, local


class GradientSums:
    """The sum of the parameters' gradients over ranks, in place, in their dtype, which is one for all.

    Args:
        parameters: ideally in the order in which the backward pass computes their gradients; the last one's gradient
            changes after the backward pass. The same on all ranks.
        ranks: two or more.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], ranks: Ranks) -> None:
        self._ranks = ranks
        self._buckets = _buckets(parameters)
        self._nodes: list[Node] = []
        self._missing: list[int] = []
        self._under_way: list[dist.Work] = []
        self._zeros: dict[int, Tensor] = {}
        """By the identity of a parameter without a gradient: what is sent for it."""

    def expect(self) -> None:
        """Send buckets during the next backward pass, the last of a step."""
        if not self._nodes:
            self._watch()
        self._missing = [len(bucket) for bucket in self._buckets]
        self._missing[-1] += 1

    def finish(self) -> None:
        """Send the remaining buckets, and wait for all sums.

        Afterwards, a parameter has a gradient if it had one on any rank.
        """
        while len(self._under_way) < len(self._buckets):
            self._send()
        parameters = [parameter for bucket in self._buckets for parameter in bucket]
        holders = self._ranks.sum_integers([parameter.grad is not None for parameter in parameters])
        for work in self._under_way:
            self._ranks.end_sum(work)
        for parameter, count in zip(parameters, holders, strict=True):
            if count and parameter.grad is None:
                parameter.grad = self._zeros[id(parameter)]
        self._missing, self._under_way, self._zeros = [], [], {}

    def _watch(self) -> None:
        """Let autograd call ``_note`` when a parameter's gradient is complete.

        Hooks of the nodes are also called where products have added to ``.grad``, which they do not do for parameters
        with hooks.
        """
        for number, bucket in enumerate(self._buckets):
            for parameter in bucket:
                self._nodes.append(get_gradient_edge(parameter).node)  # which lives as long as something refers to it
                self._nodes[-1].register_hook(partial(self._note, number))

    def _note(self, number: int, *gradients: object) -> None:
        """Count a gradient of a bucket, and send the buckets whose turn it is."""
        if not self._missing:
            return
        self._missing[number] -= 1
        while self._missing[len(self._under_way)] == 0:
            self._send()

    def _send(self) -> None:
        gradients = []
        for parameter in self._buckets[len(self._under_way)]:
            gradient = parameter.grad
            if gradient is None:
                gradient = torch.zeros_like(parameter.detach(), dtype=parameter.grad_dtype)
                self._zeros[id(parameter)] = gradient
            gradients.append(local(gradient))
        self._under_way.append(self._ranks.start_sums(gradients))


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
