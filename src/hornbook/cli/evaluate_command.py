"""``hornbook evaluate``: evaluate a trained model on held-out text.

hornbook evaluate runs/demo                                                  bits per byte of the run's held-out text
hornbook evaluate gpt2/ --tasks wikitext103 lambada --data wikitext103=wiki.test.tokens lambada=lambada_test.jsonl
hornbook evaluate runs/bert-mini --tasks masked_lm pseudo_perplexity         for encoders
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hornbook.cli.arguments import COMPUTE, add_device_arguments, natural_number, positive_integer
from hornbook.cli.table import print_columns, say
from hornbook.parallel.launched import collector_paused

if TYPE_CHECKING:
    from hornbook.exchange.restore import LoadedModel

_MOST_COLUMNS = 25


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="run folder, checkpoint or Hugging Face folder")
    parser.add_argument(
        "--tasks",
        nargs="+",
        metavar="TASK",
        help="tasks; for decoders bits_per_byte, lambada, wikitext103, wikitext2; for encoders "
        "masked_lm, pseudo_perplexity; for fine-tuned models classification, span (default: "
        "bits_per_byte, masked_lm, classification or span, on the run's own data)",
    )
    parser.add_argument(
        "--data", nargs="+", default=[], metavar="PATH", help="data to score: PATH for all tasks, or TASK=PATH for one"
    )
    parser.add_argument("--window", type=positive_integer, help="maximum tokens of context (default: as in training)")
    parser.add_argument(
        "--overlap", type=natural_number, help="tokens shared by consecutive windows (default: depends on the task)"
    )
    parser.add_argument(
        "--max-sequences",
        type=positive_integer,
        help="encoders only: score N sequences, spread evenly (default: all; pseudo_perplexity: 64)",
    )
    parser.add_argument("--compute", choices=COMPUTE, default="auto", help="dtype of the activations")
    parser.add_argument("--micro-batch-size", type=positive_integer, default=16, help="windows per batch")
    add_device_arguments(parser)


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Run the tasks, save the result in the run's folder, and print a table."""
    asked = [name for word in arguments.tasks or () for name in word.split(",") if name]
    _refuse_early(arguments, asked)
    with collector_paused():
        from hornbook.evaluate import TaskInput, run_tasks
        from hornbook.evaluate.tasks import assign_data, default_task, find_task
        from hornbook.exchange.restore import load_model
        from hornbook.parallel.device import prepare
        from hornbook.track.evaluations import text_of
        from hornbook.track.run_state import run_of

    for name in asked:
        find_task(name)
    device = prepare(arguments.device, arguments.threads)
    loaded = load_model(arguments.checkpoint, device, compute=arguments.compute)
    tasks = asked or [default_task(loaded)]
    _refuse_other_options(arguments, loaded, tasks)
    data = assign_data(arguments.data, tasks)
    given = TaskInput(
        loaded=loaded,
        micro_batch_size=arguments.micro_batch_size,
        window=arguments.window,
        overlap=arguments.overlap,
        max_sequences=arguments.max_sequences,
    )
    result = run_tasks(tasks, given, data)
    if folder := run_of(loaded.path):
        _save(folder, result["tasks"])
    for task in result["tasks"]:
        say(f"{task['name']} of {result['checkpoint']}, on {text_of(task)}")
        _print_rows(task["rows"])
        for row in task["rows"]:
            _print_table(row.get("table"))
    return result


def _refuse_early(arguments: argparse.Namespace, asked: "list[str]") -> None:
    """Raise the errors that can be found before torch is imported: a wrong path, device or task."""
    from hornbook.checkpoint.load import require_source
    from hornbook.config.options import is_url, split_entry
    from hornbook.config.suggest import did_you_mean_path
    from hornbook.config.task_names import refuse_unknown_task
    from hornbook.corpora.folders import locate_store
    from hornbook.errors import UserError
    from hornbook.parallel.launched import device_without_torch
    from hornbook.samples.instances import holds_instances
    from hornbook.track.run_state import document_of, newest_checkpoint

    require_source(arguments.checkpoint)
    device_without_torch(arguments.device)
    if "torch" not in sys.modules:  # else a script may have registered tasks of its own
        for task in asked:
            refuse_unknown_task(task)
    _, checkpoint = newest_checkpoint(Path(arguments.checkpoint)) or (0, Path(arguments.checkpoint))
    objective = document_of(checkpoint, "recipe").get("objective")
    learned = objective.get("name") if isinstance(objective, dict) else None
    default = {"causal_lm": "bits_per_byte", "mlm": "masked_lm", "mlm_nsp": "masked_lm"}.get(str(learned), "")
    for name, path in map(split_entry, arguments.data):
        if is_url(path):
            continue
        if name in (None, *asked) and not Path(path).exists() and not Path(f"{path}.idx").exists():
            raise UserError(f"{path}: no such file or folder{did_you_mean_path(Path(path))}")
        tasks = [task for task in asked or [default] if name in (None, task)]
        if "bits_per_byte" in tasks or ("masked_lm" in tasks and not holds_instances(path)):
            locate_store(Path(path), "validation")


def _save(run: Path, tasks: "list[dict[str, object]]") -> None:
    """Add the evaluations to those of the run, and write its report again if it has one.

    A failure is only a warning, since the numbers are printed anyway.
    """
    from hornbook.errors import HornbookError
    from hornbook.track.console import Console
    from hornbook.track.evaluations import add_evaluations
    from hornbook.track.report import write_report

    try:
        add_evaluations(run / "evaluation.json", tasks)
        if (run / "report.html").exists():
            write_report(run)
    except HornbookError as error:
        Console().warn(f"the numbers are not saved for the run's report: {error}")


def _refuse_other_options(arguments: argparse.Namespace, loaded: "LoadedModel", tasks: "list[str]") -> None:
    """Raise UserError for an option that does not apply to the model or the tasks."""
    from hornbook.errors import UserError

    if loaded.model.is_causal and arguments.max_sequences is not None:
        raise UserError(f"--max-sequences applies only to encoders, and {loaded.path} is a decoder; remove it")
    if not loaded.model.is_causal and arguments.overlap is not None:
        raise UserError(f"--overlap applies only to decoders, and {loaded.path} is an encoder; remove it")
    if arguments.overlap is not None and set(tasks) == {"lambada"}:
        raise UserError("--overlap does not apply to lambada, whose passages are not split into windows; remove it")


def _print_rows(rows: "list[dict[str, object]]") -> None:
    """Print a table of metrics, values and conventions, with comparable published numbers below."""
    lines = []
    for row in rows:
        value = "not finite" if row["value"] is None else f"{row['value']:.4f}"
        precision = "" if row["compute"] == "none" else f"; computed in {row['compute']}"
        lines.append((str(row["metric"]), value, f"{row['convention']}{precision}"))
        if row["comparable_with"]:
            lines.append(("", "", f"= comparable with {row['comparable_with']}"))
    print_columns(lines, right=(1,), indent="  ")


def _print_table(table: "dict[str, Any] | None") -> None:
    """Print the details of a result as a table, unless it has too many columns."""
    if table is None:
        return
    columns = table["columns"]
    if len(columns) > _MOST_COLUMNS:
        say(f"  {table['title']}: {len(columns)} columns, see --json")
        return
    say(f"  {table['title']}")
    rows = [[f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in row] for row in table["rows"]]
    print_columns([columns, *rows], right=range(1, len(columns)), indent="    ")
