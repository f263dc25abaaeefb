"""Measure speed: ``step`` times training steps, ``generate`` texts, ``corpus`` text to tokens; ``run`` repeats those.

hornbook bench step demo --peer transformers
hornbook bench step gpt2-small --processes 2
torchrun --nproc-per-node 8 -m hornbook bench step gpt2-small --parallel.data-parallel shard
hornbook bench generate demo --peer transformers --batch-size 1 8
hornbook bench corpus texts.jsonl --tokenizer tokenizers/mine --peer datasets
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hornbook.cli import bench_run
from hornbook.cli.arguments import (
    COMPUTE,
    TOKENIZER_HELP,
    CommandParser,
    add_device_arguments,
    add_process_arguments,
    add_recipe_arguments,
    positive_integer,
    start_processes,
)
from hornbook.cli.table import print_columns
from hornbook.errors import UserError
from hornbook.parallel import launched

if TYPE_CHECKING:
    from hornbook.config import Recipe
    from hornbook.measure.scaling import Scaling
    from hornbook.measure.throughput import Throughput

_PEERS = {"transformers": ("fp32", "bf16-mixed", "bf16")}
_DEFAULT_VOCAB_SIZE = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands."""
    commands = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
    step = commands.add_parser("step", help="time training steps", description="Time whole training steps of a recipe.")
    add_recipe_arguments(step)
    step.add_argument("--peer", choices=tuple(_PEERS), help="also time this library, alternating, and print the ratio")
    step.add_argument(
        "--rounds", type=positive_integer, default=5, metavar="N", help="measured steps of each (default: 5)"
    )
    step.add_argument(
        "--kernels",
        choices=("torch", "native"),
        nargs="+",
        default=[],
        help="also time the step with these operators (precision.kernels), alternating",
    )
    step.add_argument(
        "--skip-alone",
        action="store_true",
        help="with several ranks: time no single process, which may lack the memory",
    )
    add_device_arguments(step)
    add_process_arguments(step)
    step.set_defaults(handler=step_command)
    generate = commands.add_parser(
        "generate", help="time text generation", description="Time greedy generation with a recipe's untrained model."
    )
    add_recipe_arguments(generate)
    generate.add_argument(
        "--peer", choices=tuple(_PEERS), help="also time this library, alternating, and print the ratio"
    )
    generate.add_argument(
        "--rounds", type=positive_integer, default=5, metavar="N", help="measured texts of each (default: 5)"
    )
    generate.add_argument(
        "--batch-size",
        type=positive_integer,
        nargs="+",
        default=[1, 8],
        metavar="N",
        help="texts per batch (default: 1 8)",
    )
    generate.add_argument(
        "--prompt-length", type=positive_integer, default=64, metavar="N", help="tokens (default: 64)"
    )
    generate.add_argument("--output-length", type=_two_or_more, default=64, metavar="N", help="tokens (default: 64)")
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
    bench_run.add_arguments(commands, _check_words)


def _add_corpus_arguments(corpus: argparse.ArgumentParser) -> None:
    corpus.add_argument("source", type=Path, metavar="FILE", help="JSONL file to build a corpus from")
    corpus.add_argument("--tokenizer", required=True, metavar="PATH", help=TOKENIZER_HELP)
    corpus.add_argument("--field", default="text", metavar="NAME", help="JSONL field with the text (default: text)")
    corpus.add_argument(
        "--peer", choices=("datasets",), help="also time this library, alternating, and print the ratio"
    )
    corpus.add_argument(
        "--rounds",
        type=positive_integer,
        default=3,
        metavar="N",
        help="builds of each; the fastest counts (default: 3)",
    )
    corpus.add_argument(
        "--threads", type=positive_integer, default=1, metavar="N", help="threads, or processes of --peer (default: 1)"
    )
    corpus.set_defaults(handler=corpus_command)


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Run the chosen subcommand."""
    result: dict[str, object] = arguments.handler(arguments)
    return result


def step_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Time hornbook's step on one process or several ranks, or beside the peer's in each of its precisions."""
    with launched.told_once():
        recipe = _recipe(arguments)
        is_scaling = launched.is_rank() or arguments.processes is not None
        for name in ("peer", "kernels"):
            if is_scaling and getattr(arguments, name):
                raise UserError(
                    f"--{name} is timed in one process: remove it, or start hornbook without torchrun or --processes"
                )
        if arguments.skip_alone and not is_scaling:
            raise UserError("--skip-alone applies only to several ranks: remove it, or add --processes")
    start_processes(arguments, recipe)
    return _time_ranks(arguments, recipe) if is_scaling else _time_contenders(arguments, recipe)


