r"""Evil pickles: a call in every opcode that calls, hidden in every file that may hold a pickle, for every command.

::

    80 02  cos\nsystem\n (X.. touch canary t R 0  }q\x00( ... the genuine weights ... u.
           the call                            dropped, so that what is loaded looks genuine

None may run: the canary file must not appear. Afterwards, Python's own unpickler proves that the program makes it.
"""

import copyreg
import io
import json
import os
import pickle
import pickletools
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from bad_files import Reader, make_genuine, put, require_one_line
from trials import Part, Trial, in_child

_EXTENSION = 200
"""Number of a target in copyreg's registry, for the opcodes EXT1, EXT2 and EXT4."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A function or class whose call makes the canary file."""

    module: str
    name: str
    arguments: Callable[[str], tuple[object, ...]]

    @property
    def by_global(self) -> bytes:
        """Its name as of protocol 0."""
        return f"c{self.module}\n{self.name}\n".encode()

    @property
    def by_stack_global(self) -> bytes:
        """Its name as of protocol 4."""
        return _values(self.module, self.name) + b"\x93"


def _values(*values: object) -> bytes:
    """Return the opcodes that push values, without the protocol and the end."""
    return b"".join(pickle.dumps(value, protocol=2)[2:-1] for value in values)


_MEMMAP = Target(module="numpy", name="memmap", arguments=lambda canary: (canary, "uint8", "w+", 0, 8))
"""A class that writes in ``__new__``, as NEWOBJ needs."""
TARGETS = (
    Target(module="os", name="system", arguments=lambda canary: (f"touch '{canary}'",)),
    Target(module="posix", name="mkdir", arguments=lambda canary: (canary,)),
    Target(module="os", name="makedirs", arguments=lambda canary: (canary,)),
    Target(module="builtins", name="exec", arguments=lambda canary: (f"open({canary!r}, 'w').close()",)),
    Target(module="builtins", name="eval", arguments=lambda canary: (f"open({canary!r}, 'w').close()",)),
    Target(module="builtins", name="open", arguments=lambda canary: (canary, "w")),
    Target(module="_io", name="FileIO", arguments=lambda canary: (canary, "w")),
    Target(module="zipfile", name="ZipFile", arguments=lambda canary: (canary, "w")),
    Target(module="subprocess", name="check_call", arguments=lambda canary: (["touch", canary],)),
    Target(module="subprocess", name="getoutput", arguments=lambda canary: (f"touch '{canary}'",)),
    Target(module="shutil", name="copyfile", arguments=lambda canary: (__file__, canary)),
    Target(module="timeit", name="timeit", arguments=lambda canary: ("pass", f"open({canary!r}, 'w').close()")),
    Target(module="pickle", name="loads", arguments=lambda canary: (pickle.dumps(_Nested(canary), protocol=2),)),
    Target(module="torch", name="save", arguments=lambda canary: ([], canary)),
    Target(module="torch", name="UntypedStorage.from_file", arguments=lambda canary: (canary, True, 8)),
    _MEMMAP,
)


class _Nested:
    def __init__(self, canary: str) -> None:
        self._canary = canary

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self._canary,)


def _reduce(target: Target, arguments: tuple[object, ...]) -> bytes:
    return target.by_global + b"(" + _values(*arguments) + b"tR"


def _reduce_by_stack(target: Target, arguments: tuple[object, ...]) -> bytes:
    return target.by_stack_global + b"(" + _values(*arguments) + b"tR"


def _reduce_by_memo(target: Target, arguments: tuple[object, ...]) -> bytes:
    """Keep the function in the memo, drop it, and fetch it again."""
    return target.by_global + b"r\xff\x00\x00\x000j\xff\x00\x00\x00(" + _values(*arguments) + b"tR"


def _inst(target: Target, arguments: tuple[object, ...]) -> bytes:
    return b"(" + _values(*arguments) + f"i{target.module}\n{target.name}\n".encode()


def _obj(target: Target, arguments: tuple[object, ...]) -> bytes:
    return b"(" + target.by_global + _values(*arguments) + b"o"


def _newobj(target: Target, arguments: tuple[object, ...]) -> bytes:
    return _MEMMAP.by_global + b"(" + _values(*arguments) + b"t\x81"


def _newobj_ex(target: Target, arguments: tuple[object, ...]) -> bytes:
    return _MEMMAP.by_stack_global + b"(" + _values(*arguments) + b"t}\x92"


def _build(target: Target, arguments: tuple[object, ...]) -> bytes:
    """Give an object a ``__setstate__`` of our choice by one BUILD, and call it by another."""
    return (
        b"(itypes\nSimpleNamespace\n}" + _values("__setstate__") + target.by_global + b"sb" + _values(*arguments) + b"b"
    )


