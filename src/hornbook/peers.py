"""Peers for benchmarks: the same training step and the same generation in Hugging Face transformers.

A step may also run in a separate process, with PyTorch's default allocator and settings. In this process, it has the
settings of `hornbook.parallel.device.prepare`, which keeps freed memory and flushes denormals.

    this process                      python -m hornbook.peers
    {recipe, precision, threads}  ->  builds the peer's model and optimizer
    an empty line                 ->  runs a step
    tokens of the step            <-
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, TextIO

import torch
from torch import Tensor

from hornbook.config import (
    BertConfig,
    DecoderConfig,
    EncoderConfig,
    GPTConfig,
    PretrainingConfig,
    Recipe,
    RobertaConfig,
    recipe_to_dict,
)
from hornbook.config.build import recipe_from_dict
from hornbook.errors import HornbookError, UserError
from hornbook.extras import require
from hornbook.measure.throughput import Generate, Step, synthetic_loader
from hornbook.parallel.world import World
from hornbook.samples.batches import Batch, size_of, to_device
from hornbook.samples.windows import NOT_SCORED

_ACTIVATIONS = {"gelu_tanh": "gelu_new", "gelu": "gelu", "relu": "relu", "silu": "silu"}


_DECODER_SIZES = (
    "num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_size", "feed_forward_size", "vocab_size",
    "max_positions", "norm_epsilon", "rope_theta", "tied", "attention_dropout", "initializer_std",
    "activation", "zero_init_outputs",
)  # fmt: skip
"""Options of decoders that Llama and Qwen3 share; others have the values of these models."""


def transformers_step(recipe: Recipe, world: World, *, precision: str) -> Step:
    """Return a training step of the transformers model with the recipe's sizes, on the recipe's batches.

    Args:
        recipe: a GPT, a decoder with the options of Llama or Qwen3, or a BERT or RoBERTa, that transformers supports.
        world: has the device.
        precision: fp32; bf16-mixed (fp32 weights under autocast); bf16 (bf16 weights and moments).

    Raises:
        UserError: transformers is not installed, or does not support the model.
    """
    model = build_model(recipe).to(world.device).train()
    if precision == "bf16":
        model = model.bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    if isinstance(recipe.model, EncoderConfig):
        recipe = replace(recipe, data=replace(recipe.data, layout="padded"))
    loader = synthetic_loader(recipe, world)

    def step() -> int:
        micro_batches = next(loader)
        for batch in micro_batches:
            inputs = to_device(_inputs(batch), world.device)
            with torch.autocast(world.device.type, torch.bfloat16, enabled=precision == "bf16-mixed"):
                loss = model(**inputs).loss
            (loss / len(micro_batches)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return sum(size_of(batch).tokens for batch in micro_batches)

    return step


def _inputs(batch: Batch) -> dict[str, Tensor]:
    """Return the tensors of a batch by their names in transformers; an encoder's rows are padded to the longest."""
    if "lengths" not in batch:
        return {"input_ids": batch["tokens"], "labels": batch["tokens"]}
    longest, num_columns = int(batch["lengths"].max()), batch["tokens"].shape[1]
    labels = torch.full_like(batch["tokens"], NOT_SCORED).flatten()
    is_scored = batch["targets"] != NOT_SCORED
    labels[batch["predictions"][is_scored]] = batch["targets"][is_scored]
    rows = {
        "input_ids": batch["tokens"],
        "attention_mask": (torch.arange(num_columns) < batch["lengths"].unsqueeze(1)).long(),
        "token_type_ids": batch["segments"],
        "labels": labels.view_as(batch["tokens"]),
    }
    inputs = {name: tensor[:, :longest].contiguous() for name, tensor in rows.items()}
    return inputs | ({"next_sentence_label": batch["pair_labels"]} if "pair_labels" in batch else {})


def transformers_generate(
    recipe: Recipe, prompts: Sequence[Sequence[int]], device: torch.device, compute: str
) -> Generate:
    """Return greedy ``generate`` of the transformers model with the recipe's sizes, and its cache.

    Args:
        recipe: a GPT, or a decoder with the options of Llama or Qwen3.
        prompts: token ids, of equal length.
        device: of the model.
        compute: dtype of weights and activations, fp32 or bf16.

    Raises:
        UserError: transformers is not installed, or does not support the model.
    """
    model = build_model(recipe).to(device).eval()
    model = model.bfloat16() if compute == "bf16" else model
    ids_BT = torch.tensor(prompts, device=device)
    options = {"attention_mask": torch.ones_like(ids_BT), "do_sample": False, "use_cache": True, "pad_token_id": 0}

    def write(num_tokens: int) -> object:
        return model.generate(ids_BT, max_new_tokens=num_tokens, **options)

    return write


