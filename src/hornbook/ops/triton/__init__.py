"""Triton kernels for NVIDIA GPUs since Ampere; PyTorch's operators compute the same elsewhere.

Triton comes with PyTorch's CUDA builds. Tests run the kernels with Triton's interpreter on a CPU
(``TRITON_INTERPRET=1``, set before Triton is imported) and compile them for several architectures; they have never run
on a GPU.
"""
