"""What files of other projects are called, wherever one could be given."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from tiny_text import one_line, tiny_tokenizer

from hornbook.__main__ import main
from hornbook.corpora.store import open_store
from hornbook.errors import DataError, UserError
from hornbook.formats.foreign import name_content, name_foreign
from hornbook.interop.convert.detect import detect_source
from hornbook.interop.convert.token_files import read_nanogpt
from hornbook.text.documents import ReadOptions, read_documents
from hornbook.text.tokenizer import Tokenizer

PIECE = b"\x0a\x0e\x0a\x05<unk>\x15\x00\x00\x00\x00\x18\x02\x0a\x08\x0a\x01a\x15\x00\x00\x80\xbf"
RANKS = b"IQ== 0\nIg== 1\nIw== 2\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mds/train").mkdir(parents=True)
    shard = {"format": "mds", "column_encodings": ["str"], "raw_data": {"basename": "shard.00000.mds", "bytes": 4}}
    Path("mds/train/index.json").write_text(json.dumps({"version": 2, "shards": [shard]}))
    Path("mds/train/shard.00000.mds").write_bytes(b"\x01\x00\x00\x00")
    Path("spm").mkdir()
    Path("spm/tokenizer.model").write_bytes(PIECE)
    Path("llama3").mkdir()
    Path("llama3/tokenizer.model").write_bytes(RANKS)
    Path("cl100k.tiktoken").write_bytes(RANKS)
    Path("model.bin").write_bytes(struct.pack("<2i", 20240326, 3).ljust(1024, b"\0") + bytes(64))


def fails_with(error: type[Exception], call, *parts: str) -> bool:
    with pytest.raises(error) as caught:
        call()
    return one_line(caught.value, *parts)


def test_a_folder_of_mosaicml_streaming() -> None:
    parts = ("mds/train is a data set of MosaicML Streaming (MDS)", "write its texts to a JSONL file")
    assert fails_with(UserError, lambda: list(read_documents(["mds"], ReadOptions())), *parts)
    assert fails_with(UserError, lambda: detect_source(Path("mds/train")), *parts)
    assert fails_with(DataError, lambda: open_store("mds/train"), *parts)
    assert fails_with(DataError, lambda: list(read_documents(["mds/train/shard.00000.mds"])), "MosaicML Streaming")
    Path("other").mkdir()
    for content in ('{"text": "an index"}', '{"shards": [], "text": "x"}', '{"shards": 5, "text": "x"}'):
        Path("other/index.json").write_text(content)
        assert len(list(read_documents(["other"]))) == 1


@pytest.mark.parametrize("path", ["spm", "spm/tokenizer.model"])
def test_a_sentencepiece_model(path: str) -> None:
    parts = ("spm/tokenizer.model is a SentencePiece model; use the tokenizer.json", "save_pretrained(OUTPUT)")
    assert fails_with(DataError, lambda: Tokenizer.load(path), *parts)
    assert fails_with(DataError, lambda: list(read_documents([path])), *parts)
    tiny_tokenizer().save(Path("spm"))
    assert Tokenizer.load("spm").digest == tiny_tokenizer().digest, "a folder with both has a tokenizer"


@pytest.mark.parametrize("path", ["llama3", "llama3/tokenizer.model", "cl100k.tiktoken"])
def test_a_vocabulary_of_tiktoken(path: str) -> None:
    assert fails_with(DataError, lambda: Tokenizer.load(path), "is a vocabulary of tiktoken", "use the tokenizer.json")
    assert fails_with(DataError, lambda: list(read_documents([path])), "is a vocabulary of tiktoken")


def test_a_model_of_llmc_is_not_offered_as_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    parts = ("model.bin is a model of llm.c, not tokens", "dev/eval/export_hf.py")
    assert fails_with(UserError, lambda: detect_source(Path("model.bin")), *parts)
    assert fails_with(DataError, lambda: open_store("model.bin"), *parts)
    assert fails_with(DataError, lambda: read_nanogpt(Path("model.bin")), *parts)
    assert fails_with(DataError, lambda: list(read_documents(["model.bin"])), *parts)
    assert main(["corpus", "convert", "model.bin", "store", "--to", "store"]) == 2
    assert "nanogpt" not in capsys.readouterr().err.lower()


@pytest.mark.parametrize(
    "start", [b"", b"\n", b"\n\n\n\n\n\n\n\n\n\n", b"word 0\nmore 2\n", b"a 0\n", PIECE[:5], bytes(2048)]
)
@pytest.mark.parametrize("suffix", [".txt", ".bin", ".model"])
def test_other_content_has_no_name(start: bytes, suffix: str) -> None:
    assert name_content(start, suffix) is None


def test_text_that_looks_like_ranks_is_read() -> None:
    Path("words.txt").write_bytes(b"word 0\nmore 1\n")
    assert [document.text for document in read_documents(["words.txt"])] == ["word 0\nmore 1\n"]
    assert name_foreign(Path("nothing")) is None
    Path("tokens.bin").write_bytes(np.arange(600, dtype="<u2").tobytes())
    assert name_foreign(Path("tokens.bin")) is None
