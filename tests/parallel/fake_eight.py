"""Training steps of eight ranks on GPUs without values, as the first one; started by test_eight_gpus.py.

``fake_eight.py LAYOUT ...`` prints, of each layout, the collectives of the second step, and how often it waits.
"""

import json
import sys
from collections import Counter

from hornbook.measure.fake_cuda import load_device

load_device()

from fake_ranks import begin, connect, device, pretend_gpu, pretend_streams  # noqa: E402

from hornbook.engine import build_training as building  # noqa: E402
from hornbook.engine.step import train_step  # noqa: E402
from hornbook.measure import kernel_trace  # noqa: E402

SMALL = {
    "data.synthetic": True, "data.sequence_length": 32, "model.vocab_size": 320, "model.hidden_size": 128,
    "model.num_heads": 8, "model.num_layers": 2, "model.max_positions": 32, "training.micro_batch_size": 4,
    "training.global_batch_size": 64, "training.steps": 20, "precision.compute": "bf16", "training.compile": "none",
}  # fmt: skip
SHARD, TENSOR, PIPELINE = "parallel.data_parallel", "parallel.tensor_parallel", "parallel.pipeline_parallel"
LAYOUTS = {
    "replicas 8": {},
    "shard 8": {SHARD: "shard"},
    "hybrid 2 x 4": {SHARD: "hybrid", "parallel.shard_size": 4},
    "tensor 8": {TENSOR: 8},
    "sequence 8": {TENSOR: 8, "parallel.sequence_parallel": True},
    "pipeline 8": {PIPELINE: 8, "model.num_layers": 8},
    "pipeline 2 x shard 2 x tensor 2": {PIPELINE: 2, SHARD: "shard", TENSOR: 2},
}
COLLECTIVES = ("allreduce_", "allreduce_coalesced_", "_allgather_base_", "_reduce_scatter_base_", "send", "recv_")


def step(layout):
    """The collectives of a step, by name, and its waits for the device."""
    recipe, world, steps = begin("gpt2-small", {**SMALL, **LAYOUTS[layout]}, 8, steps=2)
    trace = kernel_trace.Trace()
    with device(trace):
        state, config = building.build_training(recipe, 20, world)
        state.model.train()
        train_step(state, steps[0], config)
        before = len(trace.waits)
        with kernel_trace._Counting(trace):
            train_step(state, steps[1], config)
    found = Counter()
    for launch in trace.launches:
        found[launch.name] += launch.kernels
    return {
        "collectives": {name: found[name] for name in COLLECTIVES if found[name]},
        "waits": len(trace.waits) - before,
    }


def main() -> None:
    pretend_gpu()
    pretend_streams()
    connect(8)
    sys.stdout.write(json.dumps({layout: step(layout) for layout in sys.argv[1:] or LAYOUTS}))


main()
