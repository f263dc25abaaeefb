"""Check and time the forms of kernels on this machine.

::

    Kernel("linear_bf16", dtype, check, trial)      a group of C functions that are selected together
    seconds(kernel)  ->  {"avx512": 0.0011, "avx512bf16": 0.0018, "torch": 0.0019}

The newest form is not always the fastest: Intel processors without AMX multiply bf16 pairs at half the rate of floats,
AMD's at twice the rate. So each form is timed and compared with float64, within milliseconds, once per machine; the
user's cache has the results, for the build of the library, the processor, PyTorch, and the code that found them. A form
that disagrees is never used.
"""

import functools
import hashlib
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from hornbook.errors import DataError, StorageError
from hornbook.ops.native.build import HALVES, INSTRUCTION_SETS, TILES
from hornbook.ops.native.cache import BuildError, default_cache, make_private
from hornbook.ops.native.kernels import PYTORCH, Form, instruction_sets, path_of_library
from hornbook.storage.files import replace_file
from hornbook.storage.json_files import dump_json, parse_json, read_bytes
from hornbook.storage.system import cpu_facts, cpu_model, wait_for_lock

_FIRST_ROUNDS, _ROUNDS, _MOST_ROUNDS = 3, 7, 40
_SPREAD, _FAR = 1.03, 1.5
MOST_PRODUCTS: Final = 1 << 28
"""Multiplications of one product of a trial, which take some ten milliseconds."""


