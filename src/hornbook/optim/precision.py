"""Which dtype the activations have. Parameters, gradients and optimizer state are fp32 whatever is chosen here.

bf16 pays where the processor multiplies it natively: GPUs since Ampere, x86 with AMX or AVX512-BF16 (4.7 times the
fp32 rate on an EPYC 9004), Apple GPUs. Elsewhere it is emulated and slower than fp32.

On a CPU, runs in fp32 are bit-reproducible. On a GPU, data, order, masks, dropout and initial weights are the same in
every run, but the device chooses in which order some sums add up, in fp32 too, as those of rows that tokens look up.
"""

import torch

from hornbook.storage.system import cpu_flags

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_CPU_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # the last is Arm's name


def compute_dtype(choice: str, device: torch.device) -> torch.dtype:
    """Return the dtype of the activations: ``choice`` is "fp32", "bf16" or "auto", which asks the device."""
    if choice != "auto":
        return _DTYPES[choice]
    return torch.bfloat16 if has_fast_bf16(device) else torch.float32


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name that options give a dtype of activations, "fp32" or "bf16"; PyTorch's own for another."""
    names = {known: name for name, known in _DTYPES.items()}
    return names.get(dtype, str(dtype).removeprefix("torch."))


def has_fast_bf16(device: torch.device) -> bool:
    """Tell whether the device multiplies bf16 matrices natively."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type == "mps":
        return torch.backends.mps.is_macos_or_newer(14, 0)
    return bool(_CPU_FLAGS & cpu_flags())
