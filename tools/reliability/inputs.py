"""Mutated inputs of all parsers and of the command line: read, or refused in one line, in little time and memory.

A trial is a process that reads 250 mutations of one format, with a limit on its address space and a clock for each. A
mutation knows the structure of a format: of JSON and TOML it changes values, keys and lists; of other files bits,
numbers, pieces and lengths. What breaks the promise is kept in ``RESULTS/work/inputs-NUMBER``, for a regression test.
"""

import bz2
import contextlib
import gzip
import io
import json
import lzma
import pickle
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
from small_runs import train_small
from trials import Part, Trial, in_child

import hornbook
from hornbook.cli.main import main
from hornbook.config import load_recipe
from hornbook.corpora.store import open_store
from hornbook.errors import HornbookError
from hornbook.exchange.huggingface import read_folder, write_folder
from hornbook.exchange.restore import read_source
from hornbook.interop.convert.conversion import read_documents as read_token_documents
from hornbook.interop.convert.detect import detect_source
from hornbook.text.documents import read_documents
from hornbook.text.reading import ReadOptions
from hornbook.text.tokenizer import Tokenizer
from hornbook.track.runs import summarize

PER_TRIAL = 250
SECONDS = 2.0
"""Of processor time for an input."""
MEMORY = 256 << 20
"""Bytes that an input may take beside what is there."""

Read = Callable[[Path], object]


@dataclass(frozen=True, kw_only=True)
class Format:
    """A file of a folder that is mutated, and what reads the folder."""

    folder: str
    file: str
    read: Read


def _documents(path: Path) -> None:
    kind: Literal["wikipedia", "auto"] = "wikipedia" if path.suffix == ".xml" else "auto"
    for _ in read_documents([path], ReadOptions(format=kind)):
        pass


def _store(path: Path) -> None:
    store = open_store(path, "train")
    for number in range(store.num_documents):
        store.document(number)


def _tokens(path: Path) -> None:
    file = next(file for file in path.iterdir() if file.name.startswith("tokens"))
    for _ in read_token_documents(file, detect_source(file)):
        pass


def _command_line(path: Path) -> None:
    """Run the command whose words are the lines of a file."""
    words = (path / "words.txt").read_text(errors="replace").splitlines()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        code = main([word.replace("\0", "") for word in words])
    assert code in (0, 1, 2), f"exit code {code}"
    assert "Traceback" not in errors.getvalue(), errors.getvalue()


FORMATS: dict[str, Format] = {
    "recipe": Format(folder="recipe", file="recipe.toml", read=lambda path: load_recipe(str(path / "recipe.toml"))),
    "tokenizer": Format(folder="tokenizer", file="tokenizer.json", read=Tokenizer.load),
    "vocabulary": Format(folder="wordpiece", file="vocab.txt", read=lambda path: Tokenizer.load(path / "vocab.txt")),
    "plain text": Format(folder="texts", file="text.txt", read=lambda path: _documents(path / "text.txt")),
    "JSONL": Format(folder="texts", file="lines.jsonl", read=lambda path: _documents(path / "lines.jsonl")),
    "CSV": Format(folder="texts", file="table.csv", read=lambda path: _documents(path / "table.csv")),
    "gzip": Format(folder="texts", file="text.txt.gz", read=lambda path: _documents(path / "text.txt.gz")),
    "bzip2": Format(folder="texts", file="text.txt.bz2", read=lambda path: _documents(path / "text.txt.bz2")),
    "xz": Format(folder="texts", file="text.txt.xz", read=lambda path: _documents(path / "text.txt.xz")),
    "Wikipedia": Format(folder="texts", file="wiki.xml", read=lambda path: _documents(path / "wiki.xml")),
    "store, manifest": Format(folder="corpus/train", file="manifest.json", read=_store),
    "store, index": Format(folder="corpus/train", file="tokens.idx", read=_store),
    "Megatron, index": Format(
        folder="megatron", file="text_document.idx", read=lambda path: _store(path / "text_document")
    ),
    "pickle": Format(folder="pickle", file="tokens.pkl", read=_tokens),
    "npy": Format(folder="npy", file="tokens.npy", read=_tokens),
    "safetensors": Format(folder="hf", file="model.safetensors", read=read_folder),
    "config.json": Format(folder="hf", file="config.json", read=read_folder),
    "checkpoint": Format(folder="run/checkpoints/step-00000020", file="manifest.json", read=read_source),
    "run, log": Format(folder="run", file="metrics.jsonl", read=summarize),
    "run, environment": Format(folder="run", file="environment.json", read=summarize),
    "command line": Format(folder="words", file="words.txt", read=_command_line),
}


