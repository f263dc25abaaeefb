"""Twelve kinds of training runs of a few seconds, and the state that they end in."""

import hashlib
from pathlib import Path

import torch

from hornbook.checkpoint import folder_of
from hornbook.config import load_recipe
from hornbook.run.launch import train

STEPS = 20
SAVED_EVERY = 5
_RECIPE = f"""
[model]
num_layers = 2
hidden_size = 32
num_heads = 2
vocab_size = 70
max_positions = 16
embedding_dropout = 0.1
residual_dropout = 0.1
[data]
synthetic = true
[training]
steps = {STEPS}
global_batch_size = 4
micro_batch_size = 2
[optimizer]
learning_rate = 1e-2
[schedule]
warmup_steps = 3
[precision]
compute = "fp32"
[checkpoint]
every_steps = {SAVED_EVERY}
keep_last = 2
[tracking]
log_every_steps = 1
"""
_SENTENCES = ("--model.max-positions=32", "--objective.mask-probability=0.3")
_SPARSE = ("linears=blocks.*", "density=0.25", "block-size=8", "update=rigl", "update-interval=3", "prune-ratio=0.3")
KINDS: dict[str, tuple[str, ...]] = {
    "GPT fp32": (),
    "GPT bf16": ("--precision.compute=bf16",),
    "GPT fp16": ("--precision.compute=fp16",),
    "GPT accumulation": ("--training.micro-batch-size=1", "--model.attention-dropout=0.2"),
    "decoder Muon": (
        "--model.family=decoder",
        "--optimizer.name=muon",
        "--optimizer.learning-rate=0.02",
    ),
    "GPT stored in 16 bits": ("--precision.weights=bf16", "--precision.gradients=bf16"),
    "GPT phased": ("--memory.execution=phased",),
    "GPT saved behind": ("--checkpoint.background",),
    "sparse, rewired": tuple(f"--sparsity.{option}" for option in _SPARSE),
    "BERT": ("--model.family=bert", "--objective.name=mlm_nsp", *_SENTENCES),
    "RoBERTa": ("--model.family=roberta", "--objective.name=mlm", *_SENTENCES),
    "GroupBERT": ("--model.family=groupbert", "--objective.name=mlm_nsp", *_SENTENCES),
}


def train_small(kind: str, folder: Path) -> None:
    """Start or resume a run of ``kind`` in ``folder``, on one thread."""
    torch.set_num_threads(1)
    recipe = folder.parent / "small.toml"
    if not recipe.exists():
        recipe.parent.mkdir(parents=True, exist_ok=True)
        recipe.write_text(_RECIPE)
    train(load_recipe(str(recipe), KINDS[kind]), output=folder, device="cpu", threads=1)


def digest(run: Path) -> dict[str, str]:
    """Return the hashes of the last checkpoint's files without what a clock decides."""
    folder = folder_of(run / "checkpoints", STEPS)
    tensors = {file.name: file.read_bytes() for file in sorted(folder.glob("*.safetensors"))}
    state = [line for line in (folder / "state.json").read_text().splitlines() if "seconds" not in line]
    return {
        name: hashlib.sha256(data).hexdigest() for name, data in {**tensors, "state": "\n".join(state).encode()}.items()
    }
