"""Compare every native form of a processor with float64, and print one line for each; run in an emulator by tests.

python check_forms.py      neon linear_f32 right
"""

import functools

import torch

from hornbook.ops.native import block_sparse, library
from hornbook.ops.native.choice import KERNELS


def main() -> None:
    """Print "form kernel right" or "form kernel wrong"."""
    torch.set_num_threads(1)
    built = library.load()
    if isinstance(built, Exception):
        raise SystemExit(f"no native operators: {built}")
    say = functools.partial(print, flush=True)
    for kernel in (*KERNELS, block_sparse.KERNEL):
        for isa in kernel.instruction_sets:
            with torch.no_grad():
                is_right = kernel.check(library.Form(isa), kernel.dtype)
            say(isa, kernel.name, "right" if is_right else "wrong")


if __name__ == "__main__":
    main()
