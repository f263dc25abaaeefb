"""Measure training steps, checkpoints, block-sparse products, generation and corpus builds, or run named benchmarks.

hornbook bench step demo --peer transformers
hornbook bench step gpt2-small --processes 2
torchrun --nproc-per-node 8 -m hornbook bench step gpt2-small --parallel.data-parallel shard
hornbook bench generate demo --peer transformers --batch-size 1 8
hornbook bench corpus texts.jsonl --tokenizer tokenizers/mine --peer datasets
hornbook bench save gpt2-small --folder /scratch
hornbook bench sparse --sizes 512 2048 --sparsity 0.9 --block-size 16 --dtype fp32 --json
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from hornbook.cli import bench_run, bench_save, bench_step
from hornbook.cli.arguments import (
    COMPUTE,
    TOKENIZER_HELP,
    CommandParser,
    Number,
    add_device_arguments,
    add_recipe_arguments,
    positive_integer,
    thread_count,
)
from hornbook.cli.bench_step import PEERS, recipe_of
from hornbook.cli.table import print_columns
from hornbook.config.options import Bounds, Spec
from hornbook.config.sparsity import BLOCK_SIZES, Kernel
from hornbook.errors import UserError

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    commands = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
    bench_step.add_arguments(commands)
    generate = commands.add_parser(
        "generate", help="time text generation", description="Time greedy generation with a recipe's untrained model."
    )
    generate.add_argument(
        "--peer", choices=tuple(PEERS), help="also time this library, alternating, and print the ratio"
    )
    generate.add_argument("--rounds", type=positive_integer, default=5, help="measured texts of each")
    generate.add_argument(
        "--batch-size", type=positive_integer, nargs="+", default=[1, 8], help="texts per batch (default: 1 8)"
    )
    generate.add_argument("--prompt-length", type=positive_integer, default=64, help="tokens per prompt")
    generate.add_argument(
        "--output-length",
        type=Number(Spec(type=int, bounds=Bounds(minimum=2))),
        default=64,
        metavar="N",
        help="new tokens per text, the first timed separately",
    )
    generate.add_argument(
        "--compute",
        choices=COMPUTE[1:],
        nargs="+",
        help="dtypes of the activations (default: precision.compute; if it is auto, fp32 bf16)",
    )
    add_device_arguments(generate)
    add_recipe_arguments(generate)
    generate.set_defaults(handler=generate_command)
    corpus = commands.add_parser("corpus", help="time corpus builds", description="Time building a corpus from JSONL.")
    _add_corpus_arguments(corpus)
    add_sparse_arguments(commands)
    bench_save.add_arguments(commands)
    bench_run.add_arguments(commands, _check_words)


def _add_corpus_arguments(corpus: argparse.ArgumentParser) -> None:
    corpus.add_argument("source", type=Path, metavar="FILE", help="JSONL file to build a corpus from")
    corpus.add_argument("--tokenizer", required=True, metavar="PATH", help=TOKENIZER_HELP)
    corpus.add_argument("--field", default="text", metavar="NAME", help="JSONL field with the text")
    corpus.add_argument(
        "--peer", choices=("datasets",), help="also time this library, alternating, and print the ratio"
    )
    corpus.add_argument("--rounds", type=positive_integer, default=3, help="builds of each; the fastest counts")
    corpus.add_argument("--threads", type=thread_count, default=1, help="threads, or processes of --peer (default: 1)")
    corpus.set_defaults(handler=corpus_command)


def generate_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Time generation, and the peer's if requested, for each batch size and dtype."""
    from dataclasses import asdict

    from hornbook.measure.throughput import hornbook_generate, measure_generation, random_prompts
    from hornbook.parallel.device import prepare
    from hornbook.peers import transformers_generate

    recipe = recipe_of(arguments)
    device = prepare(arguments.device, arguments.threads)
    length, dtype = arguments.output_length, recipe.precision.compute
    dtypes = arguments.compute or (["fp32", "bf16"] if dtype == "auto" else [dtype])
    rows: list[dict[str, Any]] = []
    for batch_size in arguments.batch_size:
        prompts = random_prompts(
            recipe, batch_size=batch_size, prompt_length=arguments.prompt_length, num_tokens=length
        )
        contenders = {}
        for compute in dtypes:
            contenders[f"hornbook {compute}"] = hornbook_generate(recipe, prompts, device, compute)
            if arguments.peer:
                contenders[f"{arguments.peer} {compute}"] = transformers_generate(recipe, prompts, device, compute)
        speeds = measure_generation(
            contenders, batch_size=batch_size, num_tokens=length, device=device, rounds=arguments.rounds
        )
        found = [{"batch_size": batch_size, "contender": name, **asdict(speed)} for name, speed in speeds.items()]
        _print_generation(found)
        rows += found
    ratios = _ratios(rows, arguments.peer) if arguments.peer else []
    return {"recipe": recipe.name, "prompt_length": arguments.prompt_length, "rows": rows, "ratios": ratios}


