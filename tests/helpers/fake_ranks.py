"""The first of several ranks on GPUs without values; import it after `hornbook.measure.fake_cuda.load_device`."""

from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from hornbook.config import load_recipe
from hornbook.engine import build_training as building
from hornbook.measure import kernel_trace
from hornbook.model import LanguageModel
from hornbook.parallel.ranks import Ranks, is_cut
from hornbook.parallel.world import World, axes_of
from hornbook.samples.sources import complete, open_sources

DEVICE = torch.device("cuda", 0)
_OPERATORS = torch.library.Library("c10d", "IMPL")


class Stream:
    """A stream or an event of a GPU that is not there: all that waits or records does nothing."""

    def __init__(self, device=None, **options):
        self.device = DEVICE

    def __getattr__(self, name):
        return lambda *others: self


def pretend_gpu() -> None:
    """Let PyTorch find a GPU: sharding and pipelines ask for its number, streams and random state."""
    changes = {
        "_lazy_init": lambda: None,
        "is_initialized": lambda: True,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "_exchange_device": lambda device: 0,
        "_maybe_exchange_device": lambda device: 0,
        "get_rng_state": lambda device=None: torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda state, device=None: None,
    }
    for name, function in changes.items():
        setattr(torch.cuda, name, function)


def pretend_streams() -> None:
    """Let sharding find streams, and meshes of several axes keep their numbers."""
    torch.cuda.Stream = torch.cuda.Event = Stream
    torch.cuda.current_stream = Stream
    torch.cuda.stream = nullcontext
    torch.Tensor.record_stream = lambda tensor, stream: None
    concatenate = DeviceMesh._concatenate

    def of_real_numbers(meshes):
        with unset_fake_temporarily():
            return concatenate(meshes)

    DeviceMesh._concatenate = staticmethod(of_real_numbers)


def connect(num_ranks: int = 2) -> None:
    """Let so many ranks connect to nothing."""
    new_group = dist.new_group
    dist.new_group = lambda ranks=None, timeout=None, backend=None: new_group(ranks, backend="fake")
    Ranks._sum_on_host = lambda self, values, dtype: list(values)
    Ranks.gather = lambda self, value: [value] * self.size
    dist.init_process_group("fake", rank=0, world_size=num_ranks, store=FakeStore())
    done = torch._C._distributed_c10d.FakeWork
    _OPERATORS.impl("allreduce_coalesced_", lambda tensors, *others: done().boxed(), "Meta")  # PyTorch 2.13 has none


def begin(name, options, num_ranks=2, steps=1):
    """Return a recipe, its world and the micro-batches of so many steps."""
    recipe = load_recipe(name, [f"--{key}={value}" for key, value in options.items()]).recipe
    sources = open_sources(recipe)
    recipe = complete(recipe, sources)
    samples = building.build_samples(recipe, sources, on_cpu=False)
    everyone = Ranks(0, num_ranks, dist.group.WORLD, dist.group.WORLD, None) if num_ranks > 1 else Ranks()
    axes = axes_of(recipe.parallel, everyone, DEVICE, object())
    with building.build_loader(recipe, samples, World(everyone, axes), prefetch=0) as loader:
        batches = [next(loader) for _ in range(steps)]
    return recipe, World(everyone, axes, device=DEVICE), batches


@contextmanager
def device(trace):
    """Make PyTorch report a GPU in the ``with`` block, also for split weights, and tensors have no values."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with kernel_trace._device(fake, trace):
        LanguageModel.allocate = _allocate  # restored by the device
        with fake:
            yield


def _allocate(model, device, parts=None):
    """Do what `LanguageModel.allocate` does: see `hornbook.measure.kernel_trace`, here with split weights."""
    new = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if id(parameter) not in new:
                if is_cut(parameter):
                    made = torch.empty_like(parameter.detach(), device=device)
                else:
                    made = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
                new[id(parameter)] = nn.Parameter(made)
            setattr(module, name, new[id(parameter)])
        for name, buffer in list(module.named_buffers(recurse=False)):
            module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype, device=device)
    model.tie()
