"""Properties of devices: peak rates, memory, bandwidths, links, typical prices.

Rates of products are those of data sheets: dense, bf16 and fp16 accumulated in fp32, fp32 without TF32, which hornbook
disables. Links are one-way, from a device to the others of its machine.

Prices are defaults: rounded list prices of clouds for one device on demand, in US dollars per hour, each with its year
and kind of provider (`Price`). They are from memory, not looked up, and differ by a factor of three between providers;
``--price`` overrides them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from hornbook.config.sections import Dtype
from hornbook.config.suggest import did_you_mean
from hornbook.errors import UserError

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


@dataclass(frozen=True, kw_only=True)
class Device:
    """A kind of device; sizes are in bytes, rates per second."""

    name: str
    label: str
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

    @property
    def auto_dtype(self) -> Dtype:
        """The dtype of ``precision.compute = "auto"``: bf16 if products are faster in it."""
        return "bf16" if self.flops["bf16"] > self.flops["fp32"] else "fp32"


def _gpu(
    name: str,
    label: str,
    *,
    gib: float,
    tera: tuple[float, float],
    bandwidth: float,
    link: float,
    price: Price,
    host_link: float = 25,
) -> Device:
    """Return a GPU; ``tera`` are its TFLOP/s in 16 bits and in fp32, other rates in GB/s."""
    rates: dict[Dtype, float] = {"bf16": tera[0] * _TERA, "fp16": tera[0] * _TERA, "fp32": tera[1] * _TERA}
    return Device(
        name=name,
        label=label,
        memory=gib * _GIB,
        flops=rates,
        bandwidth=bandwidth * _GB,
        link=link * _GB,
        host_link=host_link * _GB,
        price=price,
    )


_PRICES: Final = {
    "h100": Price(3.0, 2025, "GPU clouds"),
    "h200": Price(3.8, 2025, "GPU clouds"),
    "b200": Price(5.0, 2025, "GPU clouds"),
    "a100": Price(1.8, 2025, "GPU clouds"),
    "l4": Price(0.7, 2025, "a large cloud"),
    "4090": Price(0.5, 2025, "a marketplace of private machines"),
    "cpu": Price(0.8, 2025, "large clouds, 16 cores at 0.05 each"),
}

DEVICES: Final[Mapping[str, Device]] = {
    device.name: device
    for device in (
        _gpu(
            "h100",
            "NVIDIA H100 SXM",
            gib=80,
            tera=(989, 67),
            bandwidth=3350,
            link=450,
            price=_PRICES["h100"],
            host_link=50,
        ),
        _gpu(
            "h200",
            "NVIDIA H200 SXM",
            gib=141,
            tera=(989, 67),
            bandwidth=4800,
            link=450,
            price=_PRICES["h200"],
            host_link=50,
        ),
        _gpu(
            "b200",
            "NVIDIA B200",
            gib=180,
            tera=(2250, 75),
            bandwidth=7700,
            link=900,
            price=_PRICES["b200"],
            host_link=50,
        ),
        _gpu(
            "a100", "NVIDIA A100 SXM 80 GB", gib=80, tera=(312, 19.5), bandwidth=2039, link=300, price=_PRICES["a100"]
        ),
        _gpu("l4", "NVIDIA L4", gib=24, tera=(121, 30.3), bandwidth=300, link=25, price=_PRICES["l4"]),
        _gpu(
            "4090",
            "NVIDIA GeForce RTX 4090",
            gib=24,
            tera=(165.2, 82.6),
            bandwidth=1008,
            link=25,
            price=_PRICES["4090"],
        ),
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
        ),
    )
}
"""Devices by the names of ``--device``."""


def device_of(name: str) -> Device:
    """Return a device by its name.

    Raises:
        UserError: the name is unknown.
    """
    if name.lower() not in DEVICES:
        known = ", ".join(DEVICES)
        raise UserError(f"`device={name!r}`: expected one of {known}{did_you_mean(name.lower(), DEVICES)}")
    return DEVICES[name.lower()]
