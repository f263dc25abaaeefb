"""Trainings of tiny models on random tokens, on any layout of ranks: what test_layouts.py compares.

train("bert padded", "lamb", World())  ->  Trained(gradients of the first step, losses, norms, weights)
"""

import gc
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tiny_labelled import QUESTIONS, labelled_rows, word_pieces, write_jsonl, write_squad
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from hornbook.config import Recipe, load_recipe
from hornbook.engine.build_training import build_loader, build_samples, build_training
from hornbook.engine.state import TrainState
from hornbook.engine.step import StepConfig, train_step
from hornbook.measure.verification import keeping_gradients, whole_tensors
from hornbook.parallel.world import World
from hornbook.run.launch import open_run
from hornbook.run.loop import train_until_done
from hornbook.samples.batches import Loader
from hornbook.samples.sources import open_sources

SIZES = """
model.num_layers=2 model.hidden_size=32 model.num_heads=4 model.vocab_size=70 model.max_positions=16
model.embedding_dropout=0.1 model.residual_dropout=0.1 model.attention_dropout=0.1
data.sequence_length=16 training.steps=20 training.global_batch_size=8 training.micro_batch_size=2
precision.compute=fp32 optimizer.clip_norm=0.5 schedule.warmup_steps=2 data.synthetic=true
"""
MODELS = {
    "gpt": "gpt2-small",
    "gpt in rounds": "gpt2-small training.micro_batch_size=1 training.global_batch_size=40 optimizer.clip_norm=0.1",
    "deep gpt": "gpt2-small model.num_layers=6",
    "gpt one by one": "gpt2-small training.micro_batch_size=1",
    "deep bert one by one": "bert-tiny data.layout=packed model.num_layers=6 training.micro_batch_size=1",
    "deep bert padded": "bert-tiny data.layout=padded model.num_layers=6",
    "deep bert packed": "bert-tiny data.layout=packed model.num_layers=6",
    "deep bert unpadded": "bert-tiny data.layout=unpadded model.num_layers=6",
    "deep groupbert": "groupbert-base-phase1 data.layout=unpadded model.num_layers=6",
    "gpt in bf16": "gpt2-small precision.weights=bf16 precision.gradients=bf16 precision.first_moment=bf16 "
    "precision.second_moment=bf16",
    "gpt with fp32 gradients": "gpt2-small precision.weights=bf16 precision.second_moment=fp16",
    "gpt of 300 tokens": "gpt2-small model.vocab_size=300",
    "bert of 300 tokens": "bert-tiny data.layout=padded model.vocab_size=300",
    "roberta": "roberta-base-wikitext2 data.layout=unpadded",
    "bert padded": "bert-tiny data.layout=padded",
    "bert packed": "bert-tiny data.layout=packed",
    "bert unpadded": "bert-tiny data.layout=unpadded",
    "modernbert padded": "modernbert-mini data.layout=padded model.num_layers=3 model.local_window=4",
    "modernbert": "modernbert-mini data.layout=unpadded model.num_layers=3 model.local_window=4",
    "bert odd": "bert-tiny data.layout=padded data.sequence_length=15",
    "decoder": "smollm-135m model.num_kv_heads=2 model.feed_forward_size=48 model.query_key_norm=head "
    "model.tied=false model.logit_cap=9 objective.z_loss=0.01 model.norm_placement=both",
    "value embeddings": "smollm-135m model.num_kv_heads=2 model.feed_forward_size=48 model.value_embeddings=true "
    "model.smear=true",
    "shortcuts": "smollm-135m model.num_kv_heads=2 model.feed_forward_size=48 model.value_embeddings=true "
    "model.smear=true model.residual_scales=true",
    "shifted keys": "smollm-135m model.num_kv_heads=2 model.feed_forward_size=48 model.shifted_keys=true "
    "model.query_key_norm=head",
    "sparse": "gpt2-small sparsity.linears=blocks.* sparsity.density=0.3 sparsity.block_size=4 sparsity.update=rigl "
    "sparsity.update_interval=2",
    "gpt odd": "gpt2-small data.sequence_length=15",
    "groupbert": "groupbert-base-phase1 data.layout=padded",
    "gpt by 1": "gpt2-small training.micro_batch_size=1",
    "gpt by 4": "gpt2-small training.micro_batch_size=4",
    "gpt by 8": "gpt2-small training.micro_batch_size=8",
    "bert padded by 1": "bert-tiny data.layout=padded training.micro_batch_size=1",
    "bert packed by 4": "bert-tiny data.layout=packed training.micro_batch_size=4",
}
"""Steps have 8 sequences, in micro-batches of 2 or as named."""
OPTIMIZERS = {
    "adamw": "optimizer.name=adamw optimizer.learning_rate=1e-3",
    "lamb": "optimizer.name=lamb optimizer.learning_rate=1e-3",
    "muon": (
        "optimizer.name=muon optimizer.learning_rate=1e-3 optimizer.products=fp32 optimizer.row_moments=true "
        "optimizer.per_head=true"
    ),
}
LAYOUTS = {
    "one process": "",
    "data 2": "",
    "data 4": "",
    "shard 2": "parallel.data_parallel=shard",
    "shard 2, recomputed": "parallel.data_parallel=shard memory.recompute=all",
    "phased": "memory.execution=phased",
    "data 2, phased": "memory.execution=phased",
    "shard 2, phased": "parallel.data_parallel=shard memory.execution=phased",
    "hybrid 2x2, phased": "parallel.data_parallel=hybrid parallel.shard_size=2 memory.execution=phased",
    "tensor 2, recomputed": "parallel.tensor_parallel=2 memory.recompute=attention",
    "tensor 2, chunked": "parallel.tensor_parallel=2 memory.vocabulary_chunks=3 model.vocab_size=300",
    "zero-bubble 2, recomputed": "parallel.pipeline_parallel=2 parallel.pipeline_schedule=zero-bubble "
    "memory.recompute=all memory.recompute_budget=0.1",
    "1f1b 2 x shard 2, recomputed": "parallel.pipeline_parallel=2 parallel.data_parallel=shard memory.recompute=all",
    "sequence 2, recomputed": "parallel.tensor_parallel=2 parallel.sequence_parallel=true memory.recompute=all",
    "v-shaped 2, recomputed": "parallel.pipeline_parallel=2 parallel.pipeline_schedule=v-shaped memory.recompute=all",
    "shard 2, once": "parallel.data_parallel=shard parallel.sum_gradients=step",
    "shard 4": "parallel.data_parallel=shard",
    "hybrid 2x2, once": "parallel.data_parallel=hybrid parallel.shard_size=2 parallel.sum_gradients=step",
    "hybrid 2x2": "parallel.data_parallel=hybrid parallel.shard_size=2",
    "tensor 2": "parallel.tensor_parallel=2",
    "tensor 4": "parallel.tensor_parallel=4",
    "sequence 2": "parallel.tensor_parallel=2 parallel.sequence_parallel=true",
    "sequence 4": "parallel.tensor_parallel=4 parallel.sequence_parallel=true",
    "sequence 2 x data 2": "parallel.tensor_parallel=2 parallel.sequence_parallel=true",
    "sequence 2 x shard 2": "parallel.tensor_parallel=2 parallel.sequence_parallel=true parallel.data_parallel=shard",
    "1f1b 2 x sequence 2": "parallel.tensor_parallel=2 parallel.sequence_parallel=true parallel.pipeline_parallel=2",
    "tensor 2 x data 2": "parallel.tensor_parallel=2",
    "gpipe 2": "parallel.pipeline_parallel=2 parallel.pipeline_schedule=gpipe",
    "1f1b 2": "parallel.pipeline_parallel=2",
    "1f1b 2, listed": "parallel.pipeline_parallel=2 parallel.layers_per_stage=0,6",
    "interleaved 2": "parallel.pipeline_parallel=2 parallel.pipeline_schedule=interleaved",
    "zero-bubble 2": "parallel.pipeline_parallel=2 parallel.pipeline_schedule=zero-bubble",
    "v-shaped 2": "parallel.pipeline_parallel=2 parallel.pipeline_schedule=v-shaped",
    "v-shaped 2, listed": "parallel.pipeline_parallel=2 parallel.pipeline_schedule=v-shaped "
    "parallel.layers_per_stage=0,3,3,0",
    "v-shaped 4": "parallel.pipeline_parallel=4 parallel.pipeline_schedule=v-shaped",
    "v-shaped 2 x shard 2": "parallel.pipeline_parallel=2 parallel.pipeline_schedule=v-shaped "
    "parallel.data_parallel=shard",
    "v-shaped 2 x sequence 2": "parallel.pipeline_parallel=2 parallel.pipeline_schedule=v-shaped "
    "parallel.tensor_parallel=2 parallel.sequence_parallel=true",
    "1f1b 2 x hybrid 2x2": "parallel.pipeline_parallel=2 parallel.data_parallel=hybrid parallel.shard_size=2",
    "v-shaped 2 x hybrid 2x2": "parallel.pipeline_parallel=2 parallel.pipeline_schedule=v-shaped "
    "parallel.data_parallel=hybrid parallel.shard_size=2",
    "1f1b 2 x data 2": "parallel.pipeline_parallel=2",
    "1f1b 2 x shard 2": "parallel.pipeline_parallel=2 parallel.data_parallel=shard",
    "interleaved 2 x shard 2": "parallel.pipeline_parallel=2 parallel.data_parallel=shard "
    "parallel.pipeline_schedule=interleaved",
    "zero-bubble 2 x shard 2": "parallel.pipeline_parallel=2 parallel.data_parallel=shard "
    "parallel.pipeline_schedule=zero-bubble",
    "1f1b 2 x shard 2 x tensor 2": "parallel.pipeline_parallel=2 parallel.data_parallel=shard "
    "parallel.tensor_parallel=2",
    "1f1b 2 x tensor 2": "parallel.pipeline_parallel=2 parallel.tensor_parallel=2",
    "1f1b 4, listed": "parallel.pipeline_parallel=4 parallel.layers_per_stage=0,2,2,2",
    "gpipe 4": "parallel.pipeline_parallel=4 parallel.pipeline_schedule=gpipe",
    "interleaved 4": "parallel.pipeline_parallel=4 parallel.pipeline_schedule=interleaved",
    "zero-bubble 4": "parallel.pipeline_parallel=4 parallel.pipeline_schedule=zero-bubble",
    "tensor 2 x shard 2": "parallel.data_parallel=shard parallel.tensor_parallel=2",
    "tensor 2 x hybrid 2x2": "parallel.data_parallel=hybrid parallel.shard_size=2 parallel.tensor_parallel=2",
}


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a training did; the tensors are whole."""

    initial: dict[str, Tensor]
    gradients: dict[str, Tensor]
    """Of the first step."""
    losses: list[float]
    norms: list[float]
    terms: list[dict[str, float]]
    """Sums of the objective, accuracies too, each a mean."""


def words_of(model: str, optimizer: str, layout: str = "one process") -> list[str]:
    """The bundled recipe of a tiny training, and its options."""
    name, *changes = MODELS[model].split()
    words = [*SIZES.split(), *changes, *OPTIMIZERS[optimizer].split(), *LAYOUTS[layout].split()]
    return [name, *(f"--{word}" for word in words)]


def recipe_of(model: str, optimizer: str, layout: str = "one process") -> Recipe:
    """The recipe of a tiny training."""
    name, *words = words_of(model, optimizer, layout)
    return load_recipe(name, words).recipe


def begin(recipe: Recipe, world: World) -> tuple[TrainState, StepConfig, Loader]:
    """The parts of a training before its first step."""
    samples = build_samples(recipe, open_sources(recipe), on_cpu=True)
    state, config = build_training(recipe, recipe.training.steps, world)
    state.model.train()
    return state, config, build_loader(recipe, samples, world, prefetch=0)


def train(recipe: Recipe, world: World, steps: int = 5) -> Trained:
    """Train ``recipe`` on ``world``: two steps of warmup, then some at the full rate."""
    state, config, loader = begin(recipe, world)
    held = {name: value for name, value in state.model.own_parameters() if not value.is_meta}
    initial = whole_tensors(state.model, held, world)
    observed, gradients = keeping_gradients(config)
    results = [train_step(state, next(loader), observed) for _ in range(steps)]
    assert min(result.gradient_norm for result in results) > recipe.optimizer.clip_norm
    return Trained(
        initial=initial,
        gradients=gradients,
        losses=[result.loss for result in results],
        norms=[result.gradient_norm for result in results],
        terms=[result.terms for result in results],
    )


def live_wires(world: World, num_micro_batches: int) -> int:
    """How many tensors of the shape of what stages send to each other are alive after two steps."""
    recipe = recipe_of("gpt", "adamw", "1f1b 2")
    sizes = replace(recipe.training, micro_batch_size=3, global_batch_size=3 * num_micro_batches)
    state, config, loader = begin(replace(recipe, training=sizes), world.laid_out(recipe.parallel))
    for _ in range(2):
        train_step(state, next(loader), config)
    gc.collect()
    return sum(type(value) is Tensor and tuple(value.shape) == (3 * 16, 32) for value in gc.get_objects())


def kept_tensors(world: World, layout: str) -> list[int]:
    """How many hidden states of 15 tokens, and of 8 of them, the blocks of a GPT keep for the backward pass."""
    recipe = recipe_of("gpt odd", "adamw", layout)
    recipe = replace(recipe, training=replace(recipe.training, micro_batch_size=1))
    state, _, loader = begin(recipe, world.laid_out(recipe.parallel))
    model, kept = state.model, {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor  # alive, so that no other tensor gets its memory
        return tensor

    hooks = saved_tensors_hooks(keep, lambda tensor: tensor)
    model.blocks[0].register_forward_pre_hook(lambda *_: hooks.__enter__())
    model(lambda head, x_BTD, batch: hooks.__exit__(), next(loader)[0])
    sizes = [tensor.numel() for tensor in kept.values()]
    return [sizes.count(num_tokens * 32) for num_tokens in (15, 8)]


def run_on(
    folder: Path, layout: str, world: World, steps: int, previous: str | None = None, more: Sequence[str] = ()
) -> None:
    """Train ``folder/layout`` on ``folder/corpus`` up to a step, from a copy of the run of another layout."""
    target = folder / layout
    if previous is not None and world.is_first:
        shutil.copytree(folder / previous, target)
    world.barrier()
    corpus = f"data.train={folder / 'corpus'} data.validation={folder / 'corpus'} model.vocab_size=300 name=run"
    often = "evaluation.every_steps=4 tracking.log_every_steps=1 tracking.sample_every_steps=4 checkpoint.every_steps=4"
    few = f"evaluation.max_windows=9 tracking.sample_tokens=3 checkpoint.keep_last=9 training.steps={steps}"
    words = [
        word
        for word in SIZES.split()
        if word.split("=")[0] not in ("data.synthetic", "model.vocab_size", "training.steps")
    ]
    words += [*OPTIMIZERS["adamw"].split(), *corpus.split(), *often.split(), *few.split(), *LAYOUTS[layout].split()]
    words += ["schedule.name=constant", *more]
    recipe = load_recipe("gpt2-small", [f"--{word}" for word in words]).recipe
    with open_run(recipe, target, world.laid_out(recipe.parallel)) as run:
        train_until_done(run)


def write_labelled(folder: Path) -> None:
    """Write what ``run_labelled`` learns from."""
    write_jsonl(folder / "classes.jsonl", labelled_rows(2))
    write_squad(folder / "spans.json", QUESTIONS)
    word_pieces().save(folder / "tokenizer")


def run_labelled(folder: Path, head: str, layout: str, world: World) -> None:
    """Fine-tune four steps: ``folder/<head> <layout>``."""
    spans = "objective.max_question_tokens=8 objective.document_stride=8 model.max_positions=64 data.sequence_length=32"
    chosen = {"classification": "classes.jsonl", "span": f"spans.json {spans}"}[head].split()
    replaced = ("data.synthetic", "model.vocab_size", "training.steps", *[word.split("=")[0] for word in chosen[1:]])
    words = [word for word in SIZES.split() if not word.startswith(replaced)]
    words += [f"objective.name={head}", f"data.train={folder / chosen[0]}", f"data.validation={folder / chosen[0]}"]
    words += [*chosen[1:], f"data.tokenizer={folder / 'tokenizer'}", "training.steps=4", "tracking.log_every_steps=1"]
    words += [*OPTIMIZERS["lamb"].split(), *LAYOUTS[layout].split()]
    recipe = load_recipe("bert-tiny", [f"--{word}" for word in words]).recipe
    with open_run(recipe, folder / f"{head} {layout}", world.laid_out(recipe.parallel)) as run:
        train_until_done(run)
