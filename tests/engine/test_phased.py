"""Phased execution is resident execution, bit for bit, and moves weights once a phase."""

import itertools
import math
import multiprocessing
import threading
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_layouts
import tiny_runs
import torch
from cases import mostly_slow
from native_forms import forms, noting_packs
from tiny_layouts import recipe_of

from hornbook.config import PrecisionConfig, load_recipe
from hornbook.engine.step import train_step
from hornbook.errors import StoppedBySignal
from hornbook.model.language_model import evaluation_mode
from hornbook.parallel.device import prepare
from hornbook.parallel.world import World
from hornbook.run.preflight import bytes_of_scratch
from hornbook.storage.system import format_bytes, free_bytes

CASES = [
    ("gpt", "adamw", {}),
    ("gpt of 300 tokens", "adamw", {"memory": {"vocabulary_chunks": 3}}),
    ("gpt with fp32 gradients", "lamb", {}),
    ("bert unpadded", "adamw", {}),
    ("groupbert", "lamb", {}),
    ("gpt one by one", "lamb", {}),
    ("gpt", "adamw", {"optimizer": {"clip_scope": "per_tensor"}}),
    ("gpt", "adamw", {"precision": {"compute": "fp16", "loss_scale": 1024.0}}),
    ("gpt in bf16", "adamw", {}),
    ("bert padded", "adamw", {}),
    ("bert packed", "lamb", {}),
    ("roberta", "adamw", {}),
]


def begin(recipe, execution, tmp_path):
    """State, configuration and loader in one execution."""
    memory = replace(recipe.memory, execution=execution, scratch=str(tmp_path) if execution == "phased" else None)
    return tiny_layouts.begin(replace(recipe, memory=memory), World())


@pytest.mark.parametrize(("model", "optimizer", "changes"), mostly_slow(CASES, 6))
def test_steps_are_those_of_resident_execution(model, optimizer, changes, tmp_path):
    """Dropout, clipping, accumulation and a tied table are on; loss, norm, accuracies, weights and moments agree."""
    recipe = recipe_of(model, optimizer)
    for section, values in changes.items():
        recipe = replace(recipe, **{section: replace(getattr(recipe, section), **values)})
    results, tensors = [], []
    for execution in ("resident", "phased"):
        state, config, loader = begin(recipe, execution, tmp_path)
        steps = [train_step(state, next(loader), config) for _ in range(4)]
        results.append([(step.loss, step.terms, step.gradient_norm, step.skipped) for step in steps])
        tensors.append({(group, name): shard.values.clone() for group, shards in state.home.tensors().items()
                        for name, shard in shards.items()})  # fmt: skip
    assert results[0] == results[1]
    assert min(norm for _, _, norm, _ in results[0]) > recipe.optimizer.clip_norm
    assert tensors[0].keys() == tensors[1].keys()
    assert all(torch.equal(tensor, tensors[1][key]) for key, tensor in tensors[0].items())


@pytest.mark.parametrize(("model", "optimizer"), [("gpt", "adamw"), ("bert unpadded", "adamw"), ("groupbert", "lamb")])
def test_gradients_are_found_at_the_parameters(model, optimizer, tmp_path):
    found = []
    for execution in ("resident", "phased"):
        state, config, loader = begin(recipe_of(model, optimizer), execution, tmp_path)
        batches = next(loader)
        counts = {
            name: sum(config.objective.counts(batch)[name] for batch in batches) for name in config.objective.weights
        }
        config.executor(state, batches, config.objective, counts, lambda number: None)
        found.append({name: parameter.grad for name, parameter in state.model.own_parameters()})
    assert all(torch.equal(gradient, found[1][name]) for name, gradient in found[0].items() if gradient is not None)
    assert [name for name in found[0] if found[0][name] is None] == [n for n in found[1] if found[1][n] is None]


def test_a_look_at_the_model_is_that_of_resident_execution(tmp_path):
    results = []
    for execution in ("resident", "phased"):
        state, config, loader = begin(recipe_of("bert unpadded", "adamw"), execution, tmp_path)
        train_step(state, next(loader), config)
        with evaluation_mode(state.model):
            results.append(config.forward(state.model, next(loader)[0], config.objective.sums))
    assert {name: float(value) for name, value in results[0].items()} == {
        name: float(value) for name, value in results[1].items()
    }


def stopping(calls, last):
    """What raises when it is called for the ``last`` time."""

    def begin_micro_batch(number):
        if next(calls) == last:
            raise StoppedBySignal("SIGTERM")

    return begin_micro_batch


