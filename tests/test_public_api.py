"""What ``import hornbook`` gives: all that is listed, nothing heavy before it is used, types that a checker knows."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hornbook

ROOT = Path(__file__).parent.parent
USE = """
import hornbook

model = hornbook.load("runs/demo")
reveal_type(model)
reveal_type(model.logits([1, 2]))
reveal_type(model.logits(["a", "b"]))
reveal_type(model.loss("a"))
reveal_type(model.generate("a", temperature=0.5))
reveal_type(model.generate(["a"]))
reveal_type(model.generate([1, 2]))
reveal_type(model.embed(["a", "b"]))
reveal_type(model.fill("a [MASK]").text)
reveal_type(hornbook.corpus("corpora/mine")[0])
reveal_type(hornbook.train("demo", {"training.steps": 3}).metrics())
reveal_type(hornbook.train_tokenizer("texts"))
reveal_type(hornbook.build_corpus("texts", "tokenizer", output="corpus"))
model.generate("a", temperatur=0.5)
"""


def test_every_listed_name_is_there_and_documented() -> None:
    assert dir(hornbook) == sorted(hornbook.__all__)
    for name in hornbook.__all__:
        value = getattr(hornbook, name)
        assert name == "__version__" or inspect.getdoc(value), name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = hornbook.nothing


def test_the_page_lists_what_is_public() -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`hornbook\.(\w+)", page))
    assert set(hornbook.__all__) - {"__version__"} <= named
    assert named - {"extend", "errors", "api"} <= set(hornbook.__all__)
    methods = {name for name in vars(hornbook.Model) if not name.startswith("_")}
    assert methods <= set(re.findall(r"`(?:model\.)?(\w+)", page))


def test_the_first_step_is_made_with_few_modules(tmp_path: Path) -> None:
    """The compiler takes two seconds, in each process of a run; SymPy, of which it makes use, half of one."""
    program = (
        "import sys, torch, hornbook\n"
        "before, at_first = set(sys.modules), []\n"
        "sizes = {'model.num_layers': 1, 'model.hidden_size': 8, 'model.num_heads': 1, 'model.vocab_size': 16}\n"
        "length = {'training.steps': 1, 'training.global_batch_size': 16, 'data.synthetic': True}\n"
        "hornbook.train('demo', sizes | length, callbacks=[lambda event: at_first.append(set(sys.modules))])\n"
        "added = {name for name in at_first[0] - before if name.partition('.')[0] != 'hornbook'}\n"
        "of_torch = sorted(name for name in added if name.startswith('torch.'))\n"
        "assert 'torch._dynamo' not in at_first[0] and len(of_torch) <= 4, of_torch\n"
        "assert len(added) <= 120, sorted(added)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600, cwd=tmp_path)


def test_importing_takes_nothing_heavy() -> None:
    program = (
        "import sys, hornbook, hornbook.errors\n"
        "heavy = {'torch', 'numpy', 'tokenizers', 'transformers', 'rich'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
        "assert hornbook.Tokenizer and 'torch' not in sys.modules\n"
        "import hornbook.corpora.store\n"
        "assert hornbook.corpora.store.open_store and 'torch' not in sys.modules\n"
        "assert callable(hornbook.corpus) and 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)


@pytest.mark.slow
def test_a_type_checker_knows_the_names(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "use.py").write_text(USE)
    words = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        "--cache-dir",
        str(tmp_path / "cache"),
        "use.py",
    ]
    finished = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    revealed = re.findall(r'Revealed type is "(.*)"', finished.stdout)
    assert revealed == [
        "hornbook.api.model.Model",
        "torch._tensor.Tensor",
        "list[torch._tensor.Tensor]",
        "float",
        "str",
        "list[str]",
        "list[int]",
        "torch._tensor.Tensor",
        "str",
        "dict[str, torch._tensor.Tensor]",
        "list[dict[str, Any]]",
        "hornbook.text.tokenizer.Tokenizer",
        "pathlib.Path",
    ], finished.stdout
    errors = [line for line in finished.stdout.splitlines() if ": error:" in line]
    assert errors and all(error.startswith(f"use.py:{USE.count(chr(10))}:") for error in errors)
    assert 'Unexpected keyword argument "temperatur"' in errors[0]
