"""Training steps of two ranks on GPUs without values, as the first one; started by test_layout_kernels.py.

``fake_layouts.py LAYOUT ...`` prints, of each layout and of one process, how often operators launch in the second step
of models with one and two layers, and how many bytes they move.
"""

import json
import sys
from collections import Counter

from hornbook.measure.fake_cuda import load_device

load_device()

from fake_ranks import begin, connect, device  # noqa: E402

from hornbook.engine import build_training as building  # noqa: E402
from hornbook.engine.step import train_step  # noqa: E402
from hornbook.measure import kernel_trace  # noqa: E402

SMALL = {
    "data.synthetic": True, "data.sequence_length": 32, "model.vocab_size": 300, "model.hidden_size": 128,
    "model.num_heads": 4, "model.max_positions": 32, "training.micro_batch_size": 64, "training.steps": 20,
    "precision.compute": "bf16", "training.compile": "none",
}  # fmt: skip
LAYOUTS = {
    "one process": {},
    "replicas": {},
    "replicas, muon": {"optimizer.name": "muon"},
    "tensor": {"parallel.tensor_parallel": 2},
    "sequence": {"parallel.tensor_parallel": 2, "parallel.sequence_parallel": True},
}


def launches(layout, num_layers):
    """The operators of a step with two micro-batches, and the bytes that they move."""
    num_ranks = 1 if layout == "one process" else 2
    samples = 128 * (2 if layout.startswith("replicas") else 1)
    options = {**SMALL, "training.global_batch_size": samples, "model.num_layers": num_layers, **LAYOUTS[layout]}
    recipe, world, steps = begin("gpt2-small", options, num_ranks, steps=2)
    trace = kernel_trace.Trace()
    with device(trace):
        state, config = building.build_training(recipe, 20, world)
        state.model.train()
        train_step(state, steps[0], config)
        with kernel_trace._Counting(trace):
            train_step(state, steps[1], config)
    found, moved = Counter(), Counter()
    for launch in trace.launches:
        found[launch.name] += launch.kernels
        moved[launch.name] += launch.bytes
    return {"kernels": found, "bytes": moved}


def main() -> None:
    connect()
    found = {layout: [launches(layout, number) for number in (1, 2)] for layout in sys.argv[1:]}
    sys.stdout.write(json.dumps(found))


main()
