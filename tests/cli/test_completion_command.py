"""``hornbook completion``: the scripts as their shells run them."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hornbook.__main__ import main
from hornbook.cli.main import COMMANDS
from hornbook.config import bundled_recipes
from hornbook.config.recipe import SECTIONS, specs

HAS_FISH, HAS_ZSH = (shutil.which(shell) is not None for shell in ("fish", "zsh"))


def script_of(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", shell]) == 0
    path = folder / f"hornbook.{shell}"
    path.write_text(capsys.readouterr().out)
    return path


@pytest.fixture
def complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Return what bash offers for a line, whose last word is being typed, in a folder with some files."""
    script = script_of("bash", tmp_path, capsys)
    here = tmp_path / "here"
    (here / "runs").mkdir(parents=True)
    (here / "my recipe.toml").touch()

    def ask(line: str) -> list[str]:
        words = line.split(" ")
        quoted = " ".join(map(shlex.quote, words))
        state = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}"
        commands = f'source {script}; {state}; _hornbook; printf "%s\\n" "${{COMPREPLY[@]}}"'
        bash = ["bash", "--norc", "-uc", commands]
        answer = subprocess.run(bash, cwd=here, capture_output=True, text=True, check=True)
        assert answer.stderr == ""
        return sorted(filter(None, answer.stdout.split("\n")))

    return ask


def test_commands_and_subcommands(complete) -> None:
    assert complete("hornbook ") == sorted(COMMANDS)
    assert complete("hornbook co") == ["completion", "corpus"]
    assert complete("hornbook corpus b") == ["build"]
    assert complete("hornbook --json runs ") == ["compare", "list", "note", "report", "serve", "tag"]
    assert complete("hornbook completion ") == ["bash", "fish", "zsh"]


def test_options_of_commands_and_of_recipes(complete) -> None:
    assert complete("hornbook evaluate runs/demo --t") == ["--tasks", "--threads"]
    assert complete("hornbook train demo --training.st") == ["--training.steps"]
    assert complete("hornbook --ver") == ["--version"]
    assert complete("hornbook tokenizer --vocab") == [], "an option of `tokenizer train`"
    every = [f"--{section}.{name.replace('_', '-')}" for section in SECTIONS for name in specs(section)]
    offered = complete("hornbook train --")
    assert set(every) < set(offered) and "--output" in offered


def test_recipes_and_paths(complete) -> None:
    assert complete("hornbook recipes show ") == sorted(bundled_recipes())
    assert complete("hornbook train gpt2-x") == ["gpt2-xl"]
    assert complete("hornbook train my") == ["my recipe.toml"]
    assert complete("hornbook evaluate r") == ["runs"]
    assert complete("hornbook train demo --output r") == ["runs"]
    assert complete("hornbook train demo --init-from r") == ["runs"]


def test_values_of_options(complete) -> None:
    assert complete("hornbook train demo --model.family g") == ["gpt", "groupbert"]
    assert complete("hornbook train demo --precision.compute = ") == ["auto", "bf16", "fp16", "fp32"]
    assert complete("hornbook train demo --precision.compute =") == ["auto", "bf16", "fp16", "fp32"], (
        "= is a word of its own"
    )
    assert complete("hornbook train demo --data.synthetic ") == ["false", "true"]
    assert complete("hornbook train demo --training.steps ") == [], "a number"
    assert complete("hornbook train --training.steps 5 gpt2-x") == ["gpt2-xl"]
    assert complete("hornbook corpus build texts --from wiki") == ["wikiextractor", "wikipedia", "wikitext"]


@pytest.mark.skipif(not HAS_FISH, reason="fish is not installed")
def test_fish(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = script_of("fish", tmp_path, capsys)

    def ask(line: str) -> list[str]:
        command = ["fish", "--no-config", "-c", f"source {script}; complete -C {shlex.quote(line)}"]
        answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return sorted(row.partition("\t")[0] for row in answer.stdout.splitlines())

    assert ask("hornbook corpus b") == ["build"]
    assert ask("hornbook train demo --training.st") == ["--training.steps"]
    assert ask("hornbook train gpt2-x") == ["gpt2-xl"]
    assert ask("hornbook train demo --model.family g") == ["gpt", "groupbert"]
    assert ask("hornbook recipes show gpt3") == ["gpt3-2.7b"]
    assert ask("hornbook evaluate hornb") == ["hornbook.fish"]


@pytest.mark.skipif(not HAS_ZSH, reason="zsh is not installed")
def test_zsh_understands_its_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = script_of("zsh", tmp_path, capsys)
    commands = f"autoload -Uz compinit && compinit -u -D && source {script} && print $_comps[hornbook]"
    answer = subprocess.run(["zsh", "-f", "-c", commands], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["_hornbook"]


def test_no_torch_is_imported() -> None:
    code = "import sys; from hornbook.__main__ import main; main(['completion', 'bash']); print('torch' in sys.modules)"
    words = [sys.executable, "-c", code]
    answer = subprocess.run(words, capture_output=True, text=True, check=True, env=os.environ)
    assert answer.stdout.splitlines()[-1] == "False"


def test_json_and_an_unknown_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["shell"] == "zsh" and result["script"].startswith("#compdef hornbook\n")
    assert main(["completion", "csh"]) == 2
    assert '"csh" is not one of bash, zsh, fish' in capsys.readouterr().err
