"""``hornbook doctor [RECIPE]``: describe this machine, and check whether a recipe would train on it.

hornbook doctor gpt2-small --data.train corpora/mine
products    fp32 29.2 GFLOP/s, bf16 20.4 GFLOP/s (2 threads)
disk        35.1 GiB free on ext4, writes 350 MB/s
...
warning  precision  precision.compute: auto chooses bf16, ...: train with --precision.compute fp32
error    data       corpora/mine: no such folder; ...

Training would not start: 1 error, 1 warning.

It trains nothing and leaves no files.
"""

import argparse
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hornbook.cli.arguments import positive_integer
from hornbook.cli.table import print_columns, say
from hornbook.cli.train_command import add_run_arguments, resolve_run
from hornbook.track.units import flop_rate, short, size
from hornbook.wording import counted, spelled

_REFUSED = 2
_X86 = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "AVX512-BF16", "amx_bf16": "AMX"}
"""The instruction sets to report, by Linux's names."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments: those of `hornbook train`, all optional."""
    parser.add_argument("--processes", type=positive_integer, default=1, help="ranks of the training (default: 1)")
    add_run_arguments(parser, required=False)


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Print the facts and the findings; the result's exit code is 2 if training would not start."""
    from hornbook.errors import UserError
    from hornbook.measure.machine import machine_facts, machine_findings
    from hornbook.measure.timed_dial import trained_in
    from hornbook.parallel.device import default_threads, prepare
    from hornbook.plan.dial import shape_of
    from hornbook.run.examine import Findings, choose_devices, examine
    from hornbook.run.launch import not_yet_loaded

    if arguments.recipe is None and (arguments.overrides or arguments.init_from):
        raise UserError("recipe options need a recipe: add RECIPE, as in `hornbook doctor demo --data.train STORE`")
    findings, processes = Findings(), arguments.processes
    resolved, init_from = None, None
    if arguments.recipe is not None:
        resolved, init_from = findings.check("recipe", resolve_run, arguments, require_data=True) or (None, None)
    output = arguments.output or (resolved.output if resolved else Path("runs"))
    device = choose_devices(arguments.device, processes, findings)
    prepare(str(device), arguments.threads or default_threads(processes))
    facts = machine_facts(device, output)
    if arguments.recipe is None and (hour := findings.check("memory", trained_in, 3600.0, device)):
        choice, parameters = hour
        facts["hour"] = {"shape": shape_of(choice.width), "parameters": parameters, "tokens": choice.tokens}
    precision = resolved.recipe.precision.compute if resolved else "auto"
    found = [*findings.found, *machine_findings(facts, precision, processes)]
    if resolved is not None:
        weights, may_jump = init_from or not_yet_loaded(resolved, output), arguments.allow_learning_rate_change
        found += examine(resolved.recipe, output, device, processes, weights, allow_rate_change=may_jump)
    found = [replace(finding, message=spelled(finding.message)) for finding in found]
    found = sorted(dict.fromkeys(found), key=lambda finding: finding.level)
    print_columns([*_rows(facts)])
    if found:
        print()
        print_columns([(finding.level, finding.about, finding.message) for finding in found])
    errors = sum(finding.level == "error" for finding in found)
    say("", _verdict(arguments.recipe, errors, len(found) - errors))
    documents = [vars(finding) for finding in found]
    asked = {"recipe": arguments.recipe, "output": str(output), "processes": processes}
    return {**facts, **asked, "findings": documents, "exit_code": _REFUSED if errors else 0}


def _verdict(recipe: str | None, errors: int, warnings: int) -> str:
    found = f"{counted(errors, 'error')}, {counted(warnings, 'warning')}"
    if recipe is None:
        return f"{found}. `hornbook doctor RECIPE` checks whether a recipe would train here."
    return f"Training would {'not start' if errors else 'start'}: {found}."