def _extension(opcode: bytes, size: int) -> Callable[[Target, tuple[object, ...]], bytes]:
    def call(target: Target, arguments: tuple[object, ...]) -> bytes:
        copyreg.add_extension(target.module, target.name, _EXTENSION)
        return opcode + _EXTENSION.to_bytes(size, "little") + b"(" + _values(*arguments) + b"tR"

    return call


def _persistent(target: Target, arguments: tuple[object, ...]) -> bytes:
    """Call in the id of a tensor's storage."""
    return b"(" + _values("storage") + _reduce(target, arguments) + _values("0", "cpu", 4) + b"tQ"


OPCODES: dict[str, Callable[[Target, tuple[object, ...]], bytes]] = {
    "GLOBAL and REDUCE": _reduce,
    "STACK_GLOBAL and REDUCE": _reduce_by_stack,
    "memo and REDUCE": _reduce_by_memo,
    "INST": _inst,
    "OBJ": _obj,
    "NEWOBJ": _newobj,
    "NEWOBJ_EX": _newobj_ex,
    "BUILD": _build,
    "EXT1": _extension(b"\x82", 1),
    "EXT2": _extension(b"\x83", 2),
    "EXT4": _extension(b"\x84", 4),
    "BINPERSID": _persistent,
}
"""What makes the call."""
PLACES: dict[str, Callable[[bytes, bytes], bytes]] = {
    "alone": lambda call, genuine: call + b".",
    "dropped": lambda call, genuine: call + b"0" + genuine,
    "value": lambda call, genuine: genuine[:-1] + _values("transformer.more") + call + b"s.",
    "key": lambda call, genuine: genuine[:-1] + call + b"Ns.",
    "dropped at the end": lambda call, genuine: genuine[:-1] + call + b"0.",
    "deep": lambda call, genuine: b"(" * 40 + call + b"t" * 40 + b"0" + genuine,
    "after the end": lambda call, genuine: genuine + b"\x80\x04" + call + b".",
}
"""Where it is in the program of genuine weights, which is given without its protocol."""


def _evil(place: str, call: bytes, genuine: bytes) -> bytes:
    return b"\x80\x04" + PLACES[place](call, genuine[2:])


def _in_zip(weights: Path, make: Callable[[bytes], bytes], draws: Random) -> bytes:
    """Replace the program of PyTorch's format, or add another one to it, packed or not."""
    with zipfile.ZipFile(weights) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    name = next(name for name in files if name.endswith("/data.pkl"))
    evil = make(files[name])
    match draws.randrange(4):
        case 0:
            files[f"{name.partition('/')[0]}/constants.pkl"] = evil  # which TorchScript reads
        case 1:
            files["other/data.pkl"] = evil
        case 2:
            files[next(name for name in files if "/data/" in name)] = evil
    files[name] = evil
    made = io.BytesIO()
    packing = draws.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(made, "w", packing) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return made.getvalue()


def _in_legacy(weights: Path, make: Callable[[bytes], bytes], draws: Random) -> bytes:
    """Replace one of the five programs of PyTorch's old format."""
    file = io.BytesIO()
    torch.save(torch.load(weights), file, _use_new_zipfile_serialization=False)
    file.seek(0)
    programs = []
    for _ in range(5):
        start = file.tell()
        for _ in pickletools.genops(file):
            pass
        programs.append(file.getvalue()[start : file.tell()])
    number = draws.randrange(5)
    programs[number] = make(programs[3])
    return b"".join(programs) + file.read()


def _in_tar(weights: Path, make: Callable[[bytes], bytes], draws: Random) -> bytes:
    """Write PyTorch's oldest format."""
    made = io.BytesIO()
    evil = make(b"\x80\x02}.")
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name in ("sys_info", "storages", "tensors", "pickle"):
            entry = tarfile.TarInfo(name)
            entry.size = len(evil)
            archive.addfile(entry, io.BytesIO(evil))
    return made.getvalue()


CONTAINERS: dict[str, Callable[[Path, Callable[[bytes], bytes], Random], bytes]] = {
    "bare": lambda weights, make, draws: make(b"\x80\x02}."),
    "zip": _in_zip,
    "legacy": _in_legacy,
    "tar": _in_tar,
}


