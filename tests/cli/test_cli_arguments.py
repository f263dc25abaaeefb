import argparse
import re
from pathlib import Path

import pytest

from hornbook.__main__ import main
from hornbook.cli.arguments import (
    CommandParser,
    add_device_arguments,
    add_recipe_arguments,
    fraction,
    natural_number,
    positive_integer,
    positive_number,
)
from hornbook.config.recipe import SECTIONS, specs
from hornbook.errors import UserError
from hornbook.storage.system import usable_cores


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (positive_integer, "1e3", 1000),
        (natural_number, "0", 0),
        (positive_number, "5", 5.0),
        (fraction, "1", 1.0),
    ],
)
def test_numbers(kind, text, value):
    assert kind(text) == value
    assert type(kind(text)) is type(value)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (positive_integer, "0", '"0": must be at least 1'),
        (positive_integer, "1.5", '"1.5": expected an integer, got a float'),
        (natural_number, "-1", '"-1": must be at least 0'),
        (positive_number, "nan", '"nan": expected a finite number'),
        (fraction, "1.1", '"1.1": must be at least 0 and at most 1'),
    ],
)
def test_numbers_that_are_wrong(kind, text, message):
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        kind(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "words",
    [
        ["train", "demo", "--threads", "9999999"],
        ["sweep", "demo", "--lr", "1,2", "--threads", "9999999"],
        ["demo", "--threads", "9999999"],
        ["corpus", "build", "text", "--tokenizer", "a", "--output", "b", "--threads", "9999999"],
        ["corpus", "build", "text", "--tokenizer", "a", "--output", "b", "--workers", "9999999"],
        ["bench", "corpus", "text", "--tokenizer", "a", "--threads", "9999999"],
    ],
    ids=" ".join,
)
def test_more_threads_than_can_take_turns(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert re.search(r'argument --(threads|workers): "9999999": must be .* at most \d+ \(see', capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []


def test_more_ranks_than_a_machine_could_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    fitting = ["--training.global-batch-size=9999999", "--training.micro-batch-size=1"]
    assert main(["train", "demo", "--data.synthetic", "--model.vocab-size=300", *fitting, "--processes=9999999"]) == 2
    assert f"--processes is 9,999,999: start at most {16 * usable_cores()} here" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_empty_output_is_not_the_working_directory():
    """As of ``--output "$OUT"`` with a variable that is not set."""
    made = CommandParser(prog="hornbook try")
    made.add_argument("--output", type=Path)
    made.add_argument("--prompt")
    for words in (["--output", ""], ["--output="]):
        with pytest.raises(UserError, match=r"argument --output: must not be empty.*hornbook try --help"):
            made.parse_args(words)
    assert made.parse_args(["--output", ".", "--prompt", ""]).output == Path()


OF_TRAIN_AUTO = "{} is a dial of `hornbook train auto`, whose --print-recipe prints a recipe for this"


def parser():
    made = CommandParser(prog="hornbook try")
    made.add_argument("--output-length", type=positive_integer, default=1)
    add_device_arguments(made)
    add_recipe_arguments(made)
    return made


def test_recipe_options_come_out_apart():
    arguments = parser().parse_args(
        ["--model.num-layers", "3", "gpt2-small", "--threads", "2", "--data.synthetic", "--output-length=4"]
    )
    assert (arguments.recipe, arguments.threads, arguments.device, arguments.output_length) == (
        "gpt2-small",
        2,
        "auto",
        4,
    )
    values = {key: leaf.value for key, leaf in arguments.overrides.items()}
    assert values == {("model", "num_layers"): "3", ("data", "synthetic"): None}


def test_parsers_without_a_recipe_leave_dotted_words_alone():
    plain = CommandParser(prog="hornbook try")
    plain.add_argument("--model.num-layers", dest="layers")
    arguments = plain.parse_args(["--model.num-layers", "3"])
    assert arguments.layers == "3"
    assert not hasattr(arguments, "overrides")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "--num-layers", "3"], 'unknown option "--num-layers"; did you mean "--model.num-layers"?'),
        (["a", "--thread", "3"], 'unknown option "--thread"; did you mean "--threads"?'),
        (["a", "--params", "3M"], f'unknown option "--params"; {OF_TRAIN_AUTO.format("--params")}'),
        (["a", "--tim", "3h"], f'unknown option "--tim"; {OF_TRAIN_AUTO.format("--time")}'),
        (["a", "--tokens", "3M"], 'unknown option "--tokens"; did you mean "--training.tokens"?'),
        (["auto", "--tokens", "3M"], f'unknown option "--tokens"; {OF_TRAIN_AUTO.format("--tokens")}'),
        (["a", "--threads", "0"], f'argument --threads: "0": must be at least 1 and at most {16 * usable_cores()}'),
        (["a", "--device", "gpu"], 'argument --device: "gpu" is not one of auto, cpu, cuda, mps; did you mean "cuda"?'),
        (["a", "b\nc"], 'unexpected argument "b\\nc"'),
        (["--threads", "1"], "the following arguments are required: RECIPE"),
    ],
)
def test_mistakes(words, message):
    with pytest.raises(UserError) as caught:
        parser().parse_args(words)
    assert str(caught.value) == f"{message} (see `hornbook try --help`)"


def test_help_lists_every_recipe_option_with_type_default_and_help():
    made = parser()
    assert not any(action.help for group in made.sections.values() for action in group._group_actions), "not yet needed"
    made.describe()
    text = " ".join(made.format_help().split())
    for section in SECTIONS:
        assert f"recipe, [{section}]:" in text
        for name, owners in specs(section).items():
            assert f"--{section}.{name.replace('_', '-')} " in text
            assert owners[0][1].help in text
    assert "--model.num-layers INTEGER number of transformer blocks (default: 12)" in text
    assert (
        ",cosine,warmup_stable_decay,polynomial,natural_exponential,by_step} learning-rate schedule (default: cosine)"
        in text
    )
    assert "as a fraction of the peak (default: 0.0; only for linear, cosine, warmup_stable_decay, polynomial)" in text
    assert (
        "peak learning rate (default: 0.0006; adam: 0.001; lamb: 0.006; sgd: 0.1; momentum: 0.01; muon: 0.02)" in text
    )
    assert "--data.synthetic [true|false]" in text
    assert "--precision.compute {auto,fp32,bf16,fp16}" in text
