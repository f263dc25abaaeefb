"""Rotary positions (Su et al. 2021, RoFormer) and the scalings of their wavelengths.

::

    frequency of the pair i of columns   θ ** (-2 i / R),  i = 0 .. R/2 - 1         linear, llama3, yarn change them
    angle of a token                     position · frequency -> cos, sin [B, T, R/2], once per micro-batch

`hornbook.ops.attention` rotates queries and keys.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor

from hornbook.config import DecoderConfig


class Rotary:
    """The rotation of a model's queries and keys.

    Args:
        frequencies: radians per position of each pair of columns.
        factor: of cosines and sines.

    Attributes:
        frequencies: radians per position of each pair of columns.
    """

    def __init__(self, frequencies: list[float], factor: float = 1.0) -> None:
        self.frequencies, self._factor = tuple(frequencies), factor

    def __call__(self, positions_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, fp32 ``[B, T, R/2]``, of positions, int64."""
        angles = positions_BT.unsqueeze(-1) * _tensor(self.frequencies, positions_BT.device)
        return angles.cos() * self._factor, angles.sin() * self._factor


@lru_cache(maxsize=16)
def _tensor(frequencies: tuple[float, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(frequencies, dtype=torch.float32, device=device)


def rotary_of(config: DecoderConfig) -> Rotary | None:
    """Return the rotation in layers without window; None without rotary positions."""
    if config.positions != "rotary":
        return None
    plain, factor = _plain(config.rope_theta, config.rotated_size), config.rope_factor or 1.0
    if config.rope_scaling == "linear":
        return Rotary([frequency / factor for frequency in plain])
    if config.rope_scaling == "llama3":
        return Rotary([_llama3(config, frequency) for frequency in plain])
    if config.rope_scaling == "yarn":
        scaled = [_yarn(config, pair, frequency) for pair, frequency in enumerate(plain)]
        return Rotary(scaled, config.rope_attention_factor or 0.1 * math.log(factor) + 1.0)
    return Rotary(plain)


def plain_rotary(theta: float, size: int) -> Rotary:
    """Return the rotation of ``size`` columns with the base ``theta``, without scaling."""
    return Rotary(_plain(theta, size))


def local_rotary_of(config: DecoderConfig) -> Rotary | None:
    """Return the rotation in layers with a window; None if it is that of the other layers."""
    if config.local_rope_theta is None:
        return None
    return plain_rotary(config.local_rope_theta, config.rotated_size)


def _plain(theta: float, size: int) -> list[float]:
    return [theta ** (-2 * pair / size) for pair in range(size // 2)]


def _llama3(config: DecoderConfig, frequency: float) -> float:
    """Scale long wavelengths, keep short ones, and interpolate between them (Llama 3.1's reference code)."""
    factor, original = config.rope_factor, config.rope_original_positions
    low, high = config.rope_low_factor, config.rope_high_factor
    assert factor and original and low and high, "the recipe was checked"
    rotations = original * frequency / (2 * math.pi)
    kept = min(max((rotations - low) / (high - low), 0.0), 1.0)
    return (1 - kept) * frequency / factor + kept * frequency


def _yarn(config: DecoderConfig, pair: int, frequency: float) -> float:
    """Scale pairs with few rotations, and keep those with many (Peng et al. 2023, YaRN, section 3.2)."""
    factor, original, size = config.rope_factor, config.rope_original_positions, config.rotated_size
    assert factor and original, "the recipe was checked"

    def pair_of(rotations: float) -> float:
        return size * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(config.rope_theta))

    first = max(math.floor(pair_of(config.rope_beta_fast)), 0)
    last = min(math.ceil(pair_of(config.rope_beta_slow)), size - 1)
    scaled = min(max((pair - first) / max(last - first, 1e-3), 0.0), 1.0)
    return scaled * frequency / factor + (1 - scaled) * frequency
