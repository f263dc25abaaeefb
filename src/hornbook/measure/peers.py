"""What a user would run instead: the same step, and the same generation, in Hugging Face transformers."""

from collections.abc import Sequence
from typing import Any

import torch

from hornbook.config import Recipe
from hornbook.errors import UserError
from hornbook.measure.generation import Generate
from hornbook.measure.throughput import Step
from hornbook.parallel.world import World

_ACTIVATIONS = {"gelu_tanh": "gelu_new", "gelu": "gelu", "relu": "relu", "silu": "silu"}


def transformers_step(recipe: Recipe, world: World, *, precision: str) -> Step:
    """Return a training step of ``GPT2LMHeadModel`` with the recipe's sizes.

    Args:
        recipe: a GPT whose options transformers has.
        world: gives the device.
        precision: fp32; bf16-mixed (fp32 weights under autocast); bf16 (bf16 weights and moments).

    Raises:
        UserError: transformers is not installed, or has no such model.
    """
    model = _build(recipe).to(world.device).train()
    if precision == "bf16":
        model = model.bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    training, length = recipe.training, recipe.sequence_length
    ids = torch.randint(0, recipe.model.vocab_size or 1, (training.global_batch_size, length), device=world.device)
    micro_batches = torch.split(ids, training.micro_batch_size)

    def step() -> None:
        for micro_batch in micro_batches:
            with torch.autocast(world.device.type, torch.bfloat16, enabled=precision == "bf16-mixed"):
                loss = model(input_ids=micro_batch, labels=micro_batch).loss
            (loss / len(micro_batches)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def transformers_generate(
    recipe: Recipe, prompts: Sequence[Sequence[int]], device: torch.device, compute: str
) -> Generate:
    """Return greedy ``generate`` of ``GPT2LMHeadModel``, with its cache, at the recipe's sizes.

    Args:
        recipe: a GPT whose options transformers has.
        prompts: token ids, equally many in each.
        device: where the model is.
        compute: fp32 or bf16, of weights and activations.

    Raises:
        UserError: transformers is not installed, or has no such model.
    """
    model = _build(recipe).to(device).eval()
    model = model.bfloat16() if compute == "bf16" else model
    ids_BT = torch.tensor(prompts, device=device)
    options = {"attention_mask": torch.ones_like(ids_BT), "do_sample": False, "use_cache": True, "pad_token_id": 0}

    def write(num_tokens: int) -> object:
        return model.generate(ids_BT, max_new_tokens=num_tokens, **options)

    return write


def _build(recipe: Recipe) -> Any:
    try:
        import transformers
    except ImportError as error:
        raise UserError("the peer needs transformers: pip install 'hornbook[test]', or leave --peer out") from error
    model = recipe.model
    if model.activation not in _ACTIVATIONS or model.effective_head_size * model.num_heads != model.hidden_size:
        raise UserError("transformers' GPT-2 has no such activation or head size: leave --peer out")
    config = transformers.GPT2Config(
        n_layer=model.num_layers,
        n_embd=model.hidden_size,
        n_head=model.num_heads,
        n_inner=model.effective_feed_forward_size,
        vocab_size=model.vocab_size or 0,
        n_positions=model.max_positions,
        activation_function=_ACTIVATIONS[model.activation],
        resid_pdrop=model.residual_dropout,
        embd_pdrop=model.embedding_dropout,
        attn_pdrop=model.attention_dropout,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    return transformers.GPT2LMHeadModel(config)
