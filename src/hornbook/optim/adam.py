"""AdamW and Adam, by PyTorch's fused kernel or a native one, and with an age for each block of a sparse layer."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam as torch_adam

from hornbook.config.optimizers import MomentsConfig
from hornbook.ops.native.kernels import FORMS, Form
from hornbook.ops.native.optimizers import Numbers
from hornbook.ops.native.optimizers import adamw as native_adamw
from hornbook.ops.triton.adamw_operators import can_update, triton_adamw
from hornbook.optim.slots import Slot, by_group

_MOMENTS = ("exp_avg", "exp_avg_sq")
_PLAIN: dict[str, Any] = {"fused": True, "amsgrad": False, "maximize": False}


def adamw(
    slots: Sequence[Slot], config: MomentsConfig, *, learning_rate: float, count: int, decoupled: bool = True
) -> None:
    """Update ``slots`` in place by AdamW (Loshchilov & Hutter 2019, algorithm 2): Adam after ``w -= lr · decay · w``.

    ::

        m = β₁ m + (1-β₁) g;   v = β₂ v + (1-β₂) g²
        m̂ = m / (1-β₁ᵗ);       v̂ = v / (1-β₂ᵗ)             without bias correction: m̂ = m, v̂ = v
        w -= lr · m̂ / (√v̂ + ε)

    ``epsilon_before_correction`` uses the form at the end of section 2 of Kingma & Ba, as TensorFlow does:
    ``w -= lr · √(1-β₂ᵗ) / (1-β₁ᵗ) · m / (√v + ε)``, which equals the above with ``ε / √(1-β₂ᵗ)`` instead of ε.

    Args:
        slots: fp32 tensors with states ``exp_avg`` and ``exp_avg_sq``.
        config: betas, epsilon and decay; slots with ``decay`` false are not decayed.
        learning_rate: of this update.
        count: t, the number of this update, from 1.
        decoupled: False adds the decay to the gradient, as ``adam`` does.
    """
    epsilon = config.epsilon
    if config.epsilon_before_correction and config.bias_correction:
        epsilon /= math.sqrt(1.0 - config.beta2**count)
    t = count if config.bias_correction else math.inf  # after infinitely many updates, 1 - βᵗ is 1
    # By the run's count, the first step of a block that grew late is lr · (1 - β₁) / √(1 - β₂), 3.2 lr for β₂ = 0.999,
    # 0.45 lr for 0.95; by its age, lr. The smaller is taken: large first steps disturb what was learned.
    counts_ages = config.bias_correction and (1.0 - config.beta1) ** 2 > 1.0 - config.beta2
    young = [slot for slot in slots if counts_ages and slot.grown_at is not None]
    for slot in young:
        _of_ages(slot, config, learning_rate=learning_rate, count=count, decoupled=decoupled)
    for decay, scale, group in by_group([slot for slot in slots if slot not in young] if young else slots):
        rates = learning_rate * scale, config.weight_decay if decay else 0.0
        numbers = Numbers(*rates, config.beta1, config.beta2, epsilon, t, decoupled)
        if group[0].parameter.is_cuda and not (group := _by_triton(group, numbers)):
            continue
        weights, gradients = [slot.parameter for slot in group], [slot.gradient for slot in group]
        means, squares = ([slot.state[name] for slot in group] for name in _MOMENTS)
        isa, tensors = FORMS.get("adamw"), (*weights, *gradients, *means, *squares)
        if isa and all(x.device.type == "cpu" and x.dtype == torch.float32 and x.is_contiguous() for x in tensors):
            for slot, mean, square in zip(group, means, squares, strict=True):
                native_adamw(Form(isa), slot.parameter, slot.gradient, mean, square, numbers, slot.clip)
            continue
        if any(slot.clip != 1.0 for slot in group):
            torch._foreach_mul_(gradients, [slot.clip for slot in group])
        torch_adam(
            weights,
            gradients,
            means,
            squares,
            [],
            [*torch.full((len(weights),), float(t - 1), device=weights[0].device)],
            **_PLAIN,
            beta1=config.beta1,
            beta2=config.beta2,
            lr=numbers.learning_rate,
            weight_decay=numbers.decay,
            eps=epsilon,
            decoupled_weight_decay=decoupled,
        )


def _by_triton(slots: list[Slot], numbers: Numbers) -> list[Slot]:
    """Update slots on a GPU, and their copies, and return those that are left to PyTorch."""
    left, groups = list[Slot](), dict[float, list[Slot]]()
    for slot in slots:
        fits = can_update([slot.parameter, slot.gradient, *(slot.state[name] for name in _MOMENTS)])
        (groups.setdefault(slot.clip, []) if fits else left).append(slot)
    for factor, group in groups.items():
        group.sort(key=lambda slot: slot.copy is None)
        lists = [[slot.parameter for slot in group], [slot.gradient for slot in group]]
        lists += [[slot.state[name] for slot in group] for name in _MOMENTS]
        copies = [slot.copy for slot in group if slot.copy is not None]
        triton_adamw(*lists, [copy.values for copy in copies], [*numbers[:-1], factor], numbers.decoupled)
        for slot, copy in zip(group, copies, strict=False):
            copy.updated = slot.parameter, slot.parameter._version
    return left


def _of_ages(slot: Slot, config: MomentsConfig, *, learning_rate: float, count: int, decoupled: bool) -> None:
    """Update blocks of different ages in place, with t counted from the update after which each block grew."""
    assert slot.grown_at is not None, "only blocks have ages"
    age = (count - slot.grown_at)[..., None, None].double()
    first, second = ((1.0 - beta**age).to(slot.parameter.dtype) for beta in (config.beta1, config.beta2))
    weight, gradient, rate = slot.parameter, slot.gradient * slot.clip, learning_rate * slot.rate_scale
    decay = config.weight_decay if slot.decay else 0.0
    if decoupled:
        weight.mul_(1.0 - rate * decay)
    elif decay:
        gradient = gradient.add(weight, alpha=decay)
    mean, square = slot.state["exp_avg"], slot.state["exp_avg_sq"]
    mean.lerp_(gradient, 1.0 - config.beta1)
    square.mul_(config.beta2).addcmul_(gradient, gradient, value=1.0 - config.beta2)
    epsilon = config.epsilon / second.sqrt() if config.epsilon_before_correction else config.epsilon
    weight.addcdiv_(mean / first, (square / second).sqrt_().add_(epsilon), value=-rate)


def adam(slots: Sequence[Slot], config: MomentsConfig, *, learning_rate: float, count: int) -> None:
    """Update ``slots`` in place by Adam (Kingma & Ba 2015), after ``g += decay · w``; arguments as for ``adamw``."""
    adamw(slots, config, learning_rate=learning_rate, count=count, decoupled=False)


def adam_directions(slots: Sequence[Slot], config: MomentsConfig, count: int) -> list[Tensor]:
    """Update the moments of ``slots`` in place and return ``-m̂ / (√v̂ + ε)``, new tensors of the parameters' shapes.

    They are the result of the fused Adam update of zeros with a learning rate of 1 and no decay, and parts of one
    tensor, which one kernel fills.
    """
    sizes = [-(-slot.parameter.numel() // 32) * 32 for slot in slots]  # each starts at a multiple of 128 bytes
    flat = torch.zeros(sum(sizes), dtype=torch.float32, device=slots[0].parameter.device)
    options: dict[str, Any] = {"is_exempt": True, "rate_scale": 1.0, "copy": None}
    zeros = [
        replace(slot, parameter=part[: slot.parameter.numel()].view_as(slot.parameter), **options)
        for slot, part in zip(slots, torch.split(flat, sizes), strict=True)
    ]
    adamw(zeros, config, learning_rate=1.0, count=count, decoupled=False)
    return [slot.parameter for slot in zeros]