def _prepare(shared: Path) -> None:
    """Write an intact file of each format."""
    texts = shared / "texts"
    texts.mkdir()
    stories = [f"story {number}: " + "the cat sat on the mat, é😀 " * (number % 9) for number in range(20)]
    whole = "\n\n".join(stories)
    (texts / "text.txt").write_text(whole)
    (texts / "lines.jsonl").write_text("".join(json.dumps({"text": text, "id": 3}) + "\n" for text in stories))
    (texts / "table.csv").write_text("id,text\n" + "".join(f'{n},"{text}"\n' for n, text in enumerate(stories)))
    (texts / "text.txt.gz").write_bytes(gzip.compress(whole.encode(), mtime=0))
    (texts / "text.txt.bz2").write_bytes(bz2.compress(whole.encode()))
    (texts / "text.txt.xz").write_bytes(lzma.compress(whole.encode()))
    (texts / "wiki.xml").write_text(_wiki(stories))
    tokenizer = hornbook.train_tokenizer(texts / "text.txt", vocab_size=300, output=shared / "tokenizer")
    hornbook.build_corpus(texts / "lines.jsonl", tokenizer, output=shared / "corpus")
    (shared / "wordpiece").mkdir()
    letters = "abcdefghij"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters), "cat"]
    (shared / "wordpiece" / "vocab.txt").write_text("\n".join(words) + "\n")
    (shared / "megatron").mkdir()
    for suffix in ("bin", "idx"):
        shutil.copy(shared / f"corpus/train/tokens.{suffix}", shared / f"megatron/text_document.{suffix}")
    (shared / "pickle").mkdir()
    (shared / "pickle" / "tokens.pkl").write_bytes(pickle.dumps([[1, 2, 300], [4] * 20], protocol=4))
    (shared / "npy").mkdir()
    np.save(shared / "npy" / "tokens.npy", np.arange(400, dtype=np.uint16))
    _, problem = in_child(lambda: train_small("GPT fp32", shared / "run"), shared / "log")
    assert problem is None, problem
    path, contents = read_source(shared / "run")
    write_folder(shared / "hf", contents, source=path)
    (shared / "recipe").mkdir()
    shutil.copy(shared / "run" / "recipe.toml", shared / "recipe")
    (shared / "words").mkdir()


def _wiki(texts: list[str]) -> str:
    pages = "".join(
        f"<page><title>Page {n}</title><ns>0</ns><id>{n}</id><revision><id>{n}</id><model>wikitext</model>"
        f"<text>[[link|{text}]] {{{{a|b}}}} &lt;ref&gt;x&lt;/ref&gt;</text></revision></page>"
        for n, text in enumerate(texts)
    )
    return f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" version="0.10">{pages}</mediawiki>'


