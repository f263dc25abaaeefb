"""One rank on a GPU, run by test_world.py under ``torchrun``.

A world of one sends nothing; so its groups serve a world that believes itself to have two.
"""

import torch
import torch.distributed as dist

from hornbook.parallel.gradient_sums import GradientSums
from hornbook.parallel.ranks import Ranks
from hornbook.parallel.world import World

DEVICE = torch.device("cuda", 0)


def main() -> None:
    torch.cuda.set_device(DEVICE)
    joined = World.join(DEVICE)
    data = Ranks(0, 2, joined.data.tensors, joined.data._host)
    assert dist.get_backend() == "nccl"
    assert torch.cuda.current_device() == DEVICE.index
    World(data, device=DEVICE, waiting=joined._waiting).barrier()
    torch.cuda.set_sync_debug_mode("error")
    assert data.sum_integers([True, 2**53 + 1]) == [1, 2**53 + 1]
    assert data.sum_floats([1.0 + 2.0**-40]) == [1.0 + 2.0**-40]
    torch.cuda.set_sync_debug_mode("default")
    parameters = [torch.nn.Parameter(torch.ones(2, 3, device=DEVICE)) for _ in range(3)]
    sums = GradientSums(parameters, data)
    sums.expect()
    (1.5 * parameters[0] + 2.5 * parameters[1]).sum().backward()
    sums.finish()
    assert [parameter.grad.tolist() for parameter in parameters[:2]] == [[[number] * 3] * 2 for number in (1.5, 2.5)]
    assert parameters[2].grad is None
    joined.leave()


if __name__ == "__main__":
    main()