def test_a_step_that_is_dropped_in_any_phase_leaves_no_trace(tmp_path):
    recipe = recipe_of("gpt", "adamw")  # 2 layers: 7 phases of 4 micro-batches
    state, config, loader = begin(recipe, "resident", tmp_path)
    expected = [train_step(state, batches, config).gradient_norm for batches in (next(loader), next(loader))]
    state, config, loader = begin(recipe, "phased", tmp_path)
    assert train_step(state, next(loader), config).gradient_norm == expected[0]
    batches = next(loader)
    for last in range(1, 29, 3):
        with pytest.raises(StoppedBySignal):
            train_step(state, batches, config, stopping(itertools.count(1), last))
        state.home.drop_gradients()
        assert all(parameter.grad is None for parameter in state.model.parameters())
    calls = []
    assert train_step(state, batches, config, calls.append).gradient_norm == expected[1]
    assert calls == [0, 1, 2, 3] * 7


def test_weights_move_once_a_phase_whatever_the_number_of_micro_batches(tmp_path):
    """Weights come twice, but for the head's, and once more for the update, with gradients and moments."""
    traffic = []
    for micro_batch_size in (8, 1):
        recipe = recipe_of("gpt", "adamw")
        recipe = replace(recipe, training=replace(recipe.training, micro_batch_size=micro_batch_size))
        state, config, loader = begin(recipe, "phased", tmp_path)
        train_step(state, next(loader), config)
        traffic.append(state.home.traffic)
    assert traffic[0] == traffic[1]
    sizes = {name: 4 * parameter.numel() for name, parameter in state.model.own_parameters()}
    total, table = sum(sizes.values()), sizes["embedding.tokens"]
    norm = sum(size for name, size in sizes.items() if name.startswith("head."))
    row, num_layers = 8 * 16 * 32 * 4, 2
    computed = (2 * total - norm + table) + (3 * num_layers + 2) * row  # a block takes its input twice, and a gradient
    folded = table  # the head's gradient of it
    assert traffic[0] == {
        "bytes_read": computed + folded + 4 * total,
        "bytes_written": (2 * num_layers + 2) * row + total + folded + 3 * total,
    }


def test_weights_are_packed_once_a_phase_whatever_the_number_of_micro_batches(tmp_path, monkeypatch):
    forms()  # or skip
    packed, counts = noting_packs(monkeypatch), []
    for micro_batch_size in (8, 1):
        recipe = recipe_of("gpt", "adamw")
        training = replace(recipe.training, micro_batch_size=micro_batch_size)
        recipe = replace(recipe, training=training, precision=PrecisionConfig(compute="fp32", kernels="native"))
        state, config, loader = begin(recipe, "phased", tmp_path)
        packed.clear()
        train_step(state, next(loader), config)
        counts.append(len(packed))
    num_layers, num_weights = 2, 4
    assert counts == [num_layers * num_weights * 3 + 2] * 2  # in both phases, in one for the gradient too; the head


def test_no_more_than_two_parts_are_on_the_device(tmp_path):
    """What is alive of loaded weights is, at most, the part that computes and the one on its way."""
    recipe = recipe_of("gpt of 300 tokens", "adamw")
    recipe = replace(recipe, model=replace(recipe.model, num_layers=6))
    state, config, loader = begin(recipe, "phased", tmp_path)
    home, alive, peaks = state.home, {}, []
    load = home._load

    def load_and_watch(names):
        tensors = load(names)
        for tensor in tensors.values():
            storage = tensor.untyped_storage()
            alive[storage._cdata] = (torch.multiprocessing.reductions.StorageWeakRef(storage), storage.nbytes())
        sizes = [size for reference, size in alive.values() if not reference.expired()]
        peaks.append(sum(sizes))
        return tensors

    home._load = load_and_watch
    train_step(state, next(loader), config)
    parts = {}
    for name, parameter in state.model.named_parameters(remove_duplicate=False):
        part = ".".join(name.split(".")[:2]) if name.startswith("blocks") else name.split(".")[0]
        parts[part] = parts.get(part, 0) + 4 * parameter.numel()
    largest = sorted(parts.values())[-2:]
    assert len(peaks) == 2 * 7 + 1
    assert max(peaks) <= sum(largest)


