"""``hornbook generate``: where prompts come from, where texts go, that every option acts, and what is refused."""

import io
import json
import os
import re
from pathlib import Path

import pytest
import torch
from tiny_text import tiny_tokenizer
from written_runs import MAX_POSITIONS, save_run

from hornbook.__main__ import main
from hornbook.cli.conversation import Screen
from hornbook.exchange.restore import load_model
from hornbook.generate import GenerationConfig, TextWriter

ALWAYS = ("--threads", "1", "--compute", "fp32")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(tmp_path_factory.mktemp("written"))


@pytest.fixture
def texts_of(run: Path, capsys: pytest.CaptureFixture[str]):
    """The JSON lines of a command that succeeds."""

    def texts(*words: str) -> list[dict]:
        assert main(["generate", str(run), *words, "--json-lines", *ALWAYS]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return texts


def expected(run: Path, prompt: str, *, sample: int = 0, **changes) -> str:
    """What the library writes, with the command's defaults."""
    loaded = load_model(run, torch.device("cpu"), compute="fp32")
    tokenizer = tiny_tokenizer()
    writer = TextWriter(loaded.model, tokenizer, GenerationConfig(**({"output_length": 12} | changes)))
    return writer.write([writer.request(prompt, sample=sample)])[0].text


class Input(io.TextIOWrapper):
    def __init__(self, data: bytes, *, is_terminal: bool = False) -> None:
        super().__init__(io.BytesIO(data))
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def test_prompt_text_and_time_are_printed(run, capsys):
    assert main(["generate", str(run), "--prompt", "the cat", "--output-length", "12", *ALWAYS]) == 0
    out, err = capsys.readouterr()
    assert out == f"the cat{expected(run, 'the cat')}\n"
    assert re.fullmatch(
        r"1 text, 12 tokens in \d+\.\d\d s, first token after [\d.,]+ ms, then [\d.,]+ ms per token, [\d,]+ tokens/s\n",
        err,
    )


def test_several_texts_are_distinguished(run, capsys):
    words = ["--prompt", "the cat", "--prompt", "", "--num-samples", "2", "--batch-size", "3", "--output-length", "5"]
    assert main(["generate", str(run), *words, *ALWAYS]) == 0
    pairs = [("the cat", 0), ("the cat", 1), ("", 0), ("", 1)]
    texts = [prompt + expected(run, prompt, sample=sample, output_length=5) for prompt, sample in pairs]
    assert capsys.readouterr().out == "".join(f"--- {n} of 4\n{text}\n" for n, text in enumerate(texts, 1))


def test_json_lines(run, texts_of):
    (record,) = texts_of("--prompt", "the cat", "--output-length", "12")
    assert record.pop("seconds") > 0
    text = expected(run, "the cat")
    assert record == {"prompt": "the cat", "sample": 0, "text": text, "tokens": 12, "finish_reason": "length"}


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["--temperature", "0"], {"temperature": 0.0}),
        (["--temperature", "3"], {"temperature": 3.0}),
        (["--top-k", "2"], {"top_k": 2}),
        (["--top-k", "none"], {"top_k": None}),
        (["--top-p", "0.2"], {"top_p": 0.2}),
        (["--temperature", "0", "--repetition-penalty", "5"], {"temperature": 0.0, "repetition_penalty": 5.0}),
        (["--seed", "9"], {"seed": 9}),
        (["--stop", "q", "--stop", "t"], {"stop": ("q", "t")}),
        (
            ["--stop-token", "none", "--temperature", "50", "--top-k", "none"],
            {"stop_token": "none", "temperature": 50.0, "top_k": None},
        ),
        (["--stop-token", "<|endoftext|>", "--top-k", "1"], {"top_k": 1}),
        (["--input-length", "4"], {"input_length": 4}),
        (["--no-start-token"], {"start_token": False}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_every_option_reaches_the_texts(run, texts_of, words, options):
    prompt = "the cat sat on the mat"
    (record,) = texts_of("--prompt", prompt, "--output-length", "40", *words)
    assert record["text"] == expected(run, prompt, output_length=40, **options)
    assert record["text"] != expected(run, prompt, output_length=40)


def test_a_runs_texts_begin_with_a_start_token(texts_of):
    texts = [texts_of("--prompt", "the cat", "--output-length", "40", *words) for words in ([], ["--start-token"])]
    assert texts[0][0]["text"] == texts[1][0]["text"]


def test_a_stop_token_by_its_text(run, texts_of, capsys):
    (whole,) = texts_of("--prompt", "the cat", "--output-length", "60")
    letter = next(character for character in whole["text"] if character.isascii() and character.isprintable())
    (cut,) = texts_of("--prompt", "the cat", "--output-length", "60", "--stop-token", letter)
    assert cut["finish_reason"] == "stop_token"
    assert whole["text"].startswith(cut["text"] + letter)
    words = ["--prompt", "the cat", "--output-length", "60", "--stop-token", letter]
    assert main(["generate", str(run), *words, *ALWAYS]) == 0
    assert capsys.readouterr().err.startswith(f"1 text (1 ended by the stop token), {cut['tokens']} token")


def test_a_file_and_arguments(texts_of, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a\\n"}\n{"prompt": ""}\n')
    records = texts_of("--prompt-file", str(path), "--prompt", "first", "--output-length", "2", "--num-samples", "2")
    assert [record["prompt"] for record in records] == ["first", "first", "a\n", "a\n", "", ""]


PROMPTS = ("the cat", "the mat, " * 5, "a", "the cat sat")


def test_texts_one_by_one_do_not_depend_on_each_other_in_bf16(run, capsys):
    words = ["--batch-size", "1", "--json-lines", "--threads", "1", "--compute", "bf16"]
    together = [word for prompt in PROMPTS for word in ("--prompt", prompt)]
    assert main(["generate", str(run), *together, *words]) == 0
    for prompt in PROMPTS:
        assert main(["generate", str(run), "--prompt", prompt, *words]) == 0
    texts = [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()]
    assert texts[:4] == texts[4:]


def test_texts_do_not_depend_on_the_batch(texts_of, tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("".join(f"{prompt}\n" for prompt in PROMPTS))
    runs = [
        texts_of("--prompt-file", str(path), "--batch-size", size, "--num-samples", "2") for size in ("1", "3", "8")
    ]
    texts = [[record["text"] for record in records] for records in runs]
    assert texts[0] == texts[1] == texts[2]


def test_standard_input(texts_of, monkeypatch):
    monkeypatch.setattr("sys.stdin", Input(b"the cat\nthe mat\n"))
    assert [record["prompt"] for record in texts_of("--output-length", "2")] == ["the cat", "the mat"]
    monkeypatch.setattr("sys.stdin", Input(b'{"prompt": "a"}\n'))
    words = ("--prompt-file", "-", "--prompt-format", "jsonl", "--output-length", "2")
    assert [record["prompt"] for record in texts_of(*words)] == ["a"]


def test_texts_are_saved_too(texts_of, tmp_path, capsys, run):
    path = tmp_path / "texts.jsonl"
    path.write_text("what was there before\n")
    records = texts_of("--prompt", "the cat", "--prompt", "é", "--output", str(path), "--batch-size", "1")
    assert [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] == records
    assert main(["generate", str(run), "--prompt", "a", "--output", str(tmp_path / "no" / "x.jsonl"), *ALWAYS]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_pipe_gets_the_texts_and_stays(texts_of, tmp_path):
    """As a device does; root may replace `/dev/null`."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    records = texts_of("--prompt", "the cat", "--output", str(tmp_path / "pipe"))
    assert [json.loads(line) for line in os.read(reader, 1 << 16).splitlines()] == records
    assert (tmp_path / "pipe").is_fifo()
    os.close(reader)


def test_an_error_leaves_the_saved_texts_alone(run, tmp_path, capsys):
    path = tmp_path / "texts.jsonl"
    path.write_text("before\n")
    words = ["--prompt", "the cat, " * 60, "--output", str(path)]
    assert main(["generate", str(run), *words, *ALWAYS]) == 2
    assert path.read_text() == "before\n"


def test_json_is_the_summary(run, capsys):
    words = ["--prompt", "the cat", "--num-samples", "2", "--output-length", "12", "--json"]
    assert main(["generate", str(run), *words, *ALWAYS]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["texts"], result["tokens"]) == (2, 24)
    assert [record["text"] for record in result["results"]] == [expected(run, "the cat", sample=n) for n in (0, 1)]
    assert result["seconds_per_token"] > 0 < result["tokens_per_second"]


def test_a_cut_prompt_is_warned_of(run, capsys):
    words = ["--prompt", "the cat sat on the mat", "--prompt", "a", "--prompt", "the mat sat on the cat"]
    assert main(["generate", str(run), *words, "--input-length", "3", "--output-length", "2", *ALWAYS]) == 0
    err = capsys.readouterr().err.splitlines()
    words = "warning: truncated to the last --input-length tokens: prompt 1, by"
    assert re.fullmatch(rf"{words} \d+ tokens, and 1 more", err[0])


def test_a_terminal_is_shown_control_characters_and_a_pipe_gets_them(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    for stream, shown in (
        (Terminal(), "\x1b[1ma\x1b[0m\\x1b]0;b\\x07\n\\x9b\\rc\\r\n"),
        (io.StringIO(), "a\x1b]0;b\x07\r\n\x9b\rc\r\n"),
    ):
        monkeypatch.setattr("sys.stdout", stream)
        screen = Screen()
        screen.write_prompt("a")
        for piece in ("\x1b]0;b\x07\r", "\n\x9b\rc", "\r"):
            screen.write(piece)
        screen.end_line()
        assert stream.getvalue() == shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--output-length", "0"], 'argument --output-length: "0": must be at least 1'),
        (["--top-p", "1.5"], 'argument --top-p: "1.5": must be above 0 and at most 1'),
        (["--top-p", "0"], "argument --top-p"),
        (["--top-k", "0"], "argument --top-k"),
        (["--top-k", "many"], "argument --top-k"),
        (["--temperature", "-1"], "argument --temperature"),
        (["--temperature", "1e-9"], "temperature is 1e-09; expected 0, or at least 1e-06"),
        (["--repetition-penalty", "0"], "argument --repetition-penalty"),
        (["--stop", ""], "--stop is empty"),
        (["--stop-token", "the cat sat"], '--stop-token "the cat sat" is '),
        (["--input-length", "65"], "the input length is 65; expected 1 to 64"),
        (["--prompt", "the cat, " * 40], "prompt 2 has "),
        (["--prompt", "\udcff"], "lone surrogates"),
        (["--prompt-file", "absent.txt"], "absent.txt"),
        (["--prompt-file", "empty.txt"], "empty.txt has no prompt; expected one per line"),
        (["--prompt-file", "bad.jsonl"], "bad.jsonl, line 2: not valid JSON"),
        (
            ["--prompt-file", "long.txt"],
            f"long.txt, line 1 has 241 tokens, but the model has {MAX_POSITIONS} positions",
        ),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_mistakes_are_one_line_and_exit_code_2(run, capsys, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    Path("empty.txt").write_text("\n \n")
    Path("bad.jsonl").write_text('{"prompt": "a"}\n{"prompt"}\n')
    Path("long.txt").write_text("q!" * 120 + "q\n")
    assert main(["generate", str(run), "--prompt", "a", *words, *ALWAYS]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


@pytest.mark.parametrize("flag", ["--json", "--json-lines"])
def test_a_conversation_is_not_for_scripts(run, capsys, monkeypatch, flag):
    monkeypatch.setattr("sys.stdin", Input(b"", is_terminal=True))
    assert main(["generate", str(run), flag]) == 2
    assert "no prompt: add --prompt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batch-size", "2"], "--batch-size does not apply to a conversation"),
        (["--prompt-format", "text"], "--prompt-format applies only to --prompt-file"),
        (["--prompt-format", "jsonl", "--prompt", "a"], "--prompt-format applies only to --prompt-file"),
    ],
)
def test_options_that_no_prompt_has_a_use_for(run, capsys, monkeypatch, words, message):
    monkeypatch.setattr("sys.stdin", Input(b"", is_terminal=True))
    assert main(["generate", str(run), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_model_without_a_tokenizer(tmp_path, capsys):
    assert main(["generate", str(save_run(tmp_path, with_tokenizer=False)), "--prompt", "a", *ALWAYS]) == 2
    assert "tokenizer" in capsys.readouterr().err
