r"""Bombs and absurd sizes: small files that unpack to gigabytes, nest a million deep or declare more than exists.

    1 MiB of gzip  ->  1 GiB of text          {"a":{"a":{"a": ...          b"\x93NUMPY ... 'shape': (2 ** 62,)"

A trial gives one of them to the command that reads such files, with limits on its memory and its time. It must end in
one line and exit code 2; a few are read, since what they ask for is little.
"""

import bz2
import gzip
import io
import json
import lzma
import os
import resource
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow
import pyarrow.parquet
import torch
import zstandard
from bad_files import Reader, make_genuine, put, require_one_line
from trials import Part, Trial

SECONDS = 5.0
"""Of processor time for a command and the processes that it starts, which import pyarrow."""
_MIB = 1 << 20
MEMORY = 512 * _MIB
"""Bytes that a command may take beside what is there; a document of 128 MiB is held three times while it is decoded."""
_BUILD = "corpus build {file} --tokenizer {tokenizer} --output {output}"
_INSPECT = "corpus inspect {folder}/corpus"
_CONVERT = "corpus convert {file} {output}.npy"
_IMPORT = "checkpoint import {hf} --output {output} --allow-pickle"
_DEEP = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Bomb:
    """A bad file, how it is written, and the command that meets it; see `Reader`."""

    file: str
    write: Callable[[], bytes]
    command: str = _BUILD
    codes: tuple[int, ...] = (2,)
    size: int = 0
    """Bytes to which the file is extended, without using the disk."""


def _streams(packed: bytes, times: int) -> Callable[[], bytes]:
    return lambda: packed * times


def _gzip_of(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def _xz_dictionary() -> bytes:
    """Return an xz file that declares a dictionary of 1.5 GiB, which its checksums confirm."""
    data = bytearray(lzma.compress(b"text " * 1000, preset=0))
    header = data[12 : 12 + (data[12] + 1) * 4]
    header[header.index(b"\x21\x01") + 2] = 37
    header[-4:] = zlib.crc32(bytes(header[:-4])).to_bytes(4, "little")
    data[12 : 12 + len(header)] = header
    return bytes(data)


def _zstd_frame(window: int, content_size: int | None, blocks: bytes) -> bytes:
    """Return a frame with a descriptor of our own; ``window`` is the exponent over 1 KiB."""
    descriptor = 0xC0 if content_size is not None else 0
    size = b"" if content_size is None else content_size.to_bytes(8, "little")
    return b"\x28\xb5\x2f\xfd" + bytes([descriptor, window << 3]) + size + blocks


def _runs_of_zstd(count: int) -> bytes:
    """Return blocks that each repeat a byte 128 KiB times."""
    middle = ((128 << 10) << 3 | 1 << 1).to_bytes(3, "little") + b"a"
    return middle * count + ((128 << 10) << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"a"


def _parquet(texts: object, **options: object) -> bytes:
    made = io.BytesIO()
    plain = {"compression": "zstd", "use_dictionary": False, "write_statistics": False, "data_page_size": 1 << 30}
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), made, **(plain | options))
    return made.getvalue()


def _arrow(texts: object) -> bytes:
    made = io.BytesIO()
    table = pyarrow.table({"text": texts})
    with pyarrow.ipc.new_stream(made, table.schema, options=pyarrow.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return made.getvalue()


def _safetensors(header: object, length: int | None = None) -> Callable[[], bytes]:
    def write() -> bytes:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        return (len(text) if length is None else length).to_bytes(8, "little") + text

    return write


def _tensor(*shape: int, begin: int = 0, end: int = 0) -> dict[str, object]:
    return {"wte.weight": {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}}


def _npy(shape: str, descr: str = "'<i4'") -> Callable[[], bytes]:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return lambda: b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


def _nested(opening: bytes, middle: bytes = b"1", closing: bytes = b"") -> Callable[[], bytes]:
    return lambda: opening * _DEEP + middle + closing * _DEEP


def _index(num_sequences: int, num_entries: int) -> bytes:
    return b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, num_sequences, num_entries)


def _torch_file(value: object) -> Callable[[], bytes]:
    def write() -> bytes:
        made = io.BytesIO()
        torch.save(value() if callable(value) else value, made)
        return made.getvalue()

    return write


def _packed_torch_file() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + b"]" * (256 * _MIB) + b".")
    return made.getvalue()


def _config(**options: object) -> Callable[[], bytes]:
    model = {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 300, "n_positions": 16}
    return lambda: json.dumps(model | options).encode()


def _recipe(line: str) -> Callable[[], bytes]:
    return lambda: f"[training]\nsteps = 5\n[data]\nsynthetic = true\n[model]\nvocab_size = 300\n{line}\n".encode()