def test_a_run_resumes_in_the_other_execution(tmp_path, monkeypatch):
    """Checkpoints and logs are those of a resident run, but for the traffic."""
    tiny_runs.run_tiny(tmp_path / "whole")
    for first, second in (("phased", "resident"), ("resident", "phased")):
        folder = tmp_path / first
        with monkeypatch.context() as patch:
            tiny_runs.stop_after(patch, 4)
            with pytest.raises(StoppedBySignal):
                tiny_runs.run_tiny(folder, f"--memory.execution={first}")
        assert not list((folder / "run").glob("*scratch*"))
        tiny_runs.run_tiny(folder, f"--memory.execution={second}")
        assert tiny_runs.digest(folder, 8) == tiny_runs.digest(tmp_path / "whole", 8)
        rows = [
            {key: value for key, value in row.items() if not key.startswith("bytes_")}
            for row in tiny_runs.metrics_without_time(folder)
        ]
        assert rows == tiny_runs.metrics_without_time(tmp_path / "whole")
        moved = [row["step"] for row in tiny_runs.metrics_without_time(folder) if row.get("bytes_read")]
        assert moved == ([1, 2, 3, 4] if first == "phased" else [5, 6, 7, 8])


def test_skipped_steps_leave_weights_and_moments(tmp_path):
    """An overflow at the smallest loss scale that hurts: the step is skipped in both executions."""
    recipe = recipe_of("gpt", "adamw")
    precision = PrecisionConfig(compute="fp16", loss_scale=3e38)
    state, config, loader = begin(replace(recipe, precision=precision), "phased", tmp_path)
    before = {name: parameter.detach().clone() for name, parameter in state.model.own_parameters()}
    assert train_step(state, next(loader), config).skipped
    assert all(torch.equal(parameter, before[name]) for name, parameter in state.model.own_parameters())
    assert not any(tensor.any() for states in state.home.moments.values() for tensor in states.values())


def anonymous_bytes():
    """Memory of this process that is no file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])


@contextmanager
def peak_memory():
    """Yield a list that holds the largest ``anonymous_bytes`` of the block after it."""
    peaks, done = [anonymous_bytes()], threading.Event()

    def watch():
        while not done.wait(0.005):
            peaks.append(max(peaks.pop(), anonymous_bytes()))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peaks
    finally:
        done.set()
        thread.join()


def two_steps(recipe):
    """Train two steps in this process, and return what the test below compares."""
    prepare("cpu", None)
    before = anonymous_bytes()
    with peak_memory() as peaks:
        state, config, loader = tiny_layouts.begin(recipe, World())
        results = [train_step(state, next(loader), config) for _ in range(2)]
    return {
        "allocated": peaks[0] - before,
        "table": state.model.embedding.tokens.nbytes,
        "layer": sum(parameter.nbytes for parameter in state.model.blocks[0].parameters()),
        "weights": 4 * state.model.num_parameters,
        "losses": [math.nan if result.skipped else float(result.loss) for result in results],
        "moved": dict(state.home.traffic),
    }


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux for the memory of the process")
@pytest.mark.parametrize("name", ["cerebras-gpt-111m", "gpt3-2.7b"])
def test_a_large_model_makes_real_steps(name, tmp_path):
    """In the memory of four token tables, a few layers, and the logits of a chunk; its state lies on the disk."""
    words = "data.synthetic=true data.sequence_length=128 training.global_batch_size=2 training.micro_batch_size=1"
    words += f" memory.execution=phased memory.scratch={tmp_path} precision.compute=fp32 precision.kernels=torch"
    recipe = load_recipe(name, [f"--{word}" for word in words.split()]).recipe
    needed, free = bytes_of_scratch(recipe, World()), free_bytes(tmp_path)
    if free < 1.05 * needed:
        pytest.skip(f"needs {format_bytes(needed)} of scratch in {tmp_path}, which has {format_bytes(free)} free")
    # in a new process, since freed memory of earlier tests is in pieces
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = pool.submit(two_steps, recipe).result()
    table = found["table"]
    logits = 128 * table // recipe.model.hidden_size
    assert found["allocated"] < 4 * table + 6 * found["layer"] + 5 * logits + (64 << 20)
    assert all(abs(loss - math.log(recipe.model.vocab_size)) < 0.5 for loss in found["losses"])
    moved, weights = found["moved"], found["weights"]
    assert moved["bytes_read"] == pytest.approx(6 * weights, rel=0.2)
    assert moved["bytes_written"] == pytest.approx(4 * weights, rel=0.2)