def corpus_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Time corpus builds with and without tiktoken, and the peer's if requested."""
    from dataclasses import asdict

    from hornbook.measure.corpus_speed import (
        Contender,
        CorpusJob,
        build_with_hornbook,
        build_with_tokenizers,
        map_with_datasets,
        measure_corpus,
    )

    _refuse_missing(arguments.source)
    contenders: dict[str, Contender] = {"hornbook": build_with_hornbook, "hornbook (tokenizers)": build_with_tokenizers}
    if arguments.peer:
        contenders[arguments.peer] = map_with_datasets
    job = CorpusJob(
        source=arguments.source, field=arguments.field, tokenizer=arguments.tokenizer, threads=arguments.threads
    )
    speeds = measure_corpus(contenders, job, arguments.rounds)
    result: dict[str, Any] = {"contenders": {name: asdict(speed) for name, speed in speeds.items()}}
    for name, speed in speeds.items():
        print(f"{name:<24}{speed.megabytes_per_second:>9,.1f} MB/s{speed.tokens_per_second:>14,.0f} tokens/s")
    if arguments.peer:
        result["ratio"] = speeds[arguments.peer].seconds / speeds["hornbook"].seconds
        print(f"{result['ratio']:.2f} times as fast as {arguments.peer}")
    return result


def _check_words(words: Sequence[str]) -> None:
    """Raise a HornbookError if ``hornbook bench`` would reject the words before measuring anything."""
    parser = CommandParser(prog="hornbook bench")
    add_arguments(parser)
    arguments = parser.parse_args(words)
    if arguments.subcommand == "corpus":
        _refuse_missing(arguments.source)
        return
    recipe = recipe_of(arguments)
    if getattr(arguments, "processes", None):
        from hornbook.config.build import refuse_misfit

        refuse_misfit(recipe, arguments.processes)


def _refuse_missing(source: Path) -> None:
    if not source.is_file():
        raise UserError(f"{source}: no such file; expected a JSONL file")


def _print_generation(rows: list[dict[str, Any]]) -> None:
    print(f"batch of {rows[0]['batch_size']}")
    for row in rows:
        first = f"  {row['contender']:<20}first token{1e3 * row['first_token_seconds']:>10,.2f} ms"
        if row["token_seconds"] is None:
            print(f"{first}; the time per token is below the noise; increase --output-length or --rounds")
        else:
            speed = f"{row['tokens_per_second']:>10,.0f} tokens/s"
            print(f"{first}{1e3 * row['token_seconds']:>10,.3f} ms per token{speed}")


def _ratios(rows: list[dict[str, Any]], peer: str) -> list[dict[str, Any]]:
    """Return and print the ratios of the peer's time per token to hornbook's, for each batch size and dtype."""
    seconds = {(row["batch_size"], row["contender"]): row["token_seconds"] for row in rows}
    ratios = []
    for (batch_size, contender), ours in seconds.items():
        name, _, compute = contender.partition(" ")
        theirs = seconds.get((batch_size, f"{peer} {compute}"))
        if name == "hornbook" and ours is not None and theirs is not None:
            ratio = theirs / ours
            ratios.append({"batch_size": batch_size, "compute": compute, "ratio": ratio})
            print(f"batch of {batch_size} in {compute}: {ratio:.2f} times the speed per token of {peer}")
    return ratios


def add_sparse_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
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
    from hornbook.parallel.device import DTYPES, prepare

    device = prepare(arguments.device, arguments.threads)
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
