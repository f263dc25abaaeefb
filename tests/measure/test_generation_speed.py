"""The timing of generation: who is asked for what, in which order, and how seconds become rates."""

import json
import re
import time
from dataclasses import asdict

import pytest
import torch

from hornbook.__main__ import main
from hornbook.cli import bench_command as bench
from hornbook.config import load_recipe
from hornbook.errors import UserError
from hornbook.measure.throughput import hornbook_generate, measure_generation, random_prompts
from hornbook.peers import transformers_generate

SIZES = (
    "--model.num-layers 1 --model.hidden-size 32 --model.num-heads 2 --model.max-positions 24 --data.sequence-length 24"
)
CPU = torch.device("cpu")


@pytest.fixture
def recipe():
    return load_recipe("demo", [*SIZES.split(), "--model.vocab-size", "70"], require_data=False).recipe


def test_contenders_take_turns_and_medians_count(monkeypatch: pytest.MonkeyPatch):
    """A clock that a contender turns itself: a prompt takes 5 seconds, a token 1 or 2, and the last round is slow."""
    now, calls = [0.0], []

    def contender(name: str, seconds: float):
        def write(num_tokens: int) -> None:
            calls.append((name, num_tokens))
            slow = 100.0 if len(calls) > 12 else 1.0
            now[0] += 5.0 + slow * seconds * (num_tokens - 1)

        return write

    monkeypatch.setattr("hornbook.measure.throughput.time.perf_counter", lambda: now[0])
    contenders = {"a": contender("a", 1.0), "b": contender("b", 2.0)}
    speeds = measure_generation(contenders, batch_size=4, num_tokens=11, device=CPU, rounds=3)
    assert calls == [("a", 1), ("a", 11), ("b", 1), ("b", 11)] * 4
    assert [(speed.first_token_seconds, speed.token_seconds, speed.tokens_per_second) for speed in speeds.values()] == [
        (5.0, 1.0, 4.0),
        (5.0, 2.0, 2.0),
    ]


def test_a_difference_below_the_noise_is_no_speed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """One call for ten tokens that is quicker than one for a single token says nothing of a token's time."""
    now = [0.0]

    def write(num_tokens: int) -> None:
        now[0] += 1.0 if num_tokens == 1 else 0.5

    monkeypatch.setattr("hornbook.measure.throughput.time.perf_counter", lambda: now[0])
    speeds = measure_generation(
        {"hornbook fp32": write, "peer fp32": write}, batch_size=8, num_tokens=10, device=CPU, rounds=3
    )
    speed = speeds["hornbook fp32"]
    assert (speed.first_token_seconds, speed.token_seconds, speed.tokens_per_second) == (1.0, None, None)
    rows = [{"batch_size": 8, "contender": name, **asdict(speed)} for name, speed in speeds.items()]
    bench._print_generation(rows)
    out = capsys.readouterr().out
    assert out.count("the time per token is below the noise; increase --output-length or --rounds\n") == 2
    assert "tokens/s" not in out
    assert bench._ratios(rows, "peer") == []


@pytest.mark.parametrize("contender", [hornbook_generate, transformers_generate])
@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_contenders_write_as_many_tokens_as_they_are_asked_for(recipe, contender, compute):
    prompts = random_prompts(recipe, batch_size=3, prompt_length=4, num_tokens=6)
    assert [len(prompt) for prompt in prompts] == [4, 4, 4]
    written = contender(recipe, prompts, CPU, compute)(6)
    lengths = [len(row) for row in written]
    assert lengths == ([10] * 3 if isinstance(written, torch.Tensor) else [6] * 3), "transformers returns prompts too"


def test_what_does_not_fit_is_refused(recipe):
    with pytest.raises(UserError, match=r"^20 \+ 5 tokens exceed the model's 24 positions; decrease"):
        random_prompts(recipe, batch_size=1, prompt_length=20, num_tokens=5)


@pytest.mark.parametrize("dtype", ["--compute fp32", "--dtype fp32"])  # its own option, and the recipe's
def test_the_command(dtype: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """By processor time: on a busy machine, twenty tokens may take less time on the wall clock than one."""
    monkeypatch.setattr("hornbook.measure.throughput.time.perf_counter", time.process_time)
    words = f"bench generate demo {SIZES} --peer transformers --rounds 3 --batch-size 1 2 {dtype} --threads 1"
    assert main([*words.split(), "--prompt-length", "4", "--output-length", "20", "--json"]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert [(row["batch_size"], row["contender"]) for row in result["rows"]] == [
        (1, "hornbook fp32"),
        (1, "transformers fp32"),
        (2, "hornbook fp32"),
        (2, "transformers fp32"),
    ]
    seconds = [row["token_seconds"] for row in result["rows"]]
    assert [row["ratio"] for row in result["ratios"]] == [seconds[1] / seconds[0], seconds[3] / seconds[2]]
    assert len(re.findall(r"^  (hornbook|transformers) fp32 +first token +[\d.,]+ ms", err, re.MULTILINE)) == 4
    assert re.search(r"^batch of 2 in fp32: \d+\.\d\d times the speed per token of transformers$", err, re.MULTILINE)


def test_one_token_cannot_be_timed(capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "generate", "demo", "--output-length", "1"]) == 2
    assert "must be at least 2" in capsys.readouterr().err


def test_an_encoder_is_refused(capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "generate", "bert-tiny", "--threads", "1"]) == 2
    assert "bert-tiny is an encoder, which does not generate text" in capsys.readouterr().err
