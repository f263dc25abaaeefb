"""examples/state_space.py against transformers' Mamba-2, in generation, training and plan."""

import json
from pathlib import Path

import pytest
import torch
from tiny import hidden_states, random_batch, randomize
from transformers import Mamba2Config, Mamba2ForCausalLM

from hornbook import extend
from hornbook.config import Recipe
from hornbook.generate.decoder import PlainDecoder, make_decoder
from hornbook.model import LanguageModel, initialize, model_of

RECIPE = str(Path(__file__).parents[2] / "examples" / "state_space.toml")
SIZES = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "head_size": 16, "state_size": 8, "chunk_size": 8}
TRAINING = (
    "--data.synthetic --model.vocab-size 70 --model.num-layers 2 --model.hidden-size 32 --model.head-size 16 "
    "--model.max-positions 20 --model.chunk-size 8 --training.steps 4 --training.global-batch-size 8 "
    "--schedule.warmup-steps 1 --precision.compute fp32 --tracking.log-every-steps 1 --threads 1"
)
NAMES = {
    "embedding.tokens": "embeddings.weight",
    "head.norm.weight": "norm_f.weight",
    "norm.weight": "norm.weight",
    "mixer.up.weight": "mixer.in_proj.weight",
    "mixer.filters": "mixer.conv1d.weight",
    "mixer.filter_bias": "mixer.conv1d.bias",
    "mixer.log_decay": "mixer.A_log",
    "mixer.step_bias": "mixer.dt_bias",
    "mixer.skip": "mixer.D",
    "mixer.norm.weight": "mixer.norm.weight",
    "mixer.down.weight": "mixer.out_proj.weight",
}
"""Our name of each parameter, or of one of a block, and that of transformers."""


def name_of_theirs(name: str) -> str:
    if not name.startswith("blocks."):
        return f"backbone.{NAMES[name]}"
    _, number, rest = name.split(".", 2)
    return f"backbone.layers.{number}.{NAMES[rest]}"


@pytest.fixture
def model(example) -> LanguageModel:
    config = example("state_space").StateSpaceConfig(**SIZES, vocab_size=70, max_positions=20)
    model = model_of(Recipe(model=config), torch.float32)
    initialize(model, seed=3)
    randomize(model, scale=0.1)
    return model.eval()


def test_logits_losses_and_gradients_are_those_of_transformers(model: LanguageModel) -> None:
    """Chunks of 8 tokens and one of 4."""
    peer = Mamba2ForCausalLM(
        Mamba2Config(
            vocab_size=70,
            hidden_size=32,
            num_hidden_layers=2,
            num_heads=4,
            head_dim=16,
            state_size=8,
            expand=2,
            n_groups=1,
            chunk_size=5,
            layer_norm_epsilon=1e-5,
            tie_word_embeddings=True,
        )
    ).eval()
    weights = {name_of_theirs(name): tensor for name, tensor in model.saved_tensors().items()}
    assert not any(peer.load_state_dict(weights | {"lm_head.weight": weights["backbone.embeddings.weight"]}))
    batch = random_batch(3, 20)
    theirs = peer(batch["tokens"]).logits
    assert theirs.std() > 0.3, "the weights matter"
    torch.testing.assert_close(model.head.logits(hidden_states(model, batch)), theirs, rtol=1e-5, atol=1e-5)
    loss = model(lambda head, x_BTD, batch: head.cross_entropy(x_BTD, batch["targets"]), batch)
    other = torch.nn.functional.cross_entropy(theirs.flatten(0, 1), batch["targets"].flatten(), reduction="sum")
    torch.testing.assert_close(loss, other, rtol=1e-5, atol=1e-5)
    loss.backward()
    other.backward()
    model.fold_tied_gradients()
    expected = {name: parameter.grad for name, parameter in peer.named_parameters()}
    for name, parameter in model.own_parameters():
        ours, gradient = model.logical(name, parameter.grad), expected[name_of_theirs(name)]
        torch.testing.assert_close(ours, gradient, rtol=1e-5, atol=1e-5 * float(gradient.abs().max()))


def test_generation_recomputes_the_window(model: LanguageModel) -> None:
    decoder, prompts = make_decoder(model), [[5, 9, 2, 8, 1], [7, 3]]
    assert isinstance(decoder, PlainDecoder)
    logits = decoder.start(prompts, 4)
    for row, prompt in enumerate(prompts):
        alone = {name: tensor[:, : len(prompt)] for name, tensor in random_batch(1, 20).items()}
        x_BTD = hidden_states(model, alone | {"tokens": torch.tensor([prompt])})
        torch.testing.assert_close(logits[row], model.head.logits(x_BTD)[0, -1], rtol=1e-5, atol=1e-5)


def train(folder: Path, *words: str) -> list[float]:
    assert extend.main(["train", RECIPE, *TRAINING.split(), "--output", str(folder), *words]) == 0
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if row["kind"] == "train"]


def test_micro_batches_and_recomputation_do_not_change_the_losses(example, tmp_path: Path) -> None:
    example("state_space")
    whole = train(tmp_path / "whole", "--training.micro-batch-size", "8")
    assert len(set(whole)) == 4, "the weights change"
    parts = ["--training.micro-batch-size", "2", "--memory.recompute", "all"]
    assert train(tmp_path / "parts", *parts) == pytest.approx(whole, rel=1e-6)


def test_document_masks_are_refused(example, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example("state_space")
    words = [*TRAINING.split(), "--output", str(tmp_path / "run"), "--data.document-mask"]
    assert extend.main(["train", RECIPE, *words]) == 2
    assert "remove --data.document-mask" in capsys.readouterr().err


@pytest.mark.slow
def test_the_plan_is_what_steps_need(example) -> None:
    """The memory of real steps, within the tolerance of ``--check``, 3 %."""
    example("state_space")
    # by default, a trial chooses the products; with PyTorch's, steps take 6 % less than the plan
    sizes = (
        "--model.vocab-size 512 --training.global-batch-size 4 --training.micro-batch-size 4 --precision.compute fp32 "
        "--precision.kernels native"
    )
    assert extend.main(["plan", RECIPE, *sizes.split(), "--check"]) == 0
