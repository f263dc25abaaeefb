"""A training step of GPT-2 124M by nanoGPT's and by transformers' operators on hornbook's roofline of an H100.

::

    python benchmarks/peer_kernels.py --micro-batch-size 16

Neither is compiled, as hornbook's blocks are not on this roofline. nanoGPT's step is written here after its
``model.py`` and ``train.py``: no biases, no dropout, bf16 by autocast, all logits at once, fused AdamW, gradients
clipped to a norm of 1. transformers' model is that of `hornbook.peers`, with the same precision and optimizer. One
micro-batch a step, counted as by ``hornbook plan gpt2-small --kernels``: a roofline, not a measurement.
"""

import argparse
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

from hornbook.measure.fake_cuda import load_device

load_device()

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from hornbook.cli.plan_kernels import duration, total_of  # noqa: E402
from hornbook.config import load_recipe  # noqa: E402
from hornbook.measure.kernel_launches import Launch  # noqa: E402
from hornbook.measure.kernel_trace import traced_function  # noqa: E402
from hornbook.peers import build_model  # noqa: E402
from hornbook.plan.devices import DEVICES  # noqa: E402

_VOCABULARY, _WIDTH, _HEADS, _LAYERS, _LENGTH = 50304, 768, 12, 12, 1024
_DEVICE = torch.device("cuda", 0)
_MOST_ROWS = 14


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(_WIDTH, bias=False), nn.LayerNorm(_WIDTH, bias=False)
        self.qkv, self.out = nn.Linear(_WIDTH, 3 * _WIDTH, bias=False), nn.Linear(_WIDTH, _WIDTH, bias=False)
        self.up, self.down = nn.Linear(_WIDTH, 4 * _WIDTH, bias=False), nn.Linear(4 * _WIDTH, _WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.first(x)).split(_WIDTH, 2)
        q, k, v = (part.unflatten(2, (_HEADS, -1)).transpose(1, 2) for part in parts)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).contiguous().flatten(2))
        result: Tensor = x + self.down(functional.gelu(self.up(self.second(x))))
        return result


class NanoGPT(nn.Module):
    """The modules of nanoGPT, whose ``forward`` returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(_VOCABULARY, _WIDTH), nn.Embedding(_LENGTH, _WIDTH)
        self.blocks, self.norm = nn.ModuleList(_Block() for _ in range(_LAYERS)), nn.LayerNorm(_WIDTH, bias=False)
        self.head = nn.Linear(_WIDTH, _VOCABULARY, bias=False)
        self.tokens.weight = self.head.weight

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy of ``labels``, int64 ``[B, T]`` as ``input_ids``."""
        x = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1], device=input_ids.device))
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


def step_of(make: Callable[[], nn.Module], micro_batch_size: int) -> Callable[[], object]:
    """Return a training step of a model that is made on the device."""
    with _DEVICE:
        model = make().train()
        ids = torch.zeros(micro_batch_size, _LENGTH, dtype=torch.int64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            found = model(input_ids=ids, labels=ids)
            loss = found if isinstance(found, Tensor) else found.loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def main() -> None:
    """Print both steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--micro-batch-size", type=int, default=16)
    size = parser.parse_args().micro_batch_size
    recipe, device = load_recipe("gpt2-small", ["--data.synthetic=true"], require_data=False).recipe, DEVICES["h100"]
    flops = (recipe.flops_per_token(_LENGTH) or 0.0) * size * _LENGTH
    makers: dict[str, Callable[[], nn.Module]] = {"nanoGPT": NanoGPT, "transformers": partial(build_model, recipe)}
    for name, make in makers.items():
        with patch.object(torch.cuda, "is_bf16_supported", lambda *given, **options: True):
            launches = traced_function(partial(step_of, make, size)).launches
        groups: dict[str, list[Launch]] = {}
        for launch in launches:
            groups.setdefault(launch.name, []).append(launch)
        whole = total_of(launches, device)
        seconds = duration(whole)
        mfu = flops / seconds / device.flops["bf16"]
        print(f"{name}: {whole['kernels']:.0f} kernels, {seconds * 1e3:.2f} ms, MFU at most {mfu:.1%}")
        milliseconds = {each: total_of(group, device)["seconds"] * 1e3 for each, group in groups.items()}
        longest = sorted(milliseconds, key=milliseconds.__getitem__, reverse=True)[:_MOST_ROWS]
        print("  " + ", ".join(f"{each} {milliseconds[each]:.2f}" for each in longest))


if __name__ == "__main__":
    main()
