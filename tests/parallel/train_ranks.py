"""Six steps of training as one rank; run by test_world.py, and imported by it for the single process.

Each rank writes what it saw to ``<folder>/<rank>.safetensors`` and ``.json``. Step ``BAD_STEP`` holds a sample that
makes one rank's loss NaN; the number of scored tokens differs from sample to sample, and so from rank to rank. Then all
of them make the runs ``<folder>/<family>`` of encoders.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tiny import progress_of, random_batch, snapshot, split, tiny_state, tiny_step_config
from tiny_encoder_runs import encoder, on_corpus

from hornbook.config import load_recipe
from hornbook.config.communication import factor
from hornbook.engine.step import train_step
from hornbook.measure.scaling import Traffic
from hornbook.objective import CausalLM
from hornbook.parallel import gradient_sums
from hornbook.parallel.world import World
from hornbook.run.launch import open_run
from hornbook.run.loop import train_until_done
from hornbook.samples.windows import NOT_SCORED

NUM_STEPS, GLOBAL_BATCH_SIZE, BAD_STEP = 6, 8, 2
ENCODERS = {"bert": "padded", "groupbert": "unpadded"}
ENCODER_SIZES = (
    "--model.num-layers=1",
    "--model.hidden-size=32",
    "--data.sequence-length=32",
    "--training.steps=5",
    "--precision.compute=fp32",
    "--training.global-batch-size=8",
    "--training.micro-batch-size=1",
    "--tracking.log-every-steps=1",
    "--evaluation.every-steps=5",
)
_POISON = 69


class Poisoned(CausalLM):
    """Causal cross-entropy that is NaN where a micro-batch holds the poisonous token."""

    def sums(self, head, x_BTD, batch):
        bad = bool((batch["tokens"] == _POISON).any())
        return {
            name: total * (float("nan") if bad else 1.0) for name, total in super().sums(head, x_BTD, batch).items()
        }


def global_batch(step: int) -> dict[str, torch.Tensor]:
    """Samples with 12, 11, 10 ... scored tokens."""
    batch = random_batch(GLOBAL_BATCH_SIZE, 12, seed=step, vocab_size=_POISON)
    for sample in range(GLOBAL_BATCH_SIZE):
        batch["targets"][sample, 12 - sample :] = NOT_SCORED
    if step == BAD_STEP:
        batch["tokens"][GLOBAL_BATCH_SIZE - 1, 3] = _POISON
    return batch


def train(world: World) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
    """Train on this rank's part of each global batch; return weights and moments, and the numbers of each step."""
    share = GLOBAL_BATCH_SIZE // world.size
    state, config = tiny_state(world=world, residual_dropout=0.1), tiny_step_config(world, objective=Poisoned())
    rows = []
    for step in range(NUM_STEPS):
        own = {name: tensor[world.rank * share :][:share] for name, tensor in global_batch(step).items()}
        result = train_step(state, split(own, 2), config)
        rows.append([result.loss, result.gradient_norm, result.size.tokens, result.skipped])
    numbers = {"steps": rows, "progress": progress_of(state), "sums": sums(world)}
    return snapshot(state), numbers | ({"gradients": gradients(world)} if world.size > 1 else {})


def sums(world: World) -> dict[str, object]:
    """The sums that a world offers, of numbers that only survive if their width is kept."""
    world.barrier()
    return {
        "integers": world.data.sum_integers([1, world.rank, 2**53 + 1]),
        "floats": world.data.sum_floats([1.0, 2.0**-40 + world.rank]),
        "tensor": world.data.sum_tensor(torch.tensor([[1.5, world.rank]])).tolist(),
        "votes": [world.any(world.rank == 1), world.ranks_where(world.rank > 0), world.from_first(world.rank + 7)],
        "is_first": world.is_first,
    }


def gradients(world: World) -> dict[str, object]:
    """Sums of four gradients in four buckets: the first rank lacks the second one, all lack the fourth.

    ``early`` is how many buckets are sent before the last backward pass of two ends.
    """
    gradient_sums.BUCKET_ELEMENTS = 4
    parameters = [torch.nn.Parameter(torch.zeros(3)) for _ in range(4)]
    summed = gradient_sums.GradientSums(parameters, world.data)
    used = parameters[:3] if world.rank else [parameters[0], parameters[2]]
    early = []
    for is_last in (False, True):
        if is_last:
            summed.expect()
        with Traffic() as traffic:
            sum((world.rank + 1.0) * parameter.sum() for parameter in used).backward()
        early.append(traffic.sent["all_reduce"] / (3 * 4 * factor("all_reduce", world.size)))
    summed.finish()
    return {"early": early, "sums": [None if one.grad is None else one.grad.tolist() for one in parameters]}


def make_runs(world: World, corpus: Path, folder: Path) -> None:
    """Whole runs of encoders, each in ``folder / family``: their rows of metrics are the same on any ranks."""
    for family, layout in ENCODERS.items():
        options = (*encoder(family), *on_corpus(corpus), *ENCODER_SIZES, f"--data.layout={layout}")
        with open_run(load_recipe("bert-tiny", options).recipe, folder / family, world) as run:
            train_until_done(run)


def main(folder: Path, corpus: Path) -> None:
    torch.set_num_threads(1)
    world = World.join(torch.device("cpu"))
    tensors, numbers = train(world)
    make_runs(world, corpus, folder)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / f"{world.rank}.safetensors")
    (folder / f"{world.rank}.json").write_text(json.dumps({**numbers, "size": world.size}), encoding="utf-8")
    world.leave()
