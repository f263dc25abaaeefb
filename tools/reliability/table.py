"""The table of the suite: per part how many trials, of which kinds, how many failed, and how long they took."""

import json
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from planted import KEPT, read_verdicts
from trials import Outcome, Part, failures

from hornbook.storage.system import cpu_facts


def write_table(found: Mapping[Part, Sequence[Outcome]], folder: Path) -> str:
    """Write ``table.md`` and ``table.json`` and return the former."""
    machine = {
        "processor": cpu_facts().get("model name", platform.processor()),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    rows: list[dict[str, Any]] = []
    for part, outcomes in found.items():
        kinds = Counter(outcome.kind.partition(",")[0] for outcome in outcomes if outcome.error is None)
        rows.append(
            {
                "part": part.name,
                "promise": part.promise,
                "trials": len(outcomes),
                "kept": sum(kinds.values()),
                "kinds": dict(kinds),
                "failures": [f"{outcome.number}: {outcome.error}" for outcome in failures(outcomes)],
                "minutes": round(sum(outcome.seconds for outcome in outcomes) / 60, 1),
                "seeds": sorted({outcome.seed for outcome in outcomes}),
                "commits": sorted({outcome.commit for outcome in outcomes}),
                "details": part.details(outcomes).splitlines(),
            }
        )
    planted = read_verdicts(folder)
    caught = sum(row["verdict"] == "caught" for row in planted)
    faults = sum(row["verdict"] != KEPT for row in planted)
    (folder / "table.json").write_text(
        json.dumps({"machine": machine, "parts": rows, "planted": planted}, indent=1) + "\n"
    )
    lines = ["| part | promise | kept | minutes |", "|---|---|---|---|"]
    lines += [
        f"| {row['part']} | {row['promise']} | {row['kept']} of {row['trials']} | {row['minutes']} |" for row in rows
    ]
    if planted:
        minutes = round(sum(row["seconds"] for row in planted) / 60, 1)
        lines.append(f"| planted faults | caught by the part that must | {caught} of {faults} | {minutes} |")
    commits = sorted({commit for outcomes in found.values() for commit in (each.commit for each in outcomes)})
    seeds = sorted({each.seed for outcomes in found.values() for each in outcomes})
    lines += [
        "",
        f"Seeds {', '.join(map(str, seeds))}; commits {', '.join(commits)}; {machine['processor']}, {machine['cores']} "
        f"cores; Python {machine['python']}, PyTorch {machine['torch']}.",
    ]
    lines += [line for row in rows if row["details"] for line in ("", *row["details"])]
    text = "\n".join(lines) + "\n"
    (folder / "table.md").write_text(text)
    return text
