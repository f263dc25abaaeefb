"""The graphs that PyTorch's Inductor makes of compiled blocks, executed without generating code."""

from collections import Counter
from functools import partial

import torch
from torch._dynamo.utils import detect_fake_mode
from torch._functorch.aot_autograd import make_boxed_func

FUSED = ("fused_all_gather_matmul", "fused_matmul_reduce_scatter")
_EXCHANGES = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce_", *FUSED)


def counting(graphs, compile_function=torch.compile):
    """Return ``torch.compile`` that appends the exchanges of each graph to ``graphs``, forward first."""
    from torch._inductor.compile_fx import compile_fx  # warns when it is imported

    return partial(compile_function, backend=partial(compile_fx, inner_compile=partial(_passed, graphs)))


def _passed(graphs, module, inputs, **options):
    from torch._inductor.fx_passes.post_grad import post_grad_passes, view_to_reshape
    from torch._inductor.virtualized import V

    view_to_reshape(module)
    with V.set_fake_mode(detect_fake_mode(inputs)):
        post_grad_passes(module, is_inference=False)
    module.recompile()
    targets = (getattr(node.target, "overloadpacket", node.target) for node in module.graph.nodes)
    graphs.append(Counter(name for target in targets if (name := getattr(target, "__name__", "")) in _EXCHANGES))
    return make_boxed_func(module.forward)
