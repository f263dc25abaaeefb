"""Training steps of every family, precision and layout on a GPU without values; started by test_kernel_trace.py.

``fake_steps.py TITLE ...`` makes the steps of these cases, or of all.
"""

import json
import sys
from collections import Counter

from hornbook.measure.fake_cuda import load_device

load_device()

from hornbook.config import load_recipe  # noqa: E402
from hornbook.measure.kernel_trace import traced_step  # noqa: E402
from hornbook.plan.layers import Compute  # noqa: E402
from hornbook.plan.memory import _CUBLAS_WORKSPACE, memory_of  # noqa: E402

SMALL = {
    "data.synthetic": True, "data.sequence_length": 32, "model.vocab_size": 300, "model.hidden_size": 64,
    "model.num_heads": 4, "model.num_layers": 2, "model.max_positions": 32, "training.global_batch_size": 128,
    "training.micro_batch_size": 64, "training.steps": 20,
}  # fmt: skip
DROPOUTS = {"model.residual_dropout": 0.1, "model.attention_dropout": 0.1, "model.embedding_dropout": 0.1}
CASES = {
    "gpt bf16": ("gpt2-small", {"precision.compute": "bf16"}),
    "gpt bf16, 4 micro-batches": ("gpt2-small", {"precision.compute": "bf16", "training.micro_batch_size": 32}),
    "gpt fp16": ("gpt2-small", {"precision.compute": "fp16"}),
    "gpt fp32": ("gpt2-small", {"precision.compute": "fp32"}),
    "gpt without Triton": ("gpt2-small", {"precision.compute": "bf16", "precision.kernels": "torch", **DROPOUTS}),
    "gpt dropout": ("gpt2-small", {"precision.compute": "bf16", **DROPOUTS}),
    "gpt recomputed": ("gpt2-small", {"precision.compute": "bf16", "memory.recompute": "all"}),
    "gpt vocabulary in parts": ("gpt2-small", {"precision.compute": "bf16", "memory.vocabulary_chunks": 2}),
    "gpt sparse": (
        "gpt2-small",
        {"precision.compute": "bf16", "sparsity.linears": "blocks.*", "sparsity.density": 0.1},
    ),
    "gpt sparse table": (
        "gpt2-small",
        {"precision.compute": "bf16", "sparsity.embedding_block_size": 16, "sparsity.density": 0.1},
    ),
    "decoder dropout": (
        "demo",
        {
            "precision.compute": "bf16",
            "model.family": "decoder",
            "model.residual_dropout": 0.1,
            "model.logit_cap": 15.0,
        },
    ),
    "bert padded": ("bert-tiny", {"precision.compute": "bf16", "data.layout": "padded"}),
    "bert packed": ("bert-tiny", {"precision.compute": "bf16", "data.layout": "packed"}),
    "bert unpadded": ("bert-tiny", {"precision.compute": "fp32", "data.layout": "unpadded"}),
    "roberta": ("roberta-base-wikitext2", {"precision.compute": "bf16"}),
    "groupbert": ("groupbert-base-phase1", {"precision.compute": "bf16"}),
}


def main() -> None:
    found = {}
    for title in sys.argv[1:] or CASES:
        name, options = CASES[title]
        words = [f"--{key}={value}" for key, value in {**SMALL, **options}.items()]
        try:
            recipe = load_recipe(name, words, require_data=False).recipe
            trace = traced_step(recipe)
        except Exception as error:  # reported by the test, for all cases at once
            found[title] = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
            continue
        kernels = sum(launch.kernels for launch in trace.launches)
        precision = recipe.precision
        compute = Compute(device="cuda", dtype=precision.compute, has_triton=precision.kernels != "torch")
        found[title] = {
            "peak": trace.peak,
            "planned": memory_of(recipe, compute=compute).peak - _CUBLAS_WORKSPACE,
            "kernels": kernels,
            "waits": trace.waits,
            "names": sorted({each.name for each in trace.launches}),
            "casts": Counter(each.dtype for each in trace.launches if each.name == "_to_copy"),
        }
    sys.stdout.write(json.dumps(found))


main()