_IMPORT = "checkpoint import {hf} --output {output}"
UNPICKLERS = (
    Reader(file="hf/pytorch_model.bin", command=f"{_IMPORT} --allow-pickle"),
    Reader(file="hf/pytorch_model-00001-of-00001.bin", command=f"{_IMPORT} --allow-pickle"),
)
"""What does read pickles."""
OTHERS = (
    Reader(file="hf/pytorch_model.bin", command=_IMPORT),
    Reader(file="hf/pytorch_model.bin", command="evaluate {hf} --data {corpus}"),
    Reader(file="hf/pytorch_model.bin", command="generate {hf} --prompt x"),
    Reader(file="hf/pytorch_model.bin", command="checkpoint export {hf} --output {output}"),
    Reader(file="hf/pytorch_model.bin", command="embed {hf} {texts}/rest.jsonl"),
    Reader(file="hf/pytorch_model.bin", command="train demo --data.train {corpus} --init-from {hf} --output {output}"),
    *(
        Reader(file=f"hf/{name}", command=f"{_IMPORT} --allow-pickle", codes=(0,), keeps=True)
        for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt", "rng_state.pth", ".metadata", "meta.pkl")
    ),
    Reader(file="hf/model.safetensors", command=f"{_IMPORT} --allow-pickle"),
    Reader(file="hf/tokenizer.json", command=_IMPORT, codes=(0, 2), keeps=True),
    Reader(file="hf/config.json", command=_IMPORT, keeps=True),
    *(
        Reader(file=f"file/{name}", command=command)
        for name in ("model.pt", "model.ckpt", "model.bin", "model.pth", "tokens.pkl", "tokens.npy")
        for command in (
            "checkpoint import {file} --output {output}",
            "evaluate {file} --data {corpus}",
            "generate {file} --prompt x",
            "checkpoint verify {file}",
            "corpus inspect {file}",
            "corpus verify {file}",
            "corpus convert {file} {output}.npy",
            "corpus convert {file} {output}.npy --from pickle",
            "corpus convert {file} {output}.npy --from npy",
            "corpus convert {file} {output}.npy --from llm.c",
            "corpus convert {file} {output} --from bert-arrow --to bert-arrow",
            "tokenizer encode --tokenizer {file}",
            "train {file}",
            "train demo --data.train {file} --output {output}",
            "plan {file}",
        )
    ),
    Reader(file="file/model.pt", command="corpus build {file} --tokenizer {tokenizer} --output {output}", codes=(0, 2)),
    Reader(file="file/model.pkl", command="corpus convert {file} {output}.npy --from nanogpt", codes=(0, 2)),
    Reader(file="corpus/train/documents.npy", command="corpus inspect {folder}/corpus", keeps=True),
    Reader(file="corpus/train/tokens.bin", command="corpus verify {folder}/corpus", keeps=True),
    Reader(file="corpus/train/tokens.idx", command="corpus inspect {folder}/corpus", keeps=True),
    Reader(file="corpus/train/manifest.json", command="corpus inspect {folder}/corpus", keeps=True),
)


def _run(trial: Trial) -> str:
    turn, is_other = divmod(trial.number, 2)
    readers = OTHERS if is_other else UNPICKLERS
    reader, opcode = readers[turn % len(readers)], list(OPCODES)[turn // 2 % len(OPCODES)]
    place, container = trial.draws.choice(list(PLACES)), trial.draws.choice(list(CONTAINERS))
    canary = trial.folder / "canary"
    target = trial.draws.choice(targets_of(opcode))
    arguments = target.arguments(str(canary))
    call = OPCODES[opcode](target, arguments)
    weights = trial.shared / "pickled" / "pytorch_model.bin"
    make = CONTAINERS[container]
    evil = put(trial, reader, make(weights, lambda genuine: _evil(place, call, genuine), trial.draws))
    if "-00001-of-" in reader.file:
        index = {"weight_map": dict.fromkeys(torch.load(weights), evil.name)}
        evil.with_name("pytorch_model.bin.index.json").write_text(json.dumps(index))
    what = f"{opcode} of {target.module}.{target.name}, {place} in {container}: {reader.command}"
    require_one_line(trial, reader, what)
    assert not canary.exists(), f"{what} ran it"
    in_child(lambda: unpickle(b"\x80\x04" + call + b"."), trial.log)
    assert canary.exists(), f"{what}: the program harms nobody, so the trial proves nothing"
    return opcode


def targets_of(opcode: str) -> tuple[Target, ...]:
    """Return the targets that an opcode can call."""
    if opcode.startswith("NEWOBJ"):
        return (_MEMMAP,)
    return tuple(target for target in TARGETS if opcode != "BUILD" or len(target.arguments("")) == 1)


def unpickle(program: bytes) -> None:
    """Run a program in Python's own unpickler."""
    unpickler = pickle.Unpickler(io.BytesIO(program))  # noqa: S301 - the proof that it is evil
    unpickler.persistent_load = lambda pid: pid  # type: ignore[method-assign]
    unpickler.load()


PICKLES = Part(
    name="pickles",
    promise="a pickle with a call, in any opcode that calls and in any file, is refused in one line or not read; "
    "nothing of it runs",
    run=_run,
    prepare=make_genuine,
    trials=330,
    short=12,
)
