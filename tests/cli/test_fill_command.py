"""``hornbook generate`` of encoders: where gaps come from, where guesses go, what is refused; masks of decoders."""

import io
import json
import math
from pathlib import Path

import pytest
import torch
from tiny import hidden_states
from tiny_encoder_runs import encoder_contents, encoder_tokenizer
from tiny_text import TEXTS, tiny_tokenizer
from written_runs import save_run

from hornbook.__main__ import main
from hornbook.checkpoint import Contents, save
from hornbook.cli.conversation import _lines
from hornbook.exchange.huggingface import write_folder
from hornbook.exchange.restore import load_model
from hornbook.generate.fill_mask import Filled, Guess
from hornbook.text.tokenizer import Tokenizer

ALWAYS = ("--threads", "1", "--compute", "fp32")


def save_encoder(folder: Path, contents: Contents) -> Path:
    """Save the one checkpoint of a run."""
    save(folder / "checkpoints", contents)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("filled")
    return {family: save_encoder(folder / family, encoder_contents(family)) for family in ("bert", "roberta")}


@pytest.fixture
def run(runs) -> Path:
    return runs["bert"]


def expected(run: Path, ids: list[int], gap: int) -> torch.Tensor:
    """The probabilities of all tokens at a place of ``[CLS] ids [SEP]``, with the model called by hand."""
    loaded = load_model(run, torch.device("cpu"), compute="fp32")
    special = loaded.tokenizer.require_masking()
    tokens = torch.tensor([[special.cls, *ids, special.sep]])
    batch = {"tokens": tokens, "positions": torch.arange(tokens.numel())[None], "keys": torch.zeros_like(tokens)}
    batch |= {"firsts": torch.tensor([0]), "lengths": torch.tensor([tokens.numel()])}
    with torch.no_grad():
        return loaded.model.head.logits(hidden_states(loaded.model, batch))[0, 1 + gap].softmax(-1)


