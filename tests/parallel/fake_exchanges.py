"""A step of compiled blocks on two GPUs without values, as the first rank; started by test_compiled_layouts.py.

It prints, of a GPT and of a decoder with grouped heads, the graphs of their three layers and the graph breaks.
"""

import json
import sys
from types import SimpleNamespace

from hornbook.measure.fake_cuda import load_device

load_device()

import torch  # noqa: E402
import torch._inductor.config  # noqa: E402
import torch.distributed as dist  # noqa: E402
from fake_ranks import begin, connect, device, pretend_gpu  # noqa: E402
from graph_passes import counting  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402

from hornbook.engine import build_training as building  # noqa: E402
from hornbook.engine.step import train_step  # noqa: E402
from hornbook.measure.kernel_trace import Trace  # noqa: E402

SMALL = {
    "data.synthetic": True, "data.sequence_length": 32, "model.vocab_size": 300, "model.hidden_size": 64,
    "model.num_heads": 4, "model.num_layers": 3, "model.max_positions": 32, "training.global_batch_size": 4,
    "training.micro_batch_size": 4, "training.steps": 20, "precision.compute": "bf16", "training.compile": "blocks",
    "parallel.tensor_parallel": 2,
}  # fmt: skip
FUSED = {"parallel.sequence_parallel": True, "parallel.async_tensor_parallel": True}
GROUPED = {"model.num_kv_heads": 2, "model.head_size": 16, "model.feed_forward_size": 96}
CASES = [("gpt2-small", FUSED), ("llama-3.2-1b", {**FUSED, **GROUPED}), ("gpt2-small", {})]


def pretend() -> None:
    """Let PyTorch's compiler find a GPU, and two ranks connect to nothing."""
    properties = SimpleNamespace(
        name="NVIDIA H100 80GB HBM3", major=9, minor=0, multi_processor_count=132, total_memory=80 << 30,
        warp_size=32, regs_per_multiprocessor=65_536, max_threads_per_multi_processor=2_048, gcnArchName="",
        shared_memory_per_block_optin=232_448, L2_cache_size=50 << 20,
    )  # fmt: skip
    pretend_gpu()
    torch.cuda.get_device_properties = lambda device=None: properties
    torch._inductor.config.joint_graph_constant_folding = False  # which computes constants on the GPU
    dist.is_nccl_available = lambda: True
    connect()


def step(name, options):
    recipe, world, (batches,) = begin(name, {**SMALL, **options})
    with device(Trace()):
        train(recipe, world, batches)


def train(recipe, world, batches):
    state, config = building.build_training(recipe, 20, world)
    state.model.train()
    train_step(state, batches, config)


def main() -> None:
    pretend()
    torch.compile, found = counting(graphs := [], torch.compile), []
    for name, options in CASES if len(sys.argv) < 2 else [CASES[int(sys.argv[1])]]:
        torch._dynamo.reset()
        counters.clear()
        graphs.clear()
        step(name, options)
        sys.stderr.write(f"{name} {graphs}\n")
        found.append({"graphs": graphs[:], "breaks": dict(counters["graph_break"])})
    sys.stdout.write(json.dumps(found))


main()