def _rows(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the rows of the table of facts: name and value."""
    yield from _software(facts)
    yield from _speed(facts)
    if hour := facts.get("hour"):
        told = f"{hour['shape']}, {short(hour['parameters'])} parameters, on {short(hour['tokens'])} tokens"
        yield "in an hour", f"{told}: hornbook train auto --time 1h"
    memory, disk = facts["memory"], facts["disk"]
    limit = f"{size(memory['limit'])} by the control group" if memory["limit"] else "no limit of a control group"
    yield "memory", f"{size(memory['total'])}, {size(memory['available'])} available; {limit}"
    kind = f" ({disk['file_system']})" if disk["file_system"] else ""
    speeds = [f"{verb} {size(disk[key])}/s" for key, verb in (("write", "writes"), ("read", "reads")) if disk[key]]
    yield "disk", ", ".join([f"{size(disk['free'])} free{kind}", *speeds, disk["folder"]])
    yield from _gpus(facts)
    variables = [f"{name}={value}" for name, value in facts["variables"].items()]
    yield "variables", ", ".join(variables) or "none that change a training"


def _software(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, found in facts["versions"].items():
        yield name, f"{found['version']} ({found['oldest']} or later)" if found["oldest"] else str(found["version"])
    extras = facts["extras"]
    installed, missing = ([name for name in extras if extras[name] is wanted] for wanted in (True, False))
    install = f"; not installed: {', '.join(missing)} (pip install 'hornbook[NAME]')" if missing else ""
    yield "extras", f"{', '.join(installed) or 'none'}{install}"
    operators = facts["operators"]
    states = operators["form_states"]
    there = [isa for isa, state in states.items() if state == "available"]
    need = "not needed, native operators are there" if there else "native operators need one"
    yield "compiler", facts["compiler"] or f"none; {need}"
    using = ", ".join([*operators["backends"], operators["cpu_capability"]])
    yield "operators", f"{operators['kernels']}; PyTorch's use {using}"
    if there:
        cache = size(operators["second_level_cache"])
        yield "native forms", f"{', '.join(there)}; cut for a second-level cache of {cache}"
    for isa, state in states.items():
        if state != "available":
            yield f"no {isa}", state


def _speed(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    processor, products = facts["processor"], facts["products"]
    yield "processor", processor["name"]
    cores = f"{processor['usable_cores']} of {processor['cores']} usable"
    yield "cores", f"{cores}, {counted(processor['threads'], 'thread')}; load {processor['load']:.1f}"
    if processor["instruction_sets"]:
        yield "instructions", _instructions(processor["instruction_sets"])
    rates = ", ".join(f"{dtype} {flop_rate(flops)}" for dtype, flops in products["flops_per_second"].items())
    shape = " × ".join(f"{length:,}" for length in products["shape"])
    where = f"{products['device']}, {counted(products['threads'], 'thread')}"
    yield "products", f"{rates} ({where}, {shape}); auto chooses {products['auto']}"


def _instructions(found: Collection[str]) -> str:
    """Return the x86 instruction sets that the processor has and lacks, or all names of another processor."""
    present = [label for name, label in _X86.items() if name in found]
    missing = [label for name, label in _X86.items() if name not in found]
    return ", ".join(present) + (f"; without {', '.join(missing)}" if missing else "") if present else ", ".join(found)


def _gpus(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    gpus, cuda = facts["gpus"], facts["cuda"]
    for gpu in gpus:
        properties = [gpu["name"], size(gpu["memory"])]
        if "capability" in gpu:
            native = "bf16" if gpu["bf16"] else "no bf16"
            properties += [f"{size(gpu['free'])} free", f"compute capability {gpu['capability']}", native]
        yield "GPU", ", ".join(properties)
    built = f"PyTorch is built for CUDA {cuda['build']}" if cuda["build"] else "PyTorch is built without CUDA"
    driver = f"driver {cuda['driver']}" if cuda["driver"] else "no NVIDIA driver"
    nccl = f", NCCL {cuda['nccl']}" if cuda["nccl"] else ""
    yield ("CUDA" if gpus else "GPUs"), f"{'' if gpus else 'none; '}{built}, {driver}{nccl}"