def _wiki(text: str, before: str = "") -> bytes:
    return (
        f'{before}<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" version="0.10"><page><title>A</title>'
        f"<ns>0</ns><id>1</id><revision><id>1</id><model>wikitext</model><text>{text}</text></revision></page></mediawiki>"
    ).encode()


def _billion_laughs() -> bytes:
    lines = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
    return _wiki("&a9;", f'<!DOCTYPE x [<!ENTITY a0 "ha">{lines}]>')


def _tokenizer(**model: object) -> Callable[[], bytes]:
    return lambda: json.dumps({"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": [], **model}}).encode()


_ENCODE = "tokenizer encode --tokenizer {file}"
_WIKIPEDIA = _BUILD + " --from wikipedia"
_PLAN = "plan {file}"
_CHECK = "checkpoint verify {folder}/checkpoints"
_MANIFEST = "checkpoints/step-00000005/manifest.json"
_ZEROS = bytes(64 * _MIB)
ALL: dict[str, Bomb] = {
    "gzip: 1 GiB": Bomb(file="a.gz", write=lambda: _gzip_of(_ZEROS) * 16),
    "gzip: 200,000 members": Bomb(file="a.gz", write=_streams(_gzip_of(b"a"), 200_000)),
    "gzip in gzip": Bomb(file="a.txt.gz.gz", write=lambda: _gzip_of(_gzip_of(_ZEROS) * 16)),
    "gzip: a name without an end": Bomb(file="a.gz", write=lambda: b"\x1f\x8b\x08\x08" + bytes(6) + b"a" * (32 * _MIB)),
    "bzip2: 1 GiB": Bomb(file="a.bz2", write=lambda: bz2.compress(_ZEROS) * 16),
    "bzip2: 200,000 streams": Bomb(file="a.bz2", write=_streams(bz2.compress(b""), 200_000)),
    "xz: 1 GiB": Bomb(file="a.xz", write=lambda: lzma.compress(_ZEROS, preset=0) * 16),
    "xz: a dictionary of 1.5 GiB": Bomb(file="a.xz", write=_xz_dictionary),
    "zstd: 1 GiB": Bomb(file="a.zst", write=lambda: _zstd_frame(7, None, _runs_of_zstd(8192))),
    "zstd: a window of 2 TiB": Bomb(file="a.zst", write=lambda: _zstd_frame(31, None, _runs_of_zstd(1))),
    "zstd: 2^60 bytes declared": Bomb(file="a.zst", write=lambda: _zstd_frame(7, 1 << 60, _runs_of_zstd(1))),
    "zstd: 200,000 frames": Bomb(file="a.zst", write=lambda: zstandard.ZstdCompressor().compress(b"a") * 200_000),
    "text: 1 TiB of zeros": Bomb(file="a.txt", write=lambda: b"text\n", size=1 << 40),
    "text: a line of 200 MiB": Bomb(file="a.txt", write=lambda: b"a" * (200 * _MIB)),
    "JSONL: a million deep": Bomb(file="a.jsonl", write=_nested(b'{"text":')),
    "JSONL: lists, a million deep": Bomb(file="a.jsonl", write=_nested(b"[", closing=b"]")),
    "JSONL: a million digits": Bomb(file="a.jsonl", write=lambda: b'{"text": ' + b"9" * _DEEP + b"}\n"),
    "JSONL: a line of 100 MiB": Bomb(file="a.jsonl", write=lambda: b'{"text": "' + b"a" * (100 * _MIB) + b'"}\n'),
    "CSV: a quote without an end": Bomb(file="a.csv", write=lambda: b'text\n"' + (b"a" * 8191 + b"\n") * 20_000),
    "CSV: a million columns": Bomb(file="a.csv", write=lambda: b"text," * _DEEP + b"\na\n"),
    "WARC: 10^15 bytes declared": Bomb(
        file="a.warc.wet",
        write=lambda: b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: 1" + b"0" * 15 + b"\r\n\r\na",
    ),
    "WARC: 1 GiB in a member": Bomb(
        file="a.warc.wet.gz",
        write=lambda: _gzip_of(b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: 1073741824\r\n\r\n" + _ZEROS),
    ),
    "WARC: headers without an end": Bomb(file="a.warc.wet", write=lambda: b"WARC/1.0\r\n" + b"a: b\r\n" * (16 * _MIB)),
    "Wikipedia: entities": Bomb(file="a.xml", write=_billion_laughs, command=_WIKIPEDIA),
    "Wikipedia: tags, a million deep": Bomb(file="a.xml", write=_nested(b"<a>"), command=_WIKIPEDIA),
    "Wikipedia: a page of 200 MiB": Bomb(file="a.xml", write=lambda: _wiki("a " * (100 * _MIB)), command=_WIKIPEDIA),
    "Wikipedia: templates, 100,000 deep": Bomb(
        file="a.xml", write=lambda: _wiki("{{" * 100_000), command=_WIKIPEDIA, codes=(0, 2)
    ),
    "Wikipedia: bzip2": Bomb(file="a.xml.bz2", write=lambda: bz2.compress(_ZEROS) * 16, command=_WIKIPEDIA),
    "Parquet: 256 MiB in a page": Bomb(file="a.parquet", write=lambda: _parquet(["a" * (64 * _MIB)] * 4)),
    "Parquet: a dictionary": Bomb(
        file="a.parquet",
        write=lambda: _parquet(["a" * _MIB] * 2000, use_dictionary=True, dictionary_pagesize_limit=1 << 30),
    ),
    "Parquet: a footer of 2 GiB": Bomb(file="a.parquet", write=lambda: b"PAR1" + bytes(99) + b"\xff\xff\xff\x7fPAR1"),
    "Arrow: 256 MiB in a batch": Bomb(file="a.arrow", write=lambda: _arrow(["a" * (64 * _MIB)] * 4)),
    "Arrow: a header of 2 GiB": Bomb(file="a.arrow", write=lambda: b"\xff\xff\xff\xff\xf0\xff\xff\x7f" + bytes(999)),
    "TFRecord: 2^63 bytes declared": Bomb(
        file="a.tfrecord", write=lambda: struct.pack("<QI", 1 << 63, 0) + bytes(99), command=_CONVERT
    ),
    "pickle: 2^60 bytes declared": Bomb(
        file="a.pkl", write=lambda: b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"a.", command=_CONVERT
    ),
    "pickle: lists, a million deep": Bomb(file="a.pkl", write=_nested(b"]", b"", b"a"), command=_CONVERT),
    "pickle: an integer of 2 GiB": Bomb(
        file="a.pkl", write=lambda: b"\x80\x02]\x8b\xff\xff\xff\x7f" + b"a.", command=_CONVERT
    ),
    "npy: 2^62 items": Bomb(file="a.npy", write=_npy("(4611686018427387904,)"), command=_CONVERT),
    "npy: 2^64 items": Bomb(file="a.npy", write=_npy("(4294967296, 4294967296)"), command=_CONVERT),
    "npy: no items of 2^62": Bomb(file="a.npy", write=_npy("(0, 4611686018427387904)"), command=_CONVERT),
    "npy: parentheses": Bomb(file="a.npy", write=_npy("(" * 3000), command=_CONVERT),
    "npy: items of 10^9 bytes": Bomb(file="a.npy", write=_npy("(1,)", "'|V1000000000'"), command=_CONVERT),
    "npy: a header of 4 GiB": Bomb(
        file="a.npy", write=lambda: b"\x93NUMPY\x02\x00\xff\xff\xff\xff{'descr'", command=_CONVERT
    ),
    "safetensors: a header of 2^63": Bomb(
        file="hf/model.safetensors", write=_safetensors(b"{}", 1 << 63), command=_IMPORT
    ),
    "safetensors: a header of 200 MiB": Bomb(
        file="hf/model.safetensors",
        write=lambda: (200 * _MIB).to_bytes(8, "little") + b" " * 200,
        command=_IMPORT,
        size=201 * _MIB,
    ),
    "safetensors: a million deep": Bomb(
        file="hf/model.safetensors", write=lambda: (_DEEP).to_bytes(8, "little") + b"[" * _DEEP, command=_IMPORT
    ),
    "safetensors: 2^62 elements": Bomb(
        file="hf/model.safetensors", write=_safetensors(_tensor(1 << 62)), command=_IMPORT
    ),
    "safetensors: 2^64 elements": Bomb(
        file="hf/model.safetensors", write=_safetensors(_tensor(1 << 32, 1 << 32)), command=_IMPORT
    ),
    "safetensors: none of 2^62": Bomb(
        file="hf/model.safetensors", write=_safetensors(_tensor(0, 1 << 62)), command=_IMPORT
    ),
    "safetensors: 100,000 dimensions": Bomb(
        file="hf/model.safetensors", write=_safetensors(_tensor(*[0] * 100_000)), command=_IMPORT
    ),
    "safetensors: 50,000 names": Bomb(
        file="hf/model.safetensors",
        write=_safetensors({f"{n}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(50_000)}),
        command=_IMPORT,
    ),
    "PyTorch: packed": Bomb(file="hf/pytorch_model.bin", write=_packed_torch_file, command=_IMPORT),
    "PyTorch: a view of 4 TiB": Bomb(
        file="hf/pytorch_model.bin",
        write=_torch_file(lambda: {"wte.weight": torch.zeros(1).expand(1 << 20, 1 << 20)}),
        command=_IMPORT,
    ),
    "PyTorch: views of 4 TiB, of the config's shapes": Bomb(
        file="hf/pytorch_model.bin",
        write=_torch_file(lambda: {"transformer.wte.weight": torch.zeros(1).expand(300, 32)}),
        command=_IMPORT,
    ),
    "manifest: a million deep": Bomb(file=_MANIFEST, write=_nested(b"["), command=_CHECK),
    "manifest: 100 MiB": Bomb(file=_MANIFEST, write=lambda: b"{", command=_CHECK, size=100 * _MIB),
    "manifest: sizes of 2^70": Bomb(
        file=_MANIFEST,
        write=lambda: json.dumps({"step": 1 << 70, "files": {"a": {"size": 1 << 70}}, "format": 1}).encode(),
        command=_CHECK,
    ),
    "corpus: a manifest, a million deep": Bomb(
        file="corpus/train/manifest.json", write=_nested(b'{"a":'), command=_INSPECT
    ),
    "corpus: an index of 2^60": Bomb(
        file="corpus/train/tokens.idx", write=lambda: _index(1 << 60, 1 << 60), command=_INSPECT
    ),
    "corpus: tokens of 1 TiB": Bomb(file="corpus/train/tokens.bin", write=lambda: b"", command=_INSPECT, size=1 << 40),
    "tokenizer: a million deep": Bomb(file="a.json", write=_nested(b"["), command=_ENCODE),
    "tokenizer: ids of 2^62": Bomb(file="a.json", write=_tokenizer(vocab={"a": 1 << 62}), command=_ENCODE),
    "tokenizer: a million merges": Bomb(
        file="a.json", write=lambda: _tokenizer(vocab={"a": 0}, merges=["a a"] * _DEEP)(), command=_ENCODE
    ),
    "config: 10^9 layers": Bomb(file="hf/config.json", write=_config(n_layer=10**9), command=_IMPORT),
    "config: 10^12 tokens": Bomb(file="hf/config.json", write=_config(vocab_size=10**12), command=_IMPORT),
    "config: a hidden size of 10^400": Bomb(file="hf/config.json", write=_config(n_embd=10**400), command=_IMPORT),
    "recipe: lists, 100,000 deep": Bomb(file="a.toml", write=_recipe("a = " + "[" * 100_000), command=_PLAN),
    "recipe: 10^9 layers": Bomb(file="a.toml", write=_recipe("num_layers = 1_000_000_000"), command=_PLAN),
    "recipe: a hidden size of 10^15": Bomb(
        file="a.toml", write=_recipe("hidden_size = 1_000_000_000_000_000"), command=_PLAN
    ),
    "recipe: a million digits": Bomb(file="a.toml", write=_recipe("num_layers = " + "9" * _DEEP), command=_PLAN),
    "recipe: keys, 100,000 deep": Bomb(file="a.toml", write=_recipe("a." * 100_000 + "a = 1"), command=_PLAN),
    "log: a line of 200 MiB": Bomb(
        file="run/metrics.jsonl", write=lambda: b'{"a"', command="runs report {folder}/run", codes=(0,), size=200 * _MIB
    ),
}
"""Each format that may unpack, nest or declare a size. Codes other than 2: templates are dropped, however deep, and
the last line of a log, which a killed process may leave half-written."""


def _run(trial: Trial) -> str:
    name = list(ALL)[trial.number * 7 % len(ALL)]
    bomb = ALL[name]
    has_weights = not bomb.file.startswith("hf/") or bomb.file.endswith(".json")
    reader = Reader(file=bomb.file, command=bomb.command, codes=bomb.codes, keeps=has_weights)
    file = put(trial, reader, bomb.write())
    if bomb.size:
        os.truncate(file, bomb.size)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    before = _seconds()
    require_one_line(trial, reader, name)
    seconds = _seconds() - before
    assert seconds < SECONDS, f"{name} took {seconds:.1f} s of processor time"
    return name.partition(":")[0]


def _seconds() -> float:
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


BOMBS = Part(
    name="bombs",
    promise=f"a file that unpacks to gigabytes, nests a million deep or declares absurd sizes is refused in one line, "
    f"within {SECONDS:.0f} s and {MEMORY >> 20} MiB",
    run=_run,
    prepare=make_genuine,
    trials=len(ALL),
    short=8,
)
