"""How the ranks of a run share its work, and which dimension of which weight tensor parallelism splits.

::

    world of 8, data_parallel = "hybrid", shard_size = 2, tensor_parallel = 2

      replicate 2 x shard 2 x tensor 2        rank = (replica · 2 + shard) · 2 + tensor
      `--- data 4 ---'                        4 shares of the global batch
                 `---- holders 4 ---'         4 ranks hold one copy of the weights

Tensor-parallel ranks exchange activations in every layer, so they are neighbors; replicas exchange gradients once a
step. The size of the data axis follows from the size of the world. Nothing here imports torch, so that a plan of a run
can use the same sizes and the same table.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Literal, NamedTuple

from hornbook.config.models import BertConfig, GPTConfig, GroupBertConfig, RobertaConfig, TransformerConfig
from hornbook.config.options import Problem, option
from hornbook.errors import UserError
from hornbook.wording import counted

TENSOR_CUTS: Final = {
    "embedding.tokens": 0,
    "head.table": 0,
    "blocks.*.attention.qkv.weight": 1,
    "blocks.*.attention.qkv.bias": 1,
    "blocks.*.attention.out.weight": 1,
    "blocks.*feed_forward.up.weight": 0,
    "blocks.*feed_forward.up.bias": 0,
    "blocks.*feed_forward.grouped.weight": 0,
    "blocks.*feed_forward.grouped.bias": 0,
    "blocks.*feed_forward.down.weight": 1,
}
"""Pattern of parameter names -> the dimension that tensor parallelism splits. All other parameters are replicated:
norms, position tables, GroupBERT's convolution, heads of labeled data.

The first layer of a pair is split by its outputs and the second by its inputs (Shoeybi et al. 2019, section 3); the
token table by its rows, query, key and value by heads, and GroupBERT's grouped layer by whole groups.
"""
_DIVISIBLE: Final = (GPTConfig, BertConfig, RobertaConfig, GroupBertConfig)


class Sizes(NamedTuple):
    """Ranks along each axis; their product is the size of the world."""

    replicate: int
    shard: int
    tensor: int


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """How the ranks of a run share the work; the numbers of a run do not depend on it."""

    data_parallel: Literal["replicate", "shard", "hybrid"] = option(
        "replicate",
        help="data-parallel ranks hold all weights, gradients and moments (replicate), a share of them (shard), or a "
        "share within groups of shard_size ranks (hybrid)",
    )
    shard_size: int | None = option(None, help="ranks of a group that share one copy of the weights", minimum=2)
    tensor_parallel: int = option(
        1, help="ranks that split each layer: vocabulary, attention heads, feed-forward", minimum=1
    )

    def problems(self) -> list[Problem]:
        """List conflicting options."""
        if (self.data_parallel == "hybrid") == (self.shard_size is not None):
            return []
        message = 'shard_size and data_parallel = "hybrid" go together; set both, or remove shard_size'
        return [Problem(("shard_size", "data_parallel"), message)]

    def sizes(self, num_ranks: int) -> Sizes:
        """Return the ranks along each axis of a world of ``num_ranks``.

        Raises:
            UserError: the sizes do not multiply to the size of the world.
        """
        unit = self.tensor_parallel * (self.shard_size or 1)
        if num_ranks % unit:
            parts = [f"tensor_parallel {self.tensor_parallel}"]
            parts += [f"shard_size {self.shard_size}"] if self.shard_size else []
            raise UserError(
                f"[parallel] needs a multiple of {counted(unit, 'rank')} ({' x '.join(parts)}), and the run has "
                f"{num_ranks:,}: start {unit} with `torchrun --nproc-per-node {unit} -m hornbook train ...`, or change "
                "the sizes"
            )
        data = num_ranks // self.tensor_parallel
        shard = {"replicate": 1, "shard": data, "hybrid": self.shard_size or 1}[self.data_parallel]
        return Sizes(replicate=data // shard, shard=shard, tensor=self.tensor_parallel)

    def conflicts(self, model: TransformerConfig) -> Iterator[Problem]:
        """Yield what of ``model`` tensor parallelism cannot divide; a model of one's own it cannot divide at all."""
        if self.tensor_parallel == 1:
            return
        if type(model) not in _DIVISIBLE:
            message = "tensor parallelism does not know the weights of this family; set tensor_parallel to 1"
            yield Problem(("parallel.tensor_parallel", "model.family"), message)
            return
        divided = {"num_heads": model.num_heads, "feed_forward_size": model.effective_feed_forward_size}
        if isinstance(model, GroupBertConfig):
            divided["feed_forward_groups"] = model.feed_forward_groups
        for key, size in divided.items():
            if size % self.tensor_parallel:
                message = f"tensor_parallel must divide {key}, which is {size:,}; change one of them"
                yield Problem(("parallel.tensor_parallel", f"model.{key}"), message)


def cut_dimension(name: str) -> int | None:
    """Return the dimension of a parameter that tensor parallelism splits, None if it is replicated."""
    return next((dimension for pattern, dimension in TENSOR_CUTS.items() if fnmatchcase(name, pattern)), None)
