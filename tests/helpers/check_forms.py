"""Compare every native form of a processor with float64, and print one line for each; run in an emulator by tests.

python check_forms.py      neon linear_f32 right
                           neon linear_f32_cut right      products larger than any block
"""

import functools

import torch

from hornbook.ops.native import block_sparse, kernels, linear_trial
from hornbook.ops.native.choice import KERNELS
from hornbook.ops.native.linear import linear_weight_gradient, panels_of, product


def cut_products_are_right(form: kernels.Form, dtype: torch.dtype) -> bool:
    """Check products whose rows, tokens and contraction are cut, and that a row alone has the same bits."""
    draws = torch.Generator().manual_seed(0)
    x, g, weight = (torch.randn(shape, generator=draws) for shape in ((259, 1030), (259, 19), (19, 1030)))
    x, g = x.to(dtype), g.to(dtype)
    panels, back = (panels_of(form, weight, dtype, for_gradient=for_gradient) for for_gradient in (False, True))
    y, of_x = product(form, x, panels, weight), product(form, g, back, weight, for_gradient=True)
    of_weight = torch.ones(19, 1030)
    linear_weight_gradient(g, x, of_weight, None, form.isa, True)
    for row in (0, 1, 258):
        alone = product(form, x[row : row + 1], panels, weight)
        of_row = product(form, g[row : row + 1], back, weight, for_gradient=True)
        if not (torch.equal(alone[0], y[row]) and torch.equal(of_row[0], of_x[row])):
            return False
    x, g, weight = x.double(), g.double(), weight.to(dtype).double()
    tolerance = 1e-6 if dtype == torch.float32 else 4e-3  # of the sum of absolute summands
    pairs = (
        (y, x @ weight.t(), x.abs() @ weight.abs().t(), tolerance),
        (of_x, g @ weight, g.abs() @ weight.abs(), tolerance),
        (of_weight, g.t() @ x + 1, g.abs().t() @ x.abs() + 1, 1e-6),
    )
    return all(bool((own.double() - exact).abs().max() <= by * scale.max()) for own, exact, scale, by in pairs)


def main() -> None:
    """Print "form kernel right" or "form kernel wrong"."""
    torch.set_num_threads(1)
    built = kernels.load()
    if isinstance(built, Exception):
        raise SystemExit(f"no native operators: {built}")
    say = functools.partial(print, flush=True)
    for kernel in (*KERNELS, block_sparse.KERNEL):
        for isa in kernel.instruction_sets:
            with torch.no_grad():
                is_right = kernel.check(kernels.Form(isa), kernel.dtype)
            say(isa, kernel.name, "right" if is_right else "wrong")
    for kernel in linear_trial.KERNELS:
        for isa in kernel.instruction_sets:
            is_right = cut_products_are_right(kernels.Form(isa), kernel.dtype)
            say(isa, f"{kernel.name}_cut", "right" if is_right else "wrong")


if __name__ == "__main__":
    main()
