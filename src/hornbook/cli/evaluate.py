"""Measure a trained model: ``hornbook evaluate runs/demo`` scores the run's validation store, byte by byte."""

import argparse

from hornbook.cli.arguments import add_device_arguments, positive_integer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a run's folder, or one checkpoint of it")
    parser.add_argument("--tasks", nargs="+", default=["bits_per_byte"], metavar="TASK", help="default: bits_per_byte")
    parser.add_argument("--data", metavar="STORE", help="store to score; default: the run's validation store")
    parser.add_argument("--compute", choices=("auto", "fp32", "bf16"), default="auto", help="dtype of the activations")
    parser.add_argument("--micro-batch-size", type=positive_integer, default=16, metavar="N", help="windows at a time")
    add_device_arguments(parser)


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Run the tasks, print a table, and keep the result beside the run."""
    from pathlib import Path

    from hornbook.checkpoint.restore import load_model
    from hornbook.engine.device import choose_device, prepare
    from hornbook.evaluate import TaskInput, run_tasks
    from hornbook.storage.files import dump_json, replace_file

    device = choose_device(arguments.device)
    prepare(device, arguments.threads)
    path = Path(arguments.checkpoint)
    loaded = load_model(path, device, compute=arguments.compute)
    given = TaskInput(loaded=loaded, data=arguments.data, device=device, micro_batch_size=arguments.micro_batch_size)
    result = run_tasks(arguments.tasks, given)
    if (path / "run.json").exists():
        replace_file(path / "evaluation.json", dump_json(result))
    for task in result["tasks"]:
        print(f"{task['name']} of {loaded.path}")
        for row in task["rows"]:
            print(f"  {row['metric']:<18}{row['value']:>10.4f}   {row['convention']}")
    return result
