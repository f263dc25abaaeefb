"""Compile the native operators, with progress, unless they are compiled; see docs/internals/cpu-kernels.md."""

import logging
import sys

from hornbook.errors import HornbookError
from hornbook.ops.native.build import library, missing_forms
from hornbook.ops.native.cache import BuildError


def main() -> int:
    """Compile them; the exit code is 0 also where they cannot be compiled, since hornbook does without them."""
    logging.basicConfig(format="%(message)s")
    try:
        built = library(progress=_show)
    except (BuildError, HornbookError) as error:
        print(f"hornbook: no native operators, so PyTorch's compute everything: {error}", file=sys.stderr)
        return 0
    for isa, why in missing_forms(built.parent).items():
        print(f"native operators: no {isa} form, since {why}")
    return 0


def _show(done: int, total: int) -> None:
    if sys.stdout.isatty():
        print(f"\r  {done} of {total} files", end="\n" if done == total else "", flush=True)
    elif done % max(1, total // 4) == 0:
        print(f"  {done} of {total} files", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
