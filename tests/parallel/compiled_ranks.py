"""Trainings with compiled blocks as one of two ranks of a CPU: see test_compiled_layouts.py.

With async tensor parallelism, Inductor's passes over the graphs run, and PyTorch's own definitions of the fused
operators, which are for GPUs, compute.
"""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import tiny_layouts
import torch
import torch.distributed._symmetric_memory as symmetric
from graph_passes import FUSED, counting
from tiny_layouts import recipe_of
from torch._dynamo.utils import counters

from hornbook.engine import build_training, parallelize
from hornbook.parallel.world import World


def main(folder: Path, cases: list[tuple[str, str]], fused: list[tuple[str, str]]) -> None:
    """Train each case, (model, layout), with blocks as they are and compiled; those of ``fused`` with fused exchanges.

    The first rank writes the losses, gradient norms and gradients of both, and the graphs of the compiled ones.
    """
    torch.set_num_threads(1)
    world, found = World.join(torch.device("cpu")), []
    library = torch.library.Library("symm_mem", "IMPL")
    for name in FUSED:
        library.impl(name, getattr(symmetric, f"_{name}_fallback"), "CPU")
    for number, (model, layout) in enumerate([*cases, *fused]):
        recipe = recipe_of(model, "adamw", layout)
        recipe = replace(recipe, precision=replace(recipe.precision, kernels="torch"))
        runs = [trained(recipe, world)]
        torch._dynamo.reset()
        counters.clear()
        graphs: list[dict[str, int]] = []
        compiled = replace(recipe, training=replace(recipe.training, compile="blocks"))
        if number < len(cases):
            with patch.object(parallelize.torch, "compile", partial(torch.compile, backend="aot_eager")):
                runs.append(trained(compiled, world))
        else:
            compiled = replace(compiled, parallel=replace(recipe.parallel, async_tensor_parallel=True))
            with (
                patch.object(parallelize.torch, "compile", counting(graphs)),
                patch.object(build_training, "refuse_options_of_gpus", lambda recipe, device: None),
                patch.object(torch.distributed, "is_nccl_available", lambda: True),
                torch._inductor.config.patch(_micro_pipeline_tp=False),  # restored
            ):
                runs.append(trained(compiled, world))
        assert not counters["graph_break"]
        found.append({"runs": runs, "num_graphs": counters["stats"]["unique_graphs"], "graphs": graphs})
    if world.is_first:
        (folder / "compiled.json").write_text(json.dumps(found), encoding="utf-8")
    world.leave()


def trained(recipe, world):
    run = tiny_layouts.train(recipe, world.laid_out(recipe.parallel), steps=2)
    gradients = torch.cat([gradient.flatten() for gradient in run.gradients.values()])
    return {"losses": run.losses, "norms": run.norms, "gradients": gradients.tolist()}
