"""What devices can do and cost: peak rates, memory, bandwidths, links, a typical price.

Rates of products are those of data sheets: dense, bf16 and fp16 summed in fp32, fp32 without TF32, which hornbook
leaves off. Links are one-way, for one device to the others of its machine.

Prices are typical on-demand list prices of one device in US dollars, as cloud providers published them in 2025 (H100,
H200, A100, B200: GPU clouds; L4: a large cloud; RTX 4090: a marketplace; CPU: 0.05 a core). They were written down from
memory, differ by a factor of three between providers, and are there to be replaced: ``--price``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from hornbook.config.sections import Dtype
from hornbook.config.suggest import did_you_mean
from hornbook.errors import UserError

_GB: Final = 1e9
_GIB: Final = 1 << 30
_TERA: Final = 1e12


@dataclass(frozen=True, kw_only=True)
class Device:
    """A kind of device; sizes in bytes, rates a second."""

    name: str
    label: str
    kind: Literal["cpu", "cuda"] = "cuda"
    memory: float
    flops: Mapping[Dtype, float]
    """Of products, by dtype."""
    bandwidth: float
    """Of its memory."""
    link: float
    """To the other devices of its machine."""
    host_link: float
    """To the host's memory, in each direction."""
    disk: float = 2e9
    """Of files, reads and writes together; an NVMe disk."""
    price: float
    """US dollars an hour."""

    @property
    def auto_dtype(self) -> Dtype:
        """What ``precision.compute = "auto"`` chooses: bf16 where products are faster in it."""
        return "bf16" if self.flops["bf16"] > self.flops["fp32"] else "fp32"


def _gpu(
    name: str,
    label: str,
    *,
    gib: float,
    tera: tuple[float, float],
    bandwidth: float,
    link: float,
    price: float,
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


DEVICES: Final[Mapping[str, Device]] = {
    device.name: device
    for device in (
        _gpu("h100", "NVIDIA H100 SXM", gib=80, tera=(989, 67), bandwidth=3350, link=450, price=3.0, host_link=50),
        _gpu("h200", "NVIDIA H200 SXM", gib=141, tera=(989, 67), bandwidth=4800, link=450, price=3.8, host_link=50),
        _gpu("b200", "NVIDIA B200", gib=180, tera=(2250, 75), bandwidth=7700, link=900, price=5.0, host_link=50),
        _gpu("a100", "NVIDIA A100 SXM 80 GB", gib=80, tera=(312, 19.5), bandwidth=2039, link=300, price=1.8),
        _gpu("l4", "NVIDIA L4", gib=24, tera=(121, 30.3), bandwidth=300, link=25, price=0.7),
        _gpu("4090", "NVIDIA GeForce RTX 4090", gib=24, tera=(165.2, 82.6), bandwidth=1008, link=25, price=0.5),
        Device(
            name="cpu",
            label="server CPU, 16 cores with AVX-512 BF16",
            kind="cpu",
            memory=64 * _GIB,
            flops={"bf16": 2.4 * _TERA, "fp32": 1.2 * _TERA, "fp16": 0.3 * _TERA},
            bandwidth=100 * _GB,
            link=10 * _GB,
            host_link=100 * _GB,
            price=0.8,
        ),
    )
}
"""By the name that ``--device`` takes."""


def device_of(name: str) -> Device:
    """Return a device by its name.

    Raises:
        UserError: there is none of that name.
    """
    if name.lower() not in DEVICES:
        known = ", ".join(DEVICES)
        raise UserError(f"--device {name}: expected one of {known}{did_you_mean(name.lower(), DEVICES)}")
    return DEVICES[name.lower()]
