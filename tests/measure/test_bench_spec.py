import re
from pathlib import Path

import pytest

from hornbook.errors import HornbookError
from hornbook.measure.bench_spec import bundled_specs, cases_of, find_spec, read_spec

SPEC = """
repeats = 3
[options.step]
threads = 1
[benchmarks.one]
kind = "step"
recipe = "demo"
options = { rounds = 2, kernels = ["torch", "native"], "model.num_layers" = 2 }
[benchmarks.one.variants.wide]
"model.hidden_size" = 256
[benchmarks.two]
kind = "corpus"
source = "texts.jsonl"
[shrunk.step]
rounds = 1
kernels = false
"parallel.layers_per_stage" = []
"evaluation.bf16" = true
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "mine.toml").write_text(SPEC)
    return tmp_path / "mine.toml"


def test_cases_are_words_of_the_command_line(path: Path) -> None:
    spec, found = find_spec(str(path))
    assert (spec.name, spec.repeats, found) == ("mine", 3, ["one", "two"])
    plain = {case.name: " ".join(case.words) for case in cases_of(spec, found, shrunk=False, options={})}
    one = "step demo --threads 1 --rounds 2 --kernels torch native --model.num-layers 2"
    assert plain == {"one": one, "one/wide": f"{one} --model.hidden-size 256", "two": "corpus texts.jsonl"}
    (shrunk,) = cases_of(spec, ["one"], shrunk=True, options={"rounds": "7"})[:1]
    expected = "step demo --threads 1 --rounds 7 --model.num-layers 2 --parallel.layers-per-stage none"
    assert " ".join(shrunk.words) == f"{expected} --evaluation.bf16 true"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("repeats = 3", "repeat = 3", 'unknown key "repeat"; did you mean "repeats"?'),
        ("repeats = 3", "repeats = 0", "expected a whole number of 1 or more"),
        ('kind = "step"', 'kind = "stpe"', 'expected one of step, generate, corpus; did you mean "step"?'),
        ('kind = "step"', "", "expected one of step, generate, corpus"),
        ('recipe = "demo"', "", "the recipe is missing, add it"),
        ('source = "texts.jsonl"', 'recipe = "demo"\nsource = "x"', "the recipe is one too many, remove it"),
        ('recipe = "demo"', "recipe = 3", "expected a text"),
        ("[options.step]", "[options.steps]", 'unknown key "steps"; did you mean "step"?'),
        ('"model.hidden_size" = 256', "model.hidden_size = 256", 'write "model.hidden_size" in quotes'),
        ("rounds = 2", "rounds = 1979-05-27", "expected a number, a text, true, false or a list of these"),
        ("[benchmarks.one]", "[benchmark.one]", 'unknown key "benchmark"; did you mean "benchmarks"?'),
        ("repeats = 3", "repeats = ", "not TOML"),
        ("[shrunk.step]", "[benchmarks.three]", 'unknown key "rounds"'),
    ],
)
def test_a_malformed_spec_is_one_line(path: Path, old: str, new: str, expected: str) -> None:
    path.write_text(SPEC.replace(old, new, 1))
    with pytest.raises(HornbookError, match=re.escape(expected)) as failure:
        read_spec(path)
    assert str(failure.value).startswith(str(path)) and "\n" not in str(failure.value)


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("tf1_bert_large_pretrain_real_pod61", 'did you mean "tf1_bert_large_pretrain_real_pod16"?'),
        ("xyz", "bundled specs: optimum-language-modeling, pytorch-gpt2, tf1-bert"),
        ("no/such.toml", "no benchmark spec no/such.toml here"),
    ],
)
def test_an_unknown_benchmark_suggests_the_nearest(reference: str, expected: str) -> None:
    with pytest.raises(HornbookError, match=re.escape(expected)):
        find_spec(reference)


def test_an_unknown_benchmark_of_a_spec_suggests_the_nearest(path: Path) -> None:
    with pytest.raises(HornbookError, match='did you mean "one"'):
        cases_of(read_spec(path), ["on"], shrunk=False, options={})


def test_the_names_of_the_old_systems_exist() -> None:
    sizes = ("small", "medium", "large_sl512", "large")
    names = [f"pytorch_gpt2_{size}_train_gen_pod{devices}" for size in sizes for devices in (16, 64)]
    names += [f"pytorch_gpt2_{size}_infer_gen_pod16" for size in ("small", "medium", "large", "xl")]
    names += ["tf1_bert_large_pretrain_real_pod16", "tf1_bert_base_pretrain_real_pod16"]
    names += ["tf1_bert_large_pretrain_real_pod64_conv", "tf1_groupbert_base_pretrain_real_pod16"]
    assert all(find_spec(name)[1] == [name] for name in names)
    assert len(read_spec(bundled_specs()["optimum-language-modeling"]).benchmarks) == 10
