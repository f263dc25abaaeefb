"""Properties of devices: peak rates, memory, bandwidths, links, typical prices.

``DEVICES`` are those of ``plan --device``; `card` finds those and others by the name that NVIDIA's driver reports.

Rates of products are those of data sheets: dense, bf16 and fp16 accumulated in fp32, fp32 without TF32, which hornbook
disables. Links are one-way, from a device to the others of its machine.

Prices are defaults: rounded list prices of clouds for one device on demand, in US dollars per hour, each with its year
and kind of provider (`Price`). They are from memory, not looked up, and differ by a factor of three between providers;
``--price`` overrides them.

The share of its peak that a device reaches in the products of a step (`Efficiency`) is fitted to published runs. Those
of MosaicML are in llm-foundry's table (``scripts/train/benchmarking``, commit 061f2c7).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Final, Literal, NamedTuple

from hornbook.config.sections import Dtype
from hornbook.config.suggest import did_you_mean
from hornbook.errors import UserError

LAUNCH: Final = 6e-6
"""Seconds in which the host launches a kernel of a GPU, one after the other."""
_GB: Final = 1e9
_GIB: Final = 1 << 30
_TERA: Final = 1e12


class Price(NamedTuple):
    """A rounded list price of one device, on demand; see above."""

    dollars: float
    """US dollars per hour."""
    year: int
    """Year of the list price."""
    source: str
    """The kind of provider."""


class Efficiency(NamedTuple):
    """The share of the peak rate that products reach: ``most · D / (D + half)`` in a model D wide.

    Narrow models are slower, since norms, activations and other operations between products take relatively longer.
    """

    most: float
    """Limit for wide models."""
    half: float
    """Width at which the share is half of ``most``."""
    spread: float
    """Relative half-width of the interval."""
    source: str

    def at(self, width: int) -> float:
        """Return the share for models of hidden size ``width``."""
        return self.most * width / (width + self.half)

    def interval(self, width: int) -> tuple[float, float]:
        """Return the lowest and the highest share to expect."""
        share = self.at(width)
        return share * (1.0 - self.spread), min(1.0, share * (1.0 + self.spread))


@dataclass(frozen=True, kw_only=True)
class Device:
    """A kind of device; sizes are in bytes, rates per second."""

    name: str
    label: str
    cards: tuple[str, ...] = ()
    """Names of the cards in the driver's words: see `card`."""
    kind: Literal["cpu", "cuda"] = "cuda"
    memory: float
    flops: Mapping[Dtype, float]
    """FLOP/s of matrix products, by dtype."""
    bandwidth: float
    """Bandwidth of its memory."""
    link: float
    """Bandwidth to the other devices of its machine."""
    host_link: float
    """Bandwidth to host memory, in each direction."""
    disk: float = 2e9
    """Bandwidth of files, reads and writes together; that of an NVMe disk."""
    price: Price
    efficiency: Efficiency

    @property
    def auto_dtype(self) -> Dtype:
        """The dtype of ``precision.compute = "auto"``: bf16 if products are faster in it."""
        return "bf16" if self.flops["bf16"] > self.flops["fp32"] else "fp32"


def _gpu(
    name: str,
    label: str,
    cards: str | tuple[str, ...],
    *,
    gib: float,
    tera: tuple[float, float],
    bandwidth: float,
    link: float = 25,
    host_link: float = 25,
    like: str | None = None,
    has_bf16: bool = True,
) -> Device:
    """Return a GPU; ``tera`` are its TFLOP/s in 16 bits and in fp32, other rates in GB/s; ``like`` has its price."""
    price = _PRICES[like or name]
    rates: dict[Dtype, float] = {"bf16": tera[not has_bf16] * _TERA, "fp16": tera[0] * _TERA, "fp32": tera[1] * _TERA}
    return Device(
        name=name,
        label=label,
        cards=(cards,) if isinstance(cards, str) else cards,
        memory=gib * _GIB,
        flops=rates,
        bandwidth=bandwidth * _GB,
        link=link * _GB,
        host_link=host_link * _GB,
        price=price if like is None else price._replace(source=f"{price.source}, of the {like}"),
        efficiency=_EFFICIENCIES.get(name) or _EFFICIENCIES.get(like or name, _UNPUBLISHED),
    )


_PRICES: Final = {
    "h100": Price(3.0, 2025, "GPU clouds"),
    "h200": Price(3.8, 2025, "GPU clouds"),
    "b200": Price(5.0, 2025, "GPU clouds"),
    "a100": Price(1.8, 2025, "GPU clouds"),
    "a100-40": Price(1.3, 2025, "GPU clouds"),
    "v100": Price(0.6, 2025, "GPU clouds"),
    "l40s": Price(1.0, 2025, "GPU clouds"),
    "l4": Price(0.7, 2025, "a large cloud"),
    "5090": Price(0.7, 2025, "a marketplace of private machines"),
    "4090": Price(0.5, 2025, "a marketplace of private machines"),
    "3090": Price(0.3, 2025, "a marketplace of private machines"),
    "cpu": Price(0.8, 2025, "large clouds, 16 cores at 0.05 each"),
}

_UNPUBLISHED: Final = Efficiency(0.45, 350, 0.4, "no published run")
_EFFICIENCIES: Final = {
    "a100": Efficiency(0.69, 350, 0.15, "MosaicML's and NVIDIA's runs"),
    "a100-40": Efficiency(0.80, 1200, 0.15, "MosaicML's and nanoGPT's runs"),
    "h100": Efficiency(0.47, 350, 0.15, "MosaicML's runs"),
    "h200": Efficiency(0.47, 350, 0.15, "MosaicML's runs on H100"),
    "v100": Efficiency(0.37, 350, 0.3, "one run of NVIDIA"),
    "cpu": Efficiency(0.7, 0, 0.3, "no published run"),
}
"""By device, fitted to the runs in ``tests/plan/test_published_runs.py``; a card that is like another has its share."""

