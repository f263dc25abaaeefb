"""Operators of hornbook's own for x86 processors: C++ in ``csrc``, compiled once a machine, called through ctypes.

    csrc/*.cpp --compiler, once per instruction set--> libhornbook.so     `build`
               --CPUID, self-test-->                   the form to call   `library`
               --torch.library-->                      operators          `linear`, …

`hornbook.ops.native.kernels` decides whether PyTorch's operators or these compute.
"""