def _time_ranks(arguments: argparse.Namespace, recipe: "Recipe") -> dict[str, object]:
    from dataclasses import asdict

    from hornbook.config import recipe_to_dict
    from hornbook.measure.scaling import measure_scaling
    from hornbook.measure.throughput import compare_with_product, matrix_product
    from hornbook.ops.native.kernels import in_use
    from hornbook.parallel.device import choose_device, prepare
    from hornbook.parallel.world import World
    from hornbook.run.utilization import flops_per_token, measure_rates
    from hornbook.samples.batches import refuse_misfit

    with launched.told_once():
        device = choose_device(arguments.device)
        prepare(device, arguments.threads)
        refuse_misfit(recipe, launched.num_ranks())
        world = World.join(device, recipe.parallel, recipe_to_dict(recipe))
    with world.session():
        scaling = measure_scaling(recipe, world, rounds=arguments.rounds, with_alone=not arguments.skip_alone)
        used = {}
        if flops_per_token(recipe):
            (rate,) = measure_rates([matrix_product(recipe, world)], device)  # of all ranks at once, as in a step
            used = compare_with_product(recipe, scaling.together, sum(row[0] for row in world.gather([rate])))
    if world.is_first:
        _print_scaling(scaling, recipe)
        _print_utilization(used)
        print(f"kernels {in_use()}")
    return {**_facts(recipe), "kernels": str(in_use()), "num_ranks": world.size, **asdict(scaling), **used}


def _print_scaling(scaling: "Scaling", recipe: "Recipe") -> None:
    from hornbook.track.units import size

    print(_title(recipe))
    num_ranks = len(scaling.ranks)
    for name, speed in {
        f"{num_ranks} ranks": scaling.together,
        f"one, 1/{num_ranks} of the batch": scaling.alone,
    }.items():
        if speed is not None:
            print(_speed_line(name, speed))
    if scaling.efficiency is not None:
        print(f"scaling efficiency {scaling.efficiency:.1%}")
    rows = [("rank", "operation", "sent a step", "by formula", "waiting")]
    for rank, found in enumerate(scaling.ranks):
        first = (str(rank), f"{found.waiting:.1%}")
        for name in sorted({*found.sent, *found.formula}):
            label, waiting = first
            numbers = (size(found.sent.get(name)), size(found.formula.get(name)))
            rows.append((label, name.replace("_", "-"), *numbers, waiting))
            first = ("", "")
    print_columns(rows, right=(2, 3, 4))


def _time_contenders(arguments: argparse.Namespace, recipe: "Recipe") -> dict[str, object]:
    from dataclasses import asdict, replace

    from hornbook.measure.peers import transformers_step
    from hornbook.measure.throughput import compare_with_product, hornbook_step, matrix_product, measure_steps
    from hornbook.ops.native.kernels import in_use
    from hornbook.parallel.device import choose_device, prepare
    from hornbook.parallel.world import World
    from hornbook.run.utilization import flops_per_token

    device = choose_device(arguments.device)
    prepare(device, arguments.threads)
    world = World(device=device)
    contenders = {"hornbook": hornbook_step(recipe, world)}
    kernels = {"hornbook": str(in_use())}
    for choice in arguments.kernels:
        other = replace(recipe, precision=replace(recipe.precision, kernels=choice))
        contenders[f"hornbook {choice}"] = hornbook_step(other, world)
        kernels[f"hornbook {choice}"] = str(in_use())
    product = matrix_product(recipe, world) if flops_per_token(recipe) else None
    if product:
        contenders["matmul"] = product
    for precision in _PEERS.get(arguments.peer, ()):
        contenders[f"{arguments.peer} {precision}"] = transformers_step(recipe, world, precision=precision)
    speeds = measure_steps(contenders, world, rounds=arguments.rounds)
    measured = speeds.pop("matmul", None)
    timed = {name: asdict(speed) for name, speed in speeds.items()}
    result: dict[str, Any] = {**_facts(recipe), "kernels": kernels, "contenders": timed}
    if product and measured:
        result |= compare_with_product(recipe, speeds["hornbook"], product.flops / measured.step_seconds)
    print(_title(recipe))
    for name, speed in speeds.items():
        print(_speed_line(name, speed, kernels.get(name)))
    _print_utilization(result)
    best = max((speed.tokens_per_second for name, speed in speeds.items() if name not in kernels), default=None)
    if best is not None:
        result["ratio"] = speeds["hornbook"].tokens_per_second / best
        print(f"{result['ratio']:.2f} times the speed of the best {arguments.peer}")
    return result


