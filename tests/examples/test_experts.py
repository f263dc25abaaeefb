"""examples/experts.py against transformers' Mixtral, in generation, training and plan."""

import json
from pathlib import Path

import pytest
import torch
from tiny import hidden_states, random_batch, randomize
from transformers import MixtralConfig, MixtralForCausalLM

from hornbook import extend
from hornbook.config import Recipe
from hornbook.generate.decoder import CachedDecoder, PlainDecoder, make_decoder
from hornbook.model import LanguageModel, initialize, model_of

RECIPE = str(Path(__file__).parents[2] / "examples" / "experts.toml")
SIZES = {
    "num_layers": 2,
    "hidden_size": 32,
    "num_heads": 4,
    "num_kv_heads": 2,
    "feed_forward_size": 24,
    "num_experts": 4,
    "experts_per_token": 2,
    "tied": False,
    "vocab_size": 70,
    "max_positions": 20,
}
TRAINING = (
    "--data.synthetic --model.vocab-size 70 --model.num-layers 2 --model.hidden-size 32 --model.feed-forward-size 24 "
    "--model.max-positions 16 --training.steps 4 --training.global-batch-size 8 --schedule.warmup-steps 1 "
    "--precision.compute fp32 --tracking.log-every-steps 1 --threads 1"
)


@pytest.fixture
def model(example) -> LanguageModel:
    model = model_of(Recipe(model=example("experts").ExpertsConfig(**SIZES)), torch.float32)
    initialize(model, seed=3)
    randomize(model, scale=0.1)
    return model.eval()


def parts(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """The tensors of transformers that correspond to one of ours."""
    whole = {"embedding.tokens": "model.embed_tokens.weight", "head.table": "lm_head.weight"}
    if not name.startswith("blocks."):
        return {whole.get(name, "model.norm.weight"): tensor}
    _, number, rest = name.split(".", 2)
    names = {
        "attention_norm.weight": ["input_layernorm.weight"],
        "feed_forward_norm.weight": ["post_attention_layernorm.weight"],
        "attention.query.weight": ["self_attn.q_proj.weight"],
        "attention.key_value.weight": ["self_attn.k_proj.weight", "self_attn.v_proj.weight"],
        "attention.out.weight": ["self_attn.o_proj.weight"],
        "feed_forward.router.weight": ["mlp.gate.weight"],
        "feed_forward.gate_up": ["mlp.experts.gate_up_proj"],
        "feed_forward.down": ["mlp.experts.down_proj"],
    }[rest]
    pieces = tensor if len(names) > 1 else [tensor]
    return {f"model.layers.{number}.{their}": piece for their, piece in zip(names, pieces, strict=True)}


def test_logits_losses_and_gradients_are_those_of_transformers(model: LanguageModel) -> None:
    config = MixtralConfig(
        vocab_size=70,
        hidden_size=32,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=20,
        rms_norm_eps=1e-5,
        rope_theta=1e4,
        attn_implementation="eager",
    )
    config._experts_implementation = "eager"
    peer = MixtralForCausalLM(config).eval()
    weights = {key: part for name, tensor in model.saved_tensors().items() for key, part in parts(name, tensor).items()}
    assert not any(peer.load_state_dict(weights))
    batch = random_batch(3, 20)
    theirs = peer(batch["tokens"]).logits
    assert theirs.std() > 0.3, "the weights matter"
    torch.testing.assert_close(model.head.logits(hidden_states(model, batch)), theirs, rtol=1e-5, atol=1e-5)
    loss = model(lambda head, x_BTD, batch: head.cross_entropy(x_BTD, batch["targets"]), batch)
    other = torch.nn.functional.cross_entropy(theirs.flatten(0, 1), batch["targets"].flatten(), reduction="sum")
    torch.testing.assert_close(loss, other, rtol=1e-5, atol=1e-5)
    loss.backward()
    other.backward()
    expected = {name: parameter.grad for name, parameter in peer.named_parameters()}
    for name, parameter in model.own_parameters():
        for key, part in parts(name, model.logical(name, parameter.grad)).items():
            torch.testing.assert_close(part, expected[key], rtol=1e-5, atol=1e-5 * float(part.abs().max()))


def test_generation_keeps_keys_and_values(model: LanguageModel) -> None:
    cached, plain, prompts = make_decoder(model), PlainDecoder(model), [[5, 9, 2, 8, 1], [7, 3]]
    assert isinstance(cached, CachedDecoder)
    torch.testing.assert_close(cached.start(prompts, 8), plain.start(prompts, 8), rtol=1e-4, atol=1e-5)
    for step in range(8):
        ids = [(step * 7) % 70, (step * 11) % 70]
        torch.testing.assert_close(cached.advance(ids), plain.advance(ids), rtol=1e-4, atol=1e-5)


def test_the_balance_is_1_for_equal_loads_and_larger_for_one_expert(model: LanguageModel) -> None:
    experts, batch = model.blocks[0].feed_forward, random_batch(3, 20)
    balances = {}
    for name, bias in {"one": 50.0, "even": 0.0}.items():
        with torch.no_grad():
            experts.router.weight.zero_()
            experts.router.weight[0] += bias
            experts(hidden_states(model, batch).abs())
        balances[name] = float(experts.balance) / 3
    assert balances["one"] == pytest.approx(2.0, rel=1e-3), (
        "all tokens choose it: f = 1 of 2 choices, p = 1, times 4 / 2"
    )
    assert balances["even"] == pytest.approx(1.0, rel=1e-3)


def train(folder: Path, *words: str) -> list[dict[str, float]]:
    assert extend.main(["train", RECIPE, *TRAINING.split(), "--output", str(folder), *words]) == 0
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: row[name] for name in ("loss", "causal_lm", "balance")} for row in rows if row["kind"] == "train"]


def test_micro_batches_and_recomputation_do_not_change_loss_and_balance(example, tmp_path: Path) -> None:
    example("experts")
    words = ["--objective.balance-weight", "0.5"]
    whole = train(tmp_path / "whole", "--training.micro-batch-size", "8", *words)
    assert len({row["loss"] for row in whole}) == 4, "the weights change"
    for row in whole:
        assert row["loss"] == pytest.approx(row["causal_lm"] + 0.5 * row["balance"], rel=1e-5)
    again = train(tmp_path / "parts", "--training.micro-batch-size", "2", "--memory.recompute", "all", *words)
    for row, other in zip(whole, again, strict=True):
        assert other == pytest.approx(row, rel=1e-5)
    without = train(tmp_path / "without", "--training.micro-batch-size", "8", "--objective.balance-weight", "0")
    assert without[-1]["causal_lm"] != whole[-1]["causal_lm"], "the balance has a gradient"


def test_bad_options_are_one_line(example, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example("experts")
    words = [*TRAINING.split(), "--model.experts-per-token", "9", "--output", str(tmp_path / "run")]
    assert extend.main(["train", RECIPE, *words]) == 2
    assert "must be at most num_experts, which is 8" in capsys.readouterr().err


def test_the_plan_is_what_steps_need(example) -> None:
    """The memory of real steps, within the tolerance of ``--check``, 3 %."""
    example("experts")
    sizes = (
        "--model.vocab-size 512 --training.global-batch-size 4 --training.micro-batch-size 4 --precision.compute fp32"
    )
    assert extend.main(["plan", RECIPE, *sizes.split(), "--check"]) == 0