_COMMANDS = (
    "train demo --data.train {corpus} --training.steps 1 --print-recipe",
    "plan gpt2-small --devices 8 --device h100",
    "corpus inspect {corpus}",
    "corpus verify {corpus}",
    "runs list {shared}",
    "runs compare {run} {run}",
    "checkpoint list {run}",
    "recipes",
    "train demo --print-recipe --optimizer.learning-rate 1e-3",
)
_ODD_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2**31, 2**63, -(2**63), 1e308, -0.0, 0.5, "", "x", "\0", "é" * 50, "../../etc/passwd", [], {},
    [[]], {"a": 1}, "1" * 5000, 10**400,
)  # fmt: skip
_ODD_NUMBERS = (0, 1, 127, 128, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
_ODD_TEXTS = ("\0", '"', "[[", "{{", "<", "&amp", "\u202e", "a" * 10_000, "'" * 3, "\t", "\r")


def mutations(original: bytes, name: str, draws: Random) -> Iterator[bytes]:
    """Yield damaged forms of a file, endlessly."""
    while True:
        if name.endswith((".json", ".jsonl")) and draws.random() < 0.7:
            lines = original.splitlines() if name.endswith("l") else [original]
            at = draws.randrange(len(lines))
            lines[at] = json.dumps(_changed(json.loads(lines[at]), draws)).encode()
            yield b"\n".join(lines)
        elif name.endswith((".toml", ".txt", ".csv", ".xml")) and draws.random() < 0.7:
            yield _changed_lines(original.decode(errors="replace"), draws).encode(errors="surrogatepass")
        else:
            yield _changed_bytes(original, draws)


def _changed(value: Any, draws: Random) -> Any:
    """Return a JSON value with a change somewhere."""
    if isinstance(value, dict) and value and draws.random() < 0.9:
        key = draws.choice(sorted(value))
        match draws.randrange(6):
            case 0:
                return {other: entry for other, entry in value.items() if other != key}
            case 1:
                return {**value, draws.choice(("", "x", key.upper(), "é" * 9)): value[key]}
        return {**value, key: _changed(value[key], draws)}
    if isinstance(value, list) and value and draws.random() < 0.9:
        at = draws.randrange(len(value))
        match draws.randrange(6):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return value + value[at : at + 1] * draws.choice((1, 100))
        return [*value[:at], _changed(value[at], draws), *value[at + 1 :]]
    if isinstance(value, int) and not isinstance(value, bool) and draws.random() < 0.5:
        return value + draws.choice((-1, 1, 2**31, -(2**40)))
    return draws.choice(_ODD_VALUES)


def _changed_lines(text: str, draws: Random) -> str:
    lines = text.split("\n")
    for _ in range(draws.choice((1, 1, 2, 5))):
        at = draws.randrange(len(lines))
        left, sign, right = lines[at].partition("=")
        match draws.randrange(6):
            case 0:
                lines[at] = f"{left}{sign} {draws.choice(_ODD_VALUES)!r}"
            case 1:
                lines.insert(at, lines[draws.randrange(len(lines))])
            case 2:
                lines[at] = lines[at][: draws.randint(0, len(lines[at]))]
            case 3:
                lines[at] += draws.choice(_ODD_TEXTS)
            case 4:
                lines[at] = f"{right}{sign}{left}"
            case _:
                lines = [*lines[:at], *lines[at + 1 :]] or [""]
    return "\n".join(lines)


def _changed_bytes(original: bytes, draws: Random) -> bytes:
    data = bytearray(original)
    for _ in range(draws.choice((1, 1, 2, 3, 8))):
        place, other = draws.randrange(len(data) + 1), draws.randrange(len(data) + 1)
        match draws.randrange(6):
            case 0 if place < len(data):
                data[place] ^= 1 << draws.randrange(8)
            case 1:
                data[place : place + 1] = draws.randbytes(1)
            case 2:
                size = draws.choice((1, 2, 4, 8))
                number = draws.choice(_ODD_NUMBERS) % (1 << 8 * size)
                data[place : place + size] = number.to_bytes(size, draws.choice(("little", "big")))
            case 3:
                del data[place : place + draws.choice((1, 2, 8, 1000))]
            case 4:
                data[place:place] = data[other : other + draws.choice((1, 4, 16, 64))]
            case 5 if draws.random() < 0.3:
                del data[place:]
    return bytes(data)


def _run(trial: Trial) -> str:
    name = list(FORMATS)[trial.number % len(FORMATS)]
    form, folder = FORMATS[name], trial.folder / "input"
    shutil.copytree(trial.shared / form.folder, folder)
    if name == "command line":
        places = {"corpus": trial.shared / "corpus", "run": trial.shared / "run", "shared": trial.shared}
        originals = [command.format(**places).replace(" ", "\n").encode() for command in _COMMANDS]
    else:
        originals = [(folder / form.file).read_bytes()]
        form.read(folder)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    signal.signal(signal.SIGPROF, _too_long)
    sources = [mutations(original, form.file, trial.draws) for original in originals]
    refused = 0
    for number in range(PER_TRIAL):
        (folder / form.file).write_bytes(next(sources[number % len(sources)]))
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            form.read(folder)
        except HornbookError as error:
            assert "\n" not in str(error), f"an error of several lines: {error}"
            refused += 1
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    return f"{name}, {refused} of {PER_TRIAL} refused"


def _too_long(number: int, frame: object) -> None:
    raise TimeoutError(f"an input took more than {SECONDS} s of processor time")


INPUTS = Part(
    name="inputs",
    promise=f"mutated files and commands, {PER_TRIAL} in a trial, are read or refused in one line, within "
    f"{SECONDS:.0f} s and {MEMORY >> 20} MiB",
    run=_run,
    prepare=_prepare,
    trials=420,
    short=len(FORMATS),
)