@dataclass(frozen=True)
class Shape:
    """What the times of a run's kernels depend on; that of the trials without a run by default."""

    tokens: int = 1024
    """Of a step."""
    hidden_size: int = 384
    feed_forward_size: int = 768
    sequence_length: int = 256
    head_size: int = 64
    vocab_size: int = 8192
    activation: str = "gelu_tanh"
    """Of the feed-forward."""
    is_gated: bool = False
    """Whether the feed-forward's activation multiplies the results of another layer."""
    has_bias: bool = True
    """Whether the feed-forward's layers add biases."""

    def rounded(self) -> "Shape":
        """Return the class of the shape, so that similar runs share their times.

        Sizes become the next 2ⁿ or 1.5·2ⁿ, so that they keep what affects blocks of caches. Tokens become few enough
        for a trial of some ten milliseconds, but at least 256 if there are more.
        """
        ceilings = sorted(base << bits for base in (2, 3) for bits in range(16))
        given = {name: size for name, size in vars(self).items() if type(size) is int}  # a bool is an int, too
        sizes: dict[str, Any] = {name: next((c for c in ceilings if c >= n), ceilings[-1]) for name, n in given.items()}
        # wider products leave the caches in the same way, but their weights take gigabytes
        hidden, inner = min(sizes["hidden_size"], 1024), min(sizes["feed_forward_size"], 4096)
        sizes |= {"hidden_size": hidden, "feed_forward_size": inner}
        most = min(2048, max(256, MOST_PRODUCTS // (hidden * inner)))
        sizes["tokens"] = max(c for c in ceilings if c <= min(most, sizes["tokens"]))
        sizes["sequence_length"] = min(sizes["sequence_length"], 512)
        sizes["vocab_size"] = min(sizes["vocab_size"], 1 << 15)
        return replace(self, **sizes)


DEFAULT_SHAPE: Final = Shape()


@dataclass(frozen=True)
class Kernel:
    """A group of C functions that are checked, timed and selected together."""

    name: str
    """Ends with the dtype, if there is one: ``linear_bf16``."""
    dtype: torch.dtype | None
    """Dtype of the activations; None: the kernel does not depend on it."""
    check: Callable[[Form, Any], bool]
    """Compares a form with PyTorch's operators on small inputs."""
    trial: Callable[..., None]
    """Runs a typical call to be timed, given the form, None for PyTorch's operators, the dtype, and ``sizes``."""
    special: Collection[str] = ()
    """Which of ``HALVES`` and ``TILES`` it has a form for."""
    sizes: tuple[str, ...] = ()
    """The fields of ``Shape`` that its time depends on."""

    @property
    def instruction_sets(self) -> tuple[str, ...]:
        """The forms that this machine supports, newest first."""
        return tuple(isa for isa in instruction_sets() if isa in self.special or isa not in (HALVES, TILES))


@functools.cache
def is_right(kernel: Kernel, isa: str) -> bool:
    """Return whether this machine supports the form and it passes the kernel's check, made once per machine."""

    def check() -> dict[str, float]:
        with torch.no_grad():
            return {isa: float(kernel.check(Form(isa), kernel.dtype))}

    return isa in kernel.instruction_sets and bool(_found_once(f"{kernel.name} {isa} is right", (isa,), check)[isa])


def seconds(kernel: Kernel, shape: Shape = DEFAULT_SHAPE) -> Mapping[str, float]:
    """Return the time of the kernel's trial for each instruction set, and for ``PYTORCH``.

    It is processor time on one thread, on which other load has little effect, and measured once per machine and class
    of shapes, so that the selection does not change.
    """
    sizes = {name: size for name, size in vars(shape.rounded()).items() if name in kernel.sizes}
    name = " ".join([kernel.name, *(f"{size_name}={size}" for size_name, size in sizes.items())])
    return _found_once(name, (PYTORCH, *kernel.instruction_sets), functools.partial(_measure, kernel, sizes))


def _measure(kernel: Kernel, sizes: Mapping[str, int | str]) -> dict[str, float]:
    """Return the shortest time of each form, which other processes can only lengthen.

    Rounds are added until each form's shortest time is confirmed by another one, or there are too many. Forms that are
    far behind after the first rounds are left out of the others; the form with partial sums in fp16, which few runs
    permit, leaves out none.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    taken: dict[str, list[float]] = {isa: [] for isa in (PYTORCH, *kernel.instruction_sets)}
    near = taken
    try:
        with torch.no_grad():
            for number in range(_MOST_ROUNDS):
                shortest = {isa: sorted(times[1:])[:2] for isa, times in near.items()}  # the first ones warm up
                if number == _FIRST_ROUNDS:
                    limit = _FAR * min(times[0] for isa, times in shortest.items() if isa != HALVES)
                    near = {isa: taken[isa] for isa, times in shortest.items() if times[0] <= limit}
                elif number > _ROUNDS and all(second <= _SPREAD * first for first, second in shortest.values()):
                    break
                for isa, times in near.items():
                    start = time.thread_time()
                    kernel.trial(None if isa == PYTORCH else Form(isa), kernel.dtype, **sizes)
                    times.append(time.thread_time() - start)
    finally:
        torch.set_num_threads(threads)
    return {isa: min(times[1:]) for isa, times in taken.items()}


def _found_once(name: str, forms: Collection[str], find: Callable[[], Mapping[str, float]]) -> Mapping[str, float]:
    """Return what ``find`` returns for ``forms``, called once per machine and build of the library.

    Processes that start together use what one of them finds. Without a cache, each finds it.
    """
    found: Mapping[str, float] = {}
    try:
        file = _facts_file()
        found = _known_facts(file).get(_circumstances(), {}).get(name, {})
        if not found.keys() >= {*forms}:
            make_private(file.parent)
            with wait_for_lock(file.parent / "lock"):
                known = _known_facts(file)
                here = known.get(_circumstances(), {})
                found = here.get(name, {})
                if not found.keys() >= {*forms}:
                    found = find()
                    replace_file(file, dump_json({**known, _circumstances(): {**here, name: found}}))
    except (BuildError, StorageError):
        return found if found.keys() >= {*forms} else find()
    return found


def _facts_file() -> Path:
    """Return the path of what was found, in the cache also for an installed library. Raises BuildError."""
    return default_cache() / path_of_library().parent.name / "seconds.json"  # an installation may be read-only


def _known_facts(file: Path) -> dict[str, dict[str, Mapping[str, float]]]:
    """Return the facts in a file by circumstances and name; none if it cannot be read."""
    try:
        return _parsed(read_bytes(file, "the times of native operators"))
    except (DataError, StorageError):
        return {}


@functools.lru_cache(1)  # the file is read again for each kernel, and rarely changes
def _parsed(content_bytes: bytes) -> dict[str, dict[str, Mapping[str, float]]]:
    """Return the facts without those that cannot be numbers of forms."""
    content, isas = parse_json(content_bytes, "the file of times"), {PYTORCH, *INSTRUCTION_SETS}
    return {
        circumstances: {
            name: found
            for name, found in facts.items()
            if isinstance(found, dict)
            and found.keys() <= isas
            and all(isinstance(number, float) and 0 <= number < math.inf for number in found.values())
        }
        for circumstances, facts in (content.items() if isinstance(content, dict) else ())
        if isinstance(facts, dict) and (circumstances + "".join(facts)).isprintable()
    }


@functools.cache
def _circumstances() -> str:
    """Return what facts depend on besides the library: the processor, PyTorch, and the Python code that finds them."""
    digest, native = hashlib.sha256(), Path(__file__).parent
    for path in sorted((*native.glob("*.py"), *native.parent.glob("*.py"))):  # trials call the operators of both
        digest.update(path.read_bytes())
    facts = cpu_facts()  # hypervisors give different processors one name
    numbers = " ".join(f"{name} {facts.get(name, '?')}" for name in ("cpu family", "model", "stepping"))
    return f"{cpu_model()}, {numbers}, PyTorch {torch.__version__}, trials {digest.hexdigest()[:12]}"