_GPUS: Final = (
    _gpu("h100", "NVIDIA H100 SXM", "H100", gib=80, tera=(989, 67), bandwidth=3350, link=450, host_link=50),
    _gpu("h200", "NVIDIA H200 SXM", "H200", gib=141, tera=(989, 67), bandwidth=4800, link=450, host_link=50),
    _gpu("b200", "NVIDIA B200", "B200", gib=180, tera=(2250, 75), bandwidth=7700, link=900, host_link=50),
    _gpu("a100", "NVIDIA A100 SXM 80 GB", "A100 80GB", gib=80, tera=(312, 19.5), bandwidth=2039, link=300),
    _gpu("a100-40", "NVIDIA A100 SXM 40 GB", ("A100", "A800"), gib=40, tera=(312, 19.5), bandwidth=1555, link=300),
    _gpu(
        "v100",
        "NVIDIA V100 SXM 32 GB",
        "V100",
        gib=32,
        tera=(125, 15.7),
        bandwidth=900,
        link=150,
        host_link=12,
        has_bf16=False,
    ),
    _gpu("l40s", "NVIDIA L40S", "L40S", gib=48, tera=(362, 91.6), bandwidth=864),
    _gpu("l4", "NVIDIA L4", "L4", gib=24, tera=(121, 30.3), bandwidth=300),
    _gpu("5090", "NVIDIA GeForce RTX 5090", "RTX 5090", gib=32, tera=(209.5, 104.8), bandwidth=1792, host_link=50),
    _gpu("4090", "NVIDIA GeForce RTX 4090", "RTX 4090", gib=24, tera=(165.2, 82.6), bandwidth=1008),
    _gpu("3090", "NVIDIA GeForce RTX 3090", "RTX 3090", gib=24, tera=(71, 35.6), bandwidth=936),
)
"""The GPUs of ``--device``."""

_OTHER_GPUS: Final = (
    _gpu("h100-pcie", "", "H100 PCIe", gib=80, tera=(756, 51), bandwidth=2000, link=64, host_link=50, like="h100"),
    _gpu("h100-nvl", "", "H100 NVL", gib=94, tera=(835, 60), bandwidth=3900, link=300, host_link=50, like="h100"),
    _gpu("h200-nvl", "", "H200 NVL", gib=141, tera=(835, 60), bandwidth=4800, link=450, host_link=50, like="h200"),
    _gpu("gh200", "", "GH200", gib=96, tera=(989, 67), bandwidth=4000, link=450, host_link=450, like="h100"),
    _gpu("h800", "", "H800", gib=80, tera=(989, 67), bandwidth=3350, link=200, host_link=50, like="h100"),
    _gpu("a100-pcie", "", "A100 80GB PCIe", gib=80, tera=(312, 19.5), bandwidth=1935, like="a100"),
    _gpu("a800", "", "A800 80GB", gib=80, tera=(312, 19.5), bandwidth=2039, link=200, like="a100"),
    _gpu("a40", "", "A40", gib=48, tera=(149.7, 37.4), bandwidth=696, like="a100"),
    _gpu("a30", "", "A30", gib=24, tera=(165, 10.3), bandwidth=933, like="a100"),
    _gpu("a10", "", "A10", gib=24, tera=(125, 31.2), bandwidth=600, like="l4"),
    _gpu("l40", "", "L40", gib=48, tera=(181, 90.5), bandwidth=864, like="4090"),
    _gpu("a6000", "", "RTX A6000", gib=48, tera=(154.8, 38.7), bandwidth=768, like="4090"),
)
_SLOWER: Final = ("MIG", "Laptop", "Ti", "Super", "D", "Max-Q")
"""Words of names that make a card another one than the rest of the name says, or, with MIG, a part of it."""


def card(name: str) -> Device | None:
    """Return a GPU by the name that NVIDIA's driver reports, under that name; None if it is not in the tables.

    The words of the name count, in any order, so that an L40S is no L40: the GPU with the most words in it is meant.
    """
    words = set(name.replace("-", " ").split())
    if words.intersection(_SLOWER):
        return None
    found = [
        (len(known.split()), device)
        for device in (*_GPUS, *_OTHER_GPUS)
        for known in device.cards
        if words.issuperset(known.split())
    ]
    return replace(max(found, key=itemgetter(0))[1], label=name) if found else None


DEVICES: Final[Mapping[str, Device]] = {
    device.name: device
    for device in (
        *_GPUS,
        Device(
            name="cpu",
            label="server CPU, 16 cores with AVX-512 BF16",
            kind="cpu",
            memory=64 * _GIB,
            flops={"bf16": 2.4 * _TERA, "fp32": 1.2 * _TERA, "fp16": 0.3 * _TERA},
            bandwidth=100 * _GB,
            link=10 * _GB,
            host_link=100 * _GB,
            price=_PRICES["cpu"],
            efficiency=_EFFICIENCIES["cpu"],
        ),
    )
}
"""Devices by the names of ``--device``."""


def device_of(name: str, argument: str = "device") -> Device:
    """Return a device by its name.

    Raises:
        UserError: the name is unknown; the message has the ``argument`` that gave it.
    """
    if name.lower() not in DEVICES:
        known = ", ".join(DEVICES)
        raise UserError(f"`{argument}={name!r}`: expected one of {known}{did_you_mean(name.lower(), DEVICES)}")
    return DEVICES[name.lower()]
