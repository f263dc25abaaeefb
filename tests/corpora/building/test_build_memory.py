"""Memory while a corpus is built: it does not depend on the size of the input."""

import json
import os
import random
import subprocess
import sys

import pytest
from cases import mostly_slow
from tiny_text import tiny_tokenizer

from hornbook.corpora.store import open_store

BLOCK = 32 << 20
WORDS = ("the", "cat", "sat", "on", "mat,", "story", "é😀", "12", "because", "of\n", "it.", "unquestionably")


def block_of_lines():
    """JSONL of 32 MiB: documents of some bytes and of some thousand."""
    draws, lines, size = random.Random(0), [], 0
    while size < BLOCK:
        line = json.dumps({"text": " ".join(draws.choices(WORDS, k=draws.choice((3, 30, 300, 1000))))}) + "\n"
        lines.append(line.encode())
        size += len(lines[-1])
    return len(lines), b"".join(lines)


MEASURING = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def peak_of_build(words, folder):
    """The most memory that a build in a process of its own had, in bytes; and its result.

    A small process starts it, since Linux counts what a process had before it became another program.
    """
    tiny_tokenizer().save(folder / "tok")
    command = [sys.executable, "-m", "hornbook", "corpus", "build", *words, "--tokenizer", str(folder / "tok")]
    command += ["--output", str(folder / "out"), "--json"]
    done = subprocess.run([sys.executable, "-c", MEASURING, *command], stdout=subprocess.PIPE, check=True)
    *_, result, peak = done.stdout.splitlines()
    return int(peak) * (1 if sys.platform == "darwin" else 1024), json.loads(result)


CHINESE = "天地玄黄，宇宙洪荒，日月盈昃，辰宿列张。\n" * 40


@pytest.mark.parametrize("text", mostly_slow([CHINESE, "[-73.981234,40.712345]," * 100]))
def test_text_without_blanks_takes_little_memory(tmp_path, text):
    """Almost each byte is a token of this tokenizer, so there is no worse case."""
    path = tmp_path / "dense.txt"
    path.write_text(text * ((5 << 20) // len(text.encode())))
    peak, result = peak_of_build([str(path)], tmp_path)
    assert result["splits"]["train"]["documents"] == 1
    assert peak < 800 << 20, f"{peak >> 20} MiB"


@pytest.mark.slow
@pytest.mark.parametrize("way", ["file", "pipe"])
def test_two_gib_of_text_in_less_than_one_of_memory(tmp_path, way):
    num_lines, block = block_of_lines()
    blocks = -(-(2 << 30) // len(block))
    path = tmp_path / "big.jsonl"
    if way == "file":
        with path.open("wb") as file:
            for _ in range(blocks):
                file.write(block)
        peak, result = peak_of_build([str(path), "--validation", "0.1"], tmp_path)
        path.unlink()
    else:
        os.mkfifo(path)
        program = "import sys; block = open(sys.argv[1], 'rb').read(); out = open(sys.argv[2], 'wb')\n"
        program += "for _ in range(int(sys.argv[3])): out.write(block)"
        (tmp_path / "block").write_bytes(block)
        with subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "block"), str(path), str(blocks)]):
            peak, result = peak_of_build([str(path), "--validation", "0.1"], tmp_path)
    assert sum(split["documents"] for split in result["splits"].values()) == num_lines * blocks
    assert open_store(tmp_path / "out").num_documents == result["splits"]["train"]["documents"]
    assert peak < 1 << 30, f"{peak >> 20} MiB"
    sys.stderr.write(f"{way}: peak {peak >> 20} MiB, {result['seconds']:.0f} s\n")
