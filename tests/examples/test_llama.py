"""examples/llama.py against transformers' Llama, over a cache, and in training."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny import hidden_states, randomize
from transformers import LlamaConfig, LlamaForCausalLM

from hornbook import extend
from hornbook.generate.decoder import CachedDecoder, PlainDecoder, make_decoder
from hornbook.model import LanguageModel, initialize

SCRIPT = Path(__file__).parents[2] / "examples" / "llama.py"
SIZES = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "num_kv_heads": 2, "feed_forward_size": 48}
NAMES = {
    "embedding.tokens": "model.embed_tokens.weight",
    "head.table": "lm_head.weight",
    "head.norm.weight": "model.norm.weight",
    "attention_norm": "input_layernorm",
    "feed_forward_norm": "post_attention_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "out": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
"""Our name of each parameter, or of a module of a block, and that of transformers."""
TRAINING = (
    "--data.synthetic --model.vocab-size 70 --model.num-layers 2 --model.hidden-size 32 --model.feed-forward-size 48 "
    "--model.max-positions 16 --model.residual-dropout 0.2 --training.steps 4 --training.global-batch-size 8 "
    "--schedule.warmup-steps 1 --precision.compute fp32 --tracking.log-every-steps 1 --threads 1"
)


def name_of_theirs(name: str) -> str:
    if name in NAMES:
        return NAMES[name]
    _, number, module, leaf = name.split(".")
    return f"model.layers.{number}.{NAMES[module]}.{leaf}"


@pytest.fixture
def llama(example, request) -> LanguageModel:
    config = example("llama").LlamaConfig(**SIZES, vocab_size=70, max_positions=24)
    model = extend.build_model(config, torch.float32)
    initialize(model, seed=3)
    randomize(model, scale=0.1)
    return model.eval()


def test_logits_are_those_of_transformers(llama: LanguageModel) -> None:
    theirs = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=70,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=24,
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
        )
    ).eval()
    weights = {name_of_theirs(name): tensor for name, tensor in llama.saved_tensors().items()}
    assert not any(theirs.load_state_dict(weights, strict=True))
    tokens = torch.randint(70, (3, 24), generator=torch.Generator().manual_seed(0))
    batch = {"tokens": tokens, "positions": torch.arange(24).expand(3, 24), "keys": tokens}
    with torch.no_grad():
        ours, expected = llama.head.logits(hidden_states(llama, batch)), theirs(tokens).logits
    assert expected.std() > 0.3, "the weights matter"
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_generation_keeps_keys_and_values(llama: LanguageModel) -> None:
    """Prompts of unequal length and texts beyond the window, against a whole forward pass for every token."""
    cached, plain = make_decoder(llama), PlainDecoder(llama)
    assert isinstance(cached, CachedDecoder)
    prompts = [[5, 9, 2, 8, 1], [7, 3]]
    torch.testing.assert_close(cached.start(prompts, 40), plain.start(prompts, 40))
    assert cached.cache.tensors[0].shape[2:] == (2, 37, 8), "two heads of keys and values, not four"
    for step in range(40):
        ids = [(step * 7) % 70, (step * 11) % 70]
        torch.testing.assert_close(cached.advance(ids), plain.advance(ids), rtol=1e-4, atol=1e-5)


def train(folder: Path, *words: str) -> list[float]:
    """Train with dropout and return the losses."""
    recipe = str(SCRIPT.with_suffix(".toml"))
    assert extend.main(["train", recipe, *TRAINING.split(), "--output", str(folder), *words]) == 0
    return losses_of(folder)


def losses_of(run: Path) -> list[float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if row["kind"] == "train"]


def test_micro_batches_do_not_change_the_losses(example, tmp_path: Path) -> None:
    example("llama")
    whole = train(tmp_path / "whole", "--training.micro-batch-size", "8")
    parts = train(tmp_path / "parts", "--training.micro-batch-size", "2")
    assert len(set(whole)) == 4, "the weights change"
    assert parts == pytest.approx(whole, rel=1e-6)
    without = train(tmp_path / "without", "--training.micro-batch-size", "8", "--model.residual-dropout", "0")
    assert without[0] != pytest.approx(whole[0], rel=1e-6), "dropout was at work"


@pytest.mark.slow
def test_two_ranks_train_as_one(example, tmp_path: Path) -> None:
    example("llama")
    alone = train(tmp_path / "alone", "--training.micro-batch-size", "4")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    recipe, output = str(SCRIPT.with_suffix(".toml")), str(tmp_path / "both")
    words = ["train", recipe, *TRAINING.split(), "--training.micro-batch-size", "4", "--output", output]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([*launcher, str(SCRIPT), *words, "--device", "cpu"], check=True, env=environment, timeout=600)
    assert losses_of(tmp_path / "both") == pytest.approx(alone, rel=1e-6)


def test_sizes_that_do_not_divide_are_reported(example, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example("llama")
    words = [*TRAINING.split(), "--model.num-heads", "3", "--output", str(tmp_path / "run")]
    assert extend.main(["train", str(SCRIPT.with_suffix(".toml")), *words]) == 2
    message = capsys.readouterr().err
    assert "the size of a head must be even" in message and "num_heads must be divisible by num_kv_heads" in message
