"""What PyTorch has too, without its slow imports: operators of its dispatcher, backward passes from given gradients.

`torch.library.custom_op` makes the same operators, in the namespace ``hornbook``, but the first call of any of them
imports `torch._dynamo`, which takes half a second.
"""

from collections.abc import Callable
from typing import Any, Literal, NoReturn, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

_F = TypeVar("_F", bound=Callable[..., Any])
_LIBRARY = torch.library.Library("hornbook", "FRAGMENT")  # type: ignore[no-untyped-call]


def operator(
    *, changes: tuple[int, ...] = (), device: Literal["cpu", "any"] = "cpu", has_gradient: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that makes an operator of a function, by its name and its annotations.

    The caller registers what it returns for tensors without values with ``shapes_of``.

    Args:
        changes: numbers of the arguments, tensors, lists of them or None, that are changed in place.
        device: for tensors of which device it computes.
        has_gradient: whether the caller registers a backward pass with `torch.library.register_autograd`; without one,
            it raises RuntimeError. One with ``changes`` can have none.
    """

    def define(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__
        names = function.__code__.co_varnames
        schema = torch.library.infer_schema(function, mutates_args=[names[number] for number in changes])
        _LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]

        def changing(*arguments: Any) -> Any:
            for number in changes:
                changed = arguments[number] if isinstance(arguments[number], list) else [arguments[number]]
                increment_version([each for each in changed if each is not None and not each.is_inference()])
            return function(*arguments)

        key = "CPU" if device == "cpu" else "CompositeExplicitAutograd"
        _LIBRARY.impl(name, changing if changes else function, key)  # type: ignore[no-untyped-call]
        if not has_gradient and not changes:
            torch.library.register_autograd(f"hornbook::{name}", _no_gradient, lib=_LIBRARY)
        defined: Callable[..., Any] = getattr(torch.ops.hornbook, name).default
        return defined

    return define


def shapes_of(name: str) -> Callable[[_F], _F]:
    """Return a decorator that registers a function of an operator's arguments: empty results of the right shapes.

    `torch.library.register_fake` does the same, but searches all modules for that of its caller: a millisecond each.
    """

    def register(function: _F) -> _F:
        _LIBRARY.impl(name, function, "Meta")  # type: ignore[no-untyped-call]
        return function

    return register


def _no_gradient(ctx: Any, *gradients: Any) -> NoReturn:
    raise RuntimeError("this operator is a backward pass and has none of its own")


class _Given(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return y.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient, None


def scalar_with_gradient(y: Tensor, gradient: Tensor) -> Tensor:
    """Return a zero whose gradient with respect to ``y`` is ``gradient``, of the same shape and dtype.

    Its ``backward()`` does what ``y.backward(gradient)`` does, which imports SymPy for a check: 0.3 s.
    """
    zero: Tensor = _Given.apply(y, gradient)  # type: ignore[no-untyped-call]
    return zero
