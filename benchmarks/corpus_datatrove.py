"""The work of ``hornbook corpus build`` by datatrove: read, count words, leave out near duplicates, tokenize.

::

    python -m venv peer && peer/bin/pip install "datatrove[io,processing]" spacy "xxhash<4"
    peer/bin/python benchmarks/corpus_datatrove.py web/ --tokenizer tokenizers/mine --folder peer-built

Runs in an environment of its own, without hornbook. A row for each step: its processor time, and the most memory of a
process. Each file is a task of datatrove's ``LocalPipelineExecutor`` with its default signatures (14 buckets of 8
hashes of 5 words). The same command goes on where an earlier one ended: tasks that ended are not repeated.
"""

import argparse
import json
import multiprocessing
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from datatrove.data import Document
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.pipeline.filters import LambdaFilter
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer

_STEPS = ("read", "words", "signatures", "buckets", "clusters", "tokens")


def has_words(document: Document, least: int = 50) -> bool:
    """Return whether a document has at least ``least`` words, as ``--min-words`` counts them."""
    return len(document.text.split(maxsplit=least)) >= least


def pipeline(step: str, given: argparse.Namespace) -> list[Any]:
    """Return the blocks of a step."""
    folder, config = given.folder, MinhashConfig()
    documents = [JsonlReader(str(given.input), text_key="text"), LambdaFilter(has_words)]
    return {
        "read": lambda: documents[:1],
        "words": lambda: documents,
        "signatures": lambda: [*documents, MinhashDedupSignature(f"{folder}/signatures", config=config)],
        "buckets": lambda: [MinhashDedupBuckets(f"{folder}/signatures", f"{folder}/buckets", config=config)],
        "clusters": lambda: [MinhashDedupCluster(f"{folder}/buckets", f"{folder}/removed", config=config)],
        "tokens": lambda: [
            *documents,
            MinhashDedupFilter(f"{folder}/removed"),
            DocumentTokenizer(
                f"{folder}/tokens",
                tokenizer_name_or_path=str(given.tokenizer / "tokenizer.json"),
                eos_token=given.end,
                local_working_dir=f"{folder}/work",
                shuffle_documents=False,
            ),
        ],
    }[step]()


def run_task(step: str, given: argparse.Namespace, tasks: int, rank: int) -> dict[str, Any]:
    """Run one task of a step in this process, and return what it used."""
    before = time.process_time()
    LocalPipelineExecutor(
        pipeline(step, given),
        tasks=tasks,
        workers=1,
        local_tasks=1,
        local_rank_offset=rank,
        logging_dir=f"{given.folder}/logs/{step}",
    ).run()
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"step": step, "rank": rank, "seconds": time.process_time() - before, "mib": used.ru_maxrss / 1024}


def main() -> None:
    """Run the steps, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("input", type=Path, help="folder of JSON lines, one file a task")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with a tokenizer.json")
    parser.add_argument("--end", default="<|endoftext|>", help="token after each document")
    parser.add_argument("--folder", type=Path, required=True, help="of the results")
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    files = sorted(given.input.glob("*.jsonl"))
    megabytes = sum(file.stat().st_size for file in files) / 1e6
    rows_file = given.folder / "rows.jsonl"
    rows = [json.loads(line) for line in rows_file.read_text().splitlines()] if rows_file.exists() else []
    print(f"{'step':<12}{'CPU s':>10}{'MB/s':>10}{'MiB':>8}")
    for step in _STEPS:
        tasks = {"buckets": MinhashConfig().num_buckets, "clusters": 1}.get(step, len(files))
        left = sorted(set(range(tasks)) - {row["rank"] for row in rows if row["step"] == step})
        with ProcessPoolExecutor(given.workers, multiprocessing.get_context("spawn")) as pool:
            for row in pool.map(partial(run_task, step, given, tasks), left):
                rows.append(row)
                with rows_file.open("a") as out:
                    out.write(json.dumps(row) + "\n")
        seconds = sum(row["seconds"] for row in rows if row["step"] == step)
        peak = max(row["mib"] for row in rows if row["step"] == step)
        print(f"{step:<12}{seconds:>10.1f}{megabytes / seconds:>10.2f}{peak:>8.0f}", flush=True)


if __name__ == "__main__":
    main()