def fill(capsys, run: Path, *words: str) -> list[dict]:
    """The JSON lines of a command that succeeds."""
    assert main(["generate", str(run), *words, "--json-lines", *ALWAYS]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def input_of(monkeypatch, data: bytes, *, is_terminal: bool = False) -> None:
    class Input(io.TextIOWrapper):
        def isatty(self) -> bool:
            return is_terminal

    monkeypatch.setattr("sys.stdin", Input(io.BytesIO(data)))


def test_a_gap_is_filled_by_the_likeliest_tokens(run, capsys):
    assert main(["generate", str(run), "--prompt", "The [MASK] sat.", "--top-k", "3", *ALWAYS]) == 0
    tokenizer = encoder_tokenizer()
    ids = [*tokenizer.encode("the"), tokenizer.require_masking().mask, *tokenizer.encode("sat.")]
    best = expected(run, ids, gap=1).topk(3)
    names = [tokenizer.decode([number]) for number in best.indices.tolist()]
    first = f"The{names[0][2:]}" if names[0].startswith("##") else f"The {names[0]}"
    guesses = zip(names, best.values.tolist(), strict=True)
    line = "   ".join(f"{name} {probability:#.3g}" for name, probability in guesses)
    out, err = capsys.readouterr()
    assert (out, err) == (f"{first} sat.\n  {line}\n", "")


def _guess(token: str, probability: float) -> Guess:
    return Guess(token=token, id=1, probability=probability)


def test_a_small_probability_is_not_shown_as_zero():
    guesses = [_guess("cat", 0.12), _guess("dog", 0.000834), _guess(" ", 2.5e-7)]
    (line,) = _lines(Filled(prompt="", text="", gaps=[guesses]))
    assert line == '  cat 0.120   dog 0.000834   " " 2.50e-07'


@pytest.mark.parametrize(("family", "mask"), [("bert", "[MASK]"), ("roberta", "<mask>")])
def test_json_lines_have_every_gap(runs, capsys, family, mask):
    prompt = f"the {mask} sat on the {mask}{mask}, é"
    (record,) = fill(capsys, runs[family], "--prompt", prompt, "--top-k", "100")
    assert record.keys() == {"prompt", "text", "gaps"}
    assert record["prompt"] == prompt and mask not in record["text"]
    tokenizer = encoder_tokenizer("wordpiece" if family == "bert" else family)
    pieces = [tokenizer.encode(text) for text in ("the", " sat on the", "", ", é")]
    gap = tokenizer.require_masking().mask
    ids = [pieces[0], [gap], pieces[1], [gap], pieces[2], [gap], pieces[3]]
    flat = [number for piece in ids for number in piece]
    places = [place for place, number in enumerate(flat) if number == gap]
    assert len(record["gaps"]) == len(places) == 3
    for gap, place in zip(record["gaps"], places, strict=True):
        probabilities = expected(runs[family], flat, place)
        assert [guess["probability"] for guess in gap] == pytest.approx(
            probabilities.topk(100).values.tolist(), abs=2e-6
        )
        assert all(guess["token"] == tokenizer.decode([guess["id"]]) for guess in gap)
    assert len({guess["id"] for guess in record["gaps"][0]}) == 100


def test_the_default_is_five(run, capsys):
    ((gap,),) = (record["gaps"] for record in fill(capsys, run, "--prompt", "[MASK]"))
    assert len(gap) == 5


def test_all_tokens_make_up_one(run, capsys):
    (record,) = fill(capsys, run, "--prompt", "the [MASK]", "--top-k", str(encoder_tokenizer().vocab_size))
    assert math.fsum(guess["probability"] for guess in record["gaps"][0]) == pytest.approx(1.0, abs=1e-4)


def test_texts_do_not_depend_on_the_batch(run, capsys, tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("[MASK]\nthe old cat sees [MASK] near the [MASK] river.\nthe [MASK]\na [MASK] dog\n")
    batches = [fill(capsys, run, "--prompt-file", str(path), "--batch-size", size) for size in ("1", "3", "8")]
    for records in batches[1:]:
        for record, alone in zip(records, batches[0], strict=True):
            assert record["text"] == alone["text"]
            for gap, other in zip(record["gaps"], alone["gaps"], strict=True):
                assert [guess["id"] for guess in gap] == [guess["id"] for guess in other]


def test_prompts_come_from_files_arguments_and_standard_input(run, capsys, monkeypatch, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "the\\n[MASK]"}\n')
    records = fill(capsys, run, "--prompt-file", str(path), "--prompt", "a [MASK]")
    assert [record["prompt"] for record in records] == ["a [MASK]", "the\n[MASK]"]
    assert records[1]["text"].startswith("the\n")
    input_of(monkeypatch, "[MASK] é\n\nthe [MASK]\n".encode())
    assert [record["prompt"] for record in fill(capsys, run)] == ["[MASK] é", "the [MASK]"]


def test_json_and_a_file(run, capsys, tmp_path):
    path = tmp_path / "filled.jsonl"
    words = ["--prompt", "the [MASK]", "--prompt", "[MASK] [MASK]", "--top-k", "2", "--output", str(path)]
    assert main(["generate", str(run), *words, "--json", *ALWAYS]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert result["checkpoint"].startswith(str(run))
    assert [json.loads(line) for line in path.read_text().splitlines()] == result["results"]
    assert [len(record["gaps"]) for record in result["results"]] == [1, 2]
    assert err.splitlines()[0].startswith("the ")


def test_typed_lines_are_filled_one_by_one(run, capsys, monkeypatch):
    input_of(monkeypatch, b"the [MASK]\nno gap\n[MASK] sat\n", is_terminal=True)
    assert main(["generate", str(run), "--top-k", "2", *ALWAYS]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("enter a text with a mask; Ctrl-D exits")
    assert "the text has no mask: write [MASK] in place of each token to predict\n" in err
    texts = [line for line in out.splitlines() if line and not line.startswith("  ")]
    assert len(texts) == 2 and texts[1].endswith(" sat")


def test_a_hugging_face_folder(capsys, tmp_path):
    contents = encoder_contents("bert")
    write_folder(tmp_path / "hf", contents)
    assert fill(capsys, tmp_path / "hf", "--prompt", "the [MASK]") == fill(
        capsys, save_encoder(tmp_path / "run", contents), "--prompt", "the [MASK]"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prompt", "the mask"], "the prompt has no mask: write [MASK] in place of each token to predict"),
        (["--prompt", "[MASK]", "--prompt", "[mask]"], "prompt 2 has no mask"),
        (["--prompt", "[MASK] " * 63], "the prompt has 65 tokens with [CLS] [SEP], but the model has 64 positions"),
        (["--prompt-file", "prompts.txt"], "prompts.txt, line 2 has no mask"),
        (["--prompt", "[MASK]", "--top-k", "101"], "top-k is 101; expected 1 to 100, the size of the vocabulary"),
        (["--prompt", "[MASK]", "--top-k", "none"], "--top-k none applies only to decoders"),
        *(
            (["--prompt", "[MASK]", *option.split()], f"{option.split()[0]} applies only to decoders")
            for option in (
                "--temperature 0.5",
                "--top-p 0.5",
                "--num-samples 2",
                "--input-length 5",
                "--output-length 5",
                "--repetition-penalty 1.2",
                "--stop x",
                "--stop-token none",
                "--seed 0",
            )
        ),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(run, capsys, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    Path("prompts.txt").write_text("the [MASK]\nthe mask\n")
    Path("before.jsonl").write_text("before\n")
    assert main(["generate", str(run), *words, "--output", "before.jsonl", *ALWAYS]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
    assert Path("before.jsonl").read_text() == "before\n"


@pytest.mark.parametrize(
    ("tokenizer", "changes", "message"),
    [
        (tiny_tokenizer(), {}, "the tokenizer has no token"),
        (Tokenizer.train(TEXTS, 200, kind="wordpiece"), {"vocab_size": 50}, "tokens, but the model 50; use"),
    ],
)
def test_an_unsuitable_tokenizer(tmp_path, capsys, tokenizer, changes, message):
    run = save_encoder(tmp_path, encoder_contents("bert", tokenizer, **changes))
    assert main(["generate", str(run), "--prompt", "[MASK]", *ALWAYS]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


def test_for_a_decoder_a_mask_is_text(tmp_path, capsys):
    run = save_run(tmp_path)
    (record,) = fill(capsys, run, "--prompt", "the [MASK] <mask>", "--output-length", "4")
    assert record["tokens"] == 4 and record["prompt"] == "the [MASK] <mask>"
    assert record.keys() >= {"finish_reason", "sample"}
