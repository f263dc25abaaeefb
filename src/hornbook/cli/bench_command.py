"""Measure the speed of training steps, block-sparse products, generation and corpus builds, or run named benchmarks.

hornbook bench step demo --peer transformers
hornbook bench step gpt2-small --processes 2
torchrun --nproc-per-node 8 -m hornbook bench step gpt2-small --parallel.data-parallel shard
hornbook bench generate demo --peer transformers --batch-size 1 8
hornbook bench corpus texts.jsonl --tokenizer tokenizers/mine --peer datasets
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hornbook.cli import bench_run, bench_sparse, bench_step
from hornbook.cli.arguments import (
    COMPUTE,
    TOKENIZER_HELP,
    CommandParser,
    Number,
    add_device_arguments,
    add_recipe_arguments,
    positive_integer,
    prepared_device,
)
from hornbook.cli.bench_step import PEERS, recipe_of
from hornbook.config.options import Bounds, Spec
from hornbook.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    commands = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
    bench_step.add_arguments(commands)
    generate = commands.add_parser(
        "generate", help="time text generation", description="Time greedy generation with a recipe's untrained model."
    )
    add_recipe_arguments(generate)
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
        default=["fp32", "bf16"],
        help="dtypes of the activations (default: fp32 bf16)",
    )
    add_device_arguments(generate)
    generate.set_defaults(handler=generate_command)
    corpus = commands.add_parser("corpus", help="time corpus builds", description="Time building a corpus from JSONL.")
    _add_corpus_arguments(corpus)
    bench_sparse.add_arguments(commands)
    bench_run.add_arguments(commands, _check_words)


def _add_corpus_arguments(corpus: argparse.ArgumentParser) -> None:
    corpus.add_argument("source", type=Path, metavar="FILE", help="JSONL file to build a corpus from")
    corpus.add_argument("--tokenizer", required=True, metavar="PATH", help=TOKENIZER_HELP)
    corpus.add_argument("--field", default="text", metavar="NAME", help="JSONL field with the text")
    corpus.add_argument(
        "--peer", choices=("datasets",), help="also time this library, alternating, and print the ratio"
    )
    corpus.add_argument("--rounds", type=positive_integer, default=3, help="builds of each; the fastest counts")
    corpus.add_argument(
        "--threads", type=positive_integer, default=1, help="threads, or processes of --peer (default: 1)"
    )
    corpus.set_defaults(handler=corpus_command)


def generate_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Time generation, and the peer's if requested, for each batch size and dtype."""
    from dataclasses import asdict

    from hornbook.measure.throughput import hornbook_generate, measure_generation, random_prompts
    from hornbook.peers import transformers_generate

    recipe = recipe_of(arguments)
    device = prepared_device(arguments)
    length = arguments.output_length
    rows: list[dict[str, Any]] = []
    for batch_size in arguments.batch_size:
        prompts = random_prompts(
            recipe, batch_size=batch_size, prompt_length=arguments.prompt_length, num_tokens=length
        )
        contenders = {}
        for compute in arguments.compute:
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
        from hornbook.samples.batches import refuse_misfit

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
