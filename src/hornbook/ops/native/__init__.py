"""Native operators for x86 and Arm processors: C++ in ``csrc``, compiled once per machine and called through ctypes.

    csrc/*.cpp --compiler, once per instruction set--> libhornbook.so     `build`
               --CPUID, self-test-->                   the form to call   `library`
               --torch.library-->                      operators          `linear`, …

`hornbook.ops.native.kernels` selects between PyTorch's operators and these.
"""