def _print_utilization(found: Mapping[str, Any]) -> None:
    if "tflops" in found:
        print(
            f"{found['tflops']:.3g} TFLOP/s, {found['tflops_ratio']:.1%} of the {found['matmul_tflops']:.3g} "
            "TFLOP/s of a plain product of the feed-forward's shape"
        )


def generate_command(arguments: argparse.Namespace) -> dict[str, object]:
    """Time hornbook's generation, and the peer's, for each batch size and dtype."""
    from dataclasses import asdict

    from hornbook.measure.generation import hornbook_generate, measure_generation, random_prompts
    from hornbook.measure.peers import transformers_generate
    from hornbook.parallel.device import choose_device, prepare

    recipe = _recipe(arguments)
    device = choose_device(arguments.device)
    prepare(device, arguments.threads)
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
    """Time hornbook's building of a corpus, with and without tiktoken, and the peer's."""
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
    """Raise a HornbookError if ``hornbook bench`` would refuse the words before it measures anything."""
    parser = CommandParser(prog="hornbook bench")
    add_arguments(parser)
    arguments = parser.parse_args(words)
    if arguments.subcommand == "corpus":
        _refuse_missing(arguments.source)
        return
    recipe = _recipe(arguments)
    if getattr(arguments, "processes", None):
        from hornbook.samples.batches import refuse_misfit

        refuse_misfit(recipe, arguments.processes)


def _refuse_missing(source: Path) -> None:
    if not source.is_file():
        raise UserError(f"{source}: no such file; expected a JSONL file")


def _facts(recipe: "Recipe") -> dict[str, object]:
    model = recipe.model
    return {"recipe": recipe.name, "num_parameters": recipe.num_parameters(), "vocab_size": model.vocab_size}


def _title(recipe: "Recipe") -> str:
    model = recipe.model
    return f"{model.family}, {recipe.num_parameters():,} parameters, vocabulary {model.vocab_size:,}"


def _speed_line(name: str, speed: "Throughput", kernels: str | None = None) -> str:
    line = f"{name:<28}{speed.tokens_per_second:>12,.0f} tokens/s{speed.step_seconds * 1e3:>12,.1f} ms per step"
    return line if kernels is None else f"{line}  {kernels}"


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
    """Set hornbook's time a token beside the peer's in the same dtype, and print the quotients of those measured."""
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


def _recipe(arguments: argparse.Namespace) -> "Recipe":
    """Return the recipe, with some vocabulary where it has none.

    Raises UserError if it names data, which are not looked at.
    """
    from dataclasses import replace

    from hornbook.config import load_recipe

    recipe = load_recipe(arguments.recipe, arguments.overrides, require_data=False).recipe
    if recipe.data.train:
        raise UserError(
            "the benchmark uses random tokens: remove data.train and set the size of its vocabulary by "
            "--model.vocab-size"
        )
    if recipe.model.vocab_size is None:
        recipe = replace(recipe, model=replace(recipe.model, vocab_size=_DEFAULT_VOCAB_SIZE))
    return recipe


def _two_or_more(text: str) -> int:
    number: int = positive_integer(text)
    if number < 2:
        raise argparse.ArgumentTypeError(f"{number}: must be at least 2, as the first token is timed apart")
    return number
