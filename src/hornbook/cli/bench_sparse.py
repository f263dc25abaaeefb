"""``hornbook bench sparse``: time block-sparse and dense linear layers.

hornbook bench sparse --threads 1
hornbook bench sparse --sizes 512 2048 --sparsity 0.9 --block-size 16 --dtype fp32 --json
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, get_args

from hornbook.cli.arguments import Number, add_device_arguments, positive_integer, prepared_device
from hornbook.cli.table import print_columns
from hornbook.config.options import Bounds, Spec
from hornbook.config.sparsity import BLOCK_SIZES, Kernel

if TYPE_CHECKING:
    from hornbook.measure.sparse_speed import PatternUpdate, Speed

_DEFAULTS: dict[bool, dict[str, Any]] = {
    False: {
        "sizes": [768, 3072],
        "tokens": 1024,
        "sparsity": [0.75, 0.9, 0.95],
        "block_size": [4, 8, 16, 32, 64],
        "dtype": ["fp32", "bf16"],
    },
    True: {"sizes": [2048, 8192], "tokens": 16384, "sparsity": [0.9], "block_size": [32, 64, 128], "dtype": ["bf16"]},
}
"""Defaults for a CPU (False) and a GPU (True)."""


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare ``bench sparse``."""
    sparse = commands.add_parser(
        "sparse",
        help="time block-sparse linear layers",
        description="Time block-sparse linear layers, a feed-forward training step with them, and a pattern "
        "update, compared with dense layers of the same dtype.",
    )
    sparse.add_argument(
        "--sizes",
        type=positive_integer,
        nargs=2,
        metavar=("IN", "OUT"),
        help="hidden size and feed-forward size (default: 768 3072; on a GPU 2048 8192)",
    )
    sparse.add_argument("--tokens", type=positive_integer, help="tokens per call (default: 1024; on a GPU 16384)")
    sparse.add_argument(
        "--sparsity",
        type=Number(Spec(type=float, bounds=Bounds(minimum=0, below=1))),
        nargs="+",
        metavar="S",
        help="shares of missing blocks (default: 0.75 0.9 0.95; on a GPU 0.9)",
    )
    sparse.add_argument(
        "--block-size",
        type=int,
        choices=BLOCK_SIZES,
        nargs="+",
        help="rows and columns of a block (default: 4 8 16 32 64; on a GPU 32 64 128)",
    )
    sparse.add_argument(
        "--dtype",
        choices=("fp32", "bf16"),
        nargs="+",
        help="dtypes of the activations (default: fp32 bf16; on a GPU bf16)",
    )
    sparse.add_argument("--kernel", choices=get_args(Kernel), default="auto", help="sparsity.kernel")
    sparse.add_argument("--rounds", type=positive_integer, default=7, help="measured calls of each")
    add_device_arguments(sparse)
    sparse.set_defaults(handler=sparse_command)


def sparse_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Time every combination of dtype, sparsity and block size, and a pattern update for each block size."""
    import torch

    from hornbook.measure.sparse_speed import Case, measure_case, measure_update
    from hornbook.parallel.device import DTYPES

    device = prepared_device(arguments)
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    chosen = {**_DEFAULTS[device.type != "cpu"], **given}
    num_in, num_out = chosen["sizes"]
    print(
        f"{num_in} <-> {num_out}, {chosen['tokens']:,} tokens, {device}, {torch.get_num_threads()} "
        "threads; ms, median and interquartile range"
    )
    rows, updates = [], []
    for dtype in chosen["dtype"]:
        for block_size in chosen["block_size"]:
            for sparsity in chosen["sparsity"]:
                case = Case(
                    num_in=num_in,
                    num_out=num_out,
                    num_tokens=chosen["tokens"],
                    block_size=block_size,
                    density=1.0 - sparsity,
                    dtype=DTYPES[dtype],
                    device=device,
                    kernel=arguments.kernel,
                )
                speed = measure_case(case, arguments.rounds)
                rows.append({"dtype": dtype, "block_size": block_size, "sparsity": sparsity, **asdict(speed)})
                _print_speed(dtype, block_size, sparsity, speed)
            update = measure_update(case, arguments.rounds)
            updates.append({"dtype": dtype, "block_size": block_size, "sparsity": sparsity, **asdict(update)})
            _print_update(block_size, update)
    return {
        "device": str(device),
        "threads": torch.get_num_threads(),
        "sizes": [num_in, num_out],
        "tokens": chosen["tokens"],
        "rows": rows,
        "pattern_updates": updates,
    }


def _print_speed(dtype: str, block_size: int, sparsity: float, speed: "Speed") -> None:
    print(f"{dtype}, blocks of {block_size}, {sparsity:.4g} sparse; kernel {speed.kernel}: {speed.reason}")
    rows: list[Sequence[str]] = [("", "dense", "", "sparse", "", "ratio")]
    for name, dense in speed.dense.items():
        sparse = speed.sparse[name]
        cells = [text for timing in (dense, sparse) for text in (f"{timing.median * 1e3:.2f}", f"±{timing.spread:.0%}")]
        rows.append((name.replace("_", " "), *cells, f"{dense.median / sparse.median:.2f}"))
    print_columns(rows, right=(1, 2, 3, 4, 5), indent="  ")
    print(f"  products {speed.products_ratio:.2f}x, feed-forward step {speed.feed_forward_ratio:.2f}x as fast as dense")


def _print_update(block_size: int, update: "PatternUpdate") -> None:
    print(
        f"pattern update of a GPT layer, blocks of {block_size}: "
        f"{update.update_seconds * 1000.0:.1f} ms; step: {update.step_seconds * 1000.0:.1f} ms; "
        f"{update.share:.2%} of the time with an update every 100 steps"
    )