def build_model(recipe: Recipe) -> Any:
    """Return transformers' model of the same shape, with random weights. Raises UserError if there is none."""
    transformers = require("transformers", extra="test", purpose="`peer='transformers'`")
    model = recipe.model
    if isinstance(model, DecoderConfig):
        return _build_decoder(transformers, model)
    if model.activation not in _ACTIVATIONS or model.effective_head_size * model.num_heads != model.hidden_size:
        raise UserError("transformers does not support the recipe's activation or head size: remove `peer`")
    if isinstance(model, BertConfig | RobertaConfig):
        return _build_encoder(transformers, model, relates=isinstance(recipe.objective, PretrainingConfig))
    if not isinstance(model, GPTConfig):
        raise UserError(f"transformers has no model of the family {model.family}: remove `peer`")
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


def _build_decoder(transformers: Any, model: DecoderConfig) -> Any:
    """Return a Llama, or with norms of queries and keys a Qwen3."""
    kind = {"none": "Llama", "head": "Qwen3"}.get(model.query_key_norm)
    sizes = {name: getattr(model, name) for name in _DECODER_SIZES if getattr(model, name) is not None}
    if (
        kind is None
        or model.activation not in _ACTIVATIONS
        or model != DecoderConfig(**sizes, query_key_norm=model.query_key_norm)
    ):
        raise UserError("transformers is compared with decoders that have the options of Llama or Qwen3: remove `peer`")
    config = getattr(transformers, f"{kind}Config")(
        num_hidden_layers=model.num_layers,
        hidden_size=model.hidden_size,
        intermediate_size=model.effective_feed_forward_size,
        hidden_act=_ACTIVATIONS[model.activation],
        num_attention_heads=model.num_heads,
        num_key_value_heads=model.effective_kv_heads,
        head_dim=model.effective_head_size,
        vocab_size=model.vocab_size or 0,
        max_position_embeddings=model.max_positions,
        rms_norm_eps=model.norm_epsilon,
        rope_parameters={"rope_type": "default", "rope_theta": model.rope_theta},
        tie_word_embeddings=model.tied,
        attention_dropout=model.attention_dropout,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    return getattr(transformers, f"{kind}ForCausalLM")(config)


def _build_encoder(transformers: Any, model: BertConfig | RobertaConfig, *, relates: bool) -> Any:
    sizes = {
        "num_hidden_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_heads,
        "intermediate_size": model.effective_feed_forward_size,
        "hidden_act": _ACTIVATIONS[model.activation],
        "vocab_size": model.vocab_size,
        "layer_norm_eps": model.layer_norm_epsilon,
        "hidden_dropout_prob": model.residual_dropout,
        "attention_probs_dropout_prob": model.attention_dropout,
    }
    if isinstance(model, RobertaConfig):
        positions = model.max_positions + 2
        config = transformers.RobertaConfig(**sizes, max_position_embeddings=positions, type_vocab_size=2)
        return transformers.RobertaForMaskedLM(config)
    config = transformers.BertConfig(
        **sizes, max_position_embeddings=model.max_positions, type_vocab_size=model.num_segments
    )
    return transformers.BertForPreTraining(config) if relates else transformers.BertForMaskedLM(config)


@contextmanager
def transformers_step_apart(recipe: Recipe, world: World, *, precision: str) -> Iterator[Step]:
    """Yield a step that runs in a separate process, which ends with the ``with`` block.

    Args:
        recipe: as for ``transformers_step``.
        world: has the device.
        precision: as for ``transformers_step``.

    Raises:
        UserError: the process ended; it has printed the reason.
    """
    reading, writing = os.pipe()  # since libraries may print to standard output
    command = [sys.executable, "-m", "hornbook.peers", str(writing)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[writing], text=True)
    os.close(writing)
    assert process.stdin is not None

    def ask(line: str) -> int:
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
        if answer := answers.readline():
            return int(answer)
        status = process.wait()  # which prints its reason after it has closed the pipe
        reason = "for the reason above" if status >= 0 else f"by {signal.Signals(-status).name}"
        raise UserError(
            f"the process of transformers {precision} ended {reason}; to time it only in this process, add "
            "`peer_processes='shared'`"
        )

    settings = {"precision": precision, "threads": torch.get_num_threads(), "device": str(world.device)}
    try:
        with os.fdopen(reading, encoding="ascii") as answers:
            ask(json.dumps({"recipe": recipe_to_dict(recipe), **settings}))
            yield lambda: ask("")
    finally:
        process.kill()
        with suppress(BrokenPipeError):
            process.stdin.close()
        process.wait()


def serve(answers: TextIO) -> None:
    """Process the requests of ``transformers_step_apart`` from standard input until it ends."""
    given = json.loads(sys.stdin.readline())
    torch.set_num_threads(given["threads"])
    world = World(device=torch.device(given["device"]))
    step = transformers_step(recipe_from_dict(given["recipe"]), world, precision=given["precision"])
    answers.write("0\n")
    while sys.stdin.readline():
        answers.write(f"{step()}\n")


if __name__ == "__main__":
    try:
        with os.fdopen(int(sys.argv[1]), "w", buffering=1, encoding="ascii") as pipe:
            serve(pipe)
    except HornbookError as error:
        sys.exit(str(error))
