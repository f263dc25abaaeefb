"""``hornbook plan`` and ``hornbook train --dry-run`` as a user runs them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_runs import RECIPE
from tiny_text import build_tiny, tiny_tokenizer

from hornbook.__main__ import main

SMALL = ("--model.vocab-size", "4096")


def answer_of(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict]:
    code = main([*words, "--json"])
    (line,) = capsys.readouterr().out.splitlines()
    return code, json.loads(line)


def test_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "gpt2-xl", "--devices", "8", "--device", "H100"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "gpt2-xl on 8 x NVIDIA H100 SXM, 80.0 GiB each: 1,557,611,200 parameters"
    assert lines[1] == "layout  replicas 8; activations in bf16"
    assert any(line.startswith("memory ") and "moments" in line for line in lines)
    assert lines[-1].startswith("It fits: ") and "largest micro-batch that fits is 16" in lines[-1]
    assert max(map(len, lines)) <= 100
    assert any(line.startswith("price") and "GPU clouds, 2025" in line for line in lines)
    assert main(["plan", "gpt2-xl", "--devices", "8", "--price", "2"]) == 0
    assert "at $2 an hour each\n" in (table := capsys.readouterr().out) and "\nprice" not in table


def test_a_step_that_launches_may_bind_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    narrow = ("--model.hidden-size", "64", "--model.num-heads", "1", "--training.micro-batch-size", "8")
    assert main(["plan", "decoder-demo", *SMALL, *narrow]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("launches"))
    assert re.fullmatch(r"launches +not in the time: \S+ ms for the products alone, far more .*\(--kernels\)", line)
    assert main(["plan", "gpt2-xl", "--devices", "8"]) == main(["plan", "demo", *SMALL, "--device", "cpu"]) == 0
    assert "launches" not in capsys.readouterr().out


def test_the_data_give_vocabulary_and_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = build_tiny(tmp_path / "corpus")
    words = (
        "demo",
        "--data",
        str(tmp_path / "corpus"),
        "--epochs",
        "2",
        "--batch-size",
        "4",
        "--sequence-length",
        "16",
    )
    tokens, size = report.splits["train"].tokens, tiny_tokenizer().vocab_size
    code, plan = answer_of(capsys, "plan", *words, "--device", "cpu")
    assert (code, plan["vocab_size"]) == (0, size)
    assert plan["data"].startswith(f"{tokens:,} tokens, vocabulary {size}: ") and "assumed" not in plan
    steps = plan["num_steps"]
    assert plan["length"].startswith(f"{steps:,} steps") and steps == pytest.approx(2 * tokens / 64, rel=0.1)
    code, dry = answer_of(capsys, "train", *words, "--dry-run", "--device", "cpu")
    assert (code, dry["num_steps"], dry["shapes"]["embedding.tokens"]) == (0, steps, [size, 256])


def test_assumptions_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "demo", "--device", "cpu", "--epochs", "2"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("assumed")]
    assert "a vocabulary of 50,257, the published model's (--data.train or --model.vocab-size sets it)" in line
    assert line.endswith("1,000 steps in place of epochs (--data.train sets them)")
    assert main(["plan", "demo", "--device", "cpu", *SMALL]) == 0
    assert "assumed" not in capsys.readouterr().out


def test_one_object_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    code, plan = answer_of(capsys, "plan", "demo", "--device", "cpu", *SMALL)
    assert code == 0
    (stage,) = plan["stages"]
    parts = (stage[name] for name in ("weights", "gradients", "moments", "workspace"))
    assert stage["peak"] == sum(parts) + sum(stage["activations"].values()) == plan["peak"]
    assert (plan["fits"], plan["device"], plan["vocab_size"]) == (True, "cpu", 4096)
    assert plan["step_seconds"] == pytest.approx(sum(plan["seconds"].values()))


def test_a_run_that_does_not_fit_lists_what_to_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "gpt3-2.7b", "--memory", "40GiB"]) == 2
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("It does not fit, ") and ": add --" in last
    words = last.rpartition(": add ")[2].split()
    assert main(["plan", "gpt3-2.7b", "--memory", "40GiB", *words]) == 0


def test_layouts_are_ranked(capsys: pytest.CaptureFixture[str]) -> None:
    code, plan = answer_of(
        capsys, "plan", "demo", "--devices", "2", "--search", "--training.micro-batch-size", "8", *SMALL
    )
    assert code == 0
    seconds = [layout["step_seconds"] for layout in plan["layouts"]]
    assert seconds == sorted(seconds) and len(seconds) > 4
    assert main(["plan", "demo", "--devices", "2", "--search", "--training.micro-batch-size", "8", *SMALL]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "Fastest: --" in lines[-1]
    assert max(map(len, lines)) <= 100
    assert any(line.startswith("price") and "GPU clouds, 2025" in line for line in lines)
    assert main(["plan", "gpt2-xl", "--devices", "8", "--price", "2"]) == 0
    assert "at $2 an hour each\n" in (table := capsys.readouterr().out) and "\nprice" not in table


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--memory", "80 cows"), "--memory 80 cows: expected a size such as 80GiB or 24GB"),
        (("--memory", "0GiB"), "--memory 0GiB: expected a size such as 80GiB or 24GB"),
        (("--device", "h10"), 'did you mean "h100"?'),
        (("--devices", "3"), "is not a multiple of 3 data-parallel ranks"),
        (("--devices", "3", "--parallel.tensor-parallel", "2"), "[parallel] needs a multiple of 2 ranks"),
        (("--shrink",), "--shrink applies only with --check"),
        (("--processes", "2"), "--processes applies only with --check"),
        (("--check", "--memory", "1GiB"), "--memory applies to predictions"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], line: str) -> None:
    assert main(["plan", "demo", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (message,) = captured.err.splitlines()
    assert line in message


def test_it_needs_no_torch() -> None:
    program = (
        "import sys; from hornbook.__main__ import main; main(['plan', 'gpt2-small', '--search', '--devices', '2'])"
    )
    program += "; assert not {'torch', 'numpy'} & set(sys.modules), 'a plan needs none of them'"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600, capture_output=True)


def test_a_check_makes_steps(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = answer_of(capsys, "plan", "demo", "--check", "--shrink", "--precision.compute", "fp32")
    assert code == 0
    (rank,) = found["ranks"]
    assert abs(rank["error"]) < 0.03
    assert rank["predicted"] / rank["measured"] - 1 == pytest.approx(rank["error"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        "",
        "--parallel.data-parallel=shard",
        "--parallel.tensor-parallel=2",
        "--parallel.pipeline-parallel=2 --parallel.pipeline-schedule=1f1b",
        "--parallel.pipeline-parallel=2 --parallel.pipeline-schedule=gpipe",
    ],
)
def test_a_check_on_two_ranks(tmp_path: Path, options: str) -> None:
    words = [sys.executable, "-m", "hornbook", "plan", "demo", "--check", "--shrink", "--processes", "2", "--json"]
    words += ["--precision.compute", "fp32", *options.split()]
    finished = subprocess.run(words, capture_output=True, text=True, timeout=600, cwd=tmp_path)
    found = json.loads(finished.stdout.splitlines()[-1])
    assert finished.returncode == 0, finished.stderr
    assert [abs(rank["error"]) < 0.03 for rank in found["ranks"]] == [True, True]


def test_a_dry_run_shows_shapes_and_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, found = answer_of(
        capsys, "train", "gpt3-2.7b", "--dry-run", "--device", "cpu", "--parallel.data-parallel=shard"
    )
    assert code == (0 if found["fits"] else 2)
    assert found["shapes"]["blocks.31.attention.qkv.weight"] == [3, 2560, 2560]
    assert sum(map(_numbers, found["shapes"].values())) == found["num_parameters"] == 2_651_553_280
    (tmp_path / "tiny.toml").write_text(RECIPE)
    assert main(["train", "tiny.toml", "--dry-run", "--device", "cpu", "--model.vocab-size", "300"]) == 0
    shown = capsys.readouterr().out
    assert "blocks.*.attention.qkv.weight" in shown and "It fits: " in shown
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.toml"], "nothing is written"


def _numbers(shape: list[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def test_the_dial_without_hardware_says_that_it_extrapolates(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", "auto", "--time", "12h", "--devices", "8 x H100")
    code, found = answer_of(capsys, *words, "--data.sequence-length", "128")
    assert code == 0
    assert found["num_steps"] * found["step_seconds"] == pytest.approx(12 * 3600, rel=0.02)  # for any length of windows
    near = re.findall(r"layers of \d+ columns: (\S+) of the law's loss", found["chosen"])
    assert len(near) == 2 and all(re.fullmatch(r"\+\d\.\d\d%", more) and more != "+0.00%" for more in near)
    assert found["law"].startswith("extrapolated: measured up to 3.15M weights in blocks and 10.5M tokens, these are ")
    assert main(["plan", "auto", "--devices", "8 x H100"]) == 2
    assert "add `--time 12h`" in capsys.readouterr().err


def test_an_unknown_device_is_that_of_the_option_that_names_it(capsys):
    for words in (("--devices", "8 x rtx9999"), ("--device", "rtx9999")):
        assert main(["plan", "demo", *words]) == 2
        assert capsys.readouterr().err.startswith(f"hornbook: error: {words[0]} rtx9999: expected one of h100, ")
