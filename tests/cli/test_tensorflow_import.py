"""A BERT of TensorFlow, as a user hands it to the commands."""

import json

import pytest
from tiny_bundle import google_variables, with_slots, write_bundle, write_json
from tiny_encoders import tiny_encoder, tiny_encoder_config

from hornbook.__main__ import main
from hornbook.exchange.huggingface.families import BERT


@pytest.fixture
def google(tmp_path, monkeypatch):
    """A folder as Google published them, with a vocabulary of letters."""
    monkeypatch.chdir(tmp_path)
    model, config = tiny_encoder(), tiny_encoder_config()
    ours = {name: model.logical(name, parameter.detach()) for name, parameter in model.own_parameters()}
    variables = with_slots(google_variables(BERT.to_theirs(ours, config)), "adam_m", "adam_v")
    write_bundle(tmp_path / "google" / "bert_model.ckpt", variables, num_shards=2)
    options = BERT.from_section(config)
    write_json(tmp_path / "google" / "bert_config.json", {k: options[k] for k in options if k != "model_type"})
    letters = [prefix + chr(code) for prefix in ("", "##") for code in range(97, 123)]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *letters]
    (tmp_path / "google" / "vocab.txt").write_text("\n".join(tokens) + "\n")
    return tmp_path / "google"


def ask(capsys, *words):
    code = main([*words, "--json"])
    printed = capsys.readouterr()
    return code, json.loads(printed.out), printed.err.splitlines()


@pytest.mark.parametrize("source", ["google", "google/bert_model.ckpt", "google/bert_model.ckpt.index"])
def test_import(google, capsys, source):
    code, result, said = ask(capsys, "checkpoint", "import", source, "--output", "runs/mine")
    assert (code, result["source"], result["tokenizer"], len(result["warnings"])) == (0, source, True, 1)
    assert "the optimizer state is left out" in result["warnings"][0]
    size = f"2 layers, hidden 32, {result['parameters']:,} parameters"
    warning = f"hornbook: warning: {result['warnings'][0]}"
    assert said == [warning, f"runs/mine/checkpoints/step-00000000: bert, {size}"]
    assert main(["checkpoint", "verify", "runs/mine"]) == 0


def test_generate_takes_it_as_it_is_and_as_it_was_imported(google, capsys):
    assert main(["checkpoint", "import", "google", "--output", "mine"]) == 0
    capsys.readouterr()
    results = []
    for source in ("google", "google/bert_model.ckpt", "mine"):
        code, result, _ = ask(capsys, "generate", source, "--prompt", "a [MASK] c.", "--top-k", "3")
        assert code == 0
        results.append({key: value for key, value in result.items() if key != "checkpoint"})
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("google/bert_model", "no such folder or prefix"),
        ("google/bert_config.json", "google/bert_config.json: a file; expected a Hugging Face folder"),
        ("google/bert_model.ckpt", "google/bert_model.ckpt.data-00001-of-00002 is missing"),
    ],
)
def test_mistakes_are_one_line(google, capsys, source, message):
    (google / "bert_model.ckpt.data-00001-of-00002").unlink()
    code, result, said = ask(capsys, "checkpoint", "import", source, "--output", "mine")
    assert code == 2 and message in result["error"]
    assert said == [f"hornbook: error: {result['error']}"]
    assert not (google.parent / "mine").exists()


def test_a_revision_is_for_the_hub(google, capsys):
    code, result, _ = ask(
        capsys, "checkpoint", "import", "google/bert_model.ckpt", "--output", "mine", "--revision", "main"
    )
    assert code == 2 and "--revision applies only to hub models" in result["error"]
