"""Compare models whose attention Triton's interpreter computes with PyTorch's; started by test_triton_attention.py."""

import sys

import torch
from tiny import random_batch, randomize, tiny_model
from tiny_encoders import gradients_of, lay_out, make_samples, tiny_encoder

from hornbook.config import DecoderConfig
from hornbook.model import build_model, initialize, language_model
from hornbook.objective import CausalLM

DROPOUTS = {"residual_dropout": 0.2, "attention_dropout": 0.2, "embedding_dropout": 0.2}


def decoder(**changes):
    sizes = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "vocab_size": 70, "max_positions": 24}
    model = build_model(DecoderConfig(**sizes, **changes), torch.float32)
    initialize(model, 3)
    randomize(model)
    return model


def of_decoder(model):
    batch = random_batch(2, 20) | {"documents": torch.tensor([5] * 7 + [6] * 9 + [5] * 4).repeat(2, 1)}
    loss = model(CausalLM().sums, batch)["causal_lm"]
    return loss, torch.autograd.grad(loss, list(model.parameters()))


def of_encoder(model):
    loss, gradients = gradients_of(model, lay_out(make_samples([5, 24, 9, 3]), "packed"))
    return loss, list(gradients.values())


def main() -> None:
    decoders = {"num_kv_heads": 2, "window": 6, "attention_cap": 4.0, **DROPOUTS}
    models = {
        "gpt": (tiny_model(**DROPOUTS), of_decoder),
        "decoder": (decoder(**decoders), of_decoder),
        **{name: (tiny_encoder(name, **DROPOUTS), of_encoder) for name in ("bert", "groupbert")},
        "modernbert": (tiny_encoder("modernbert", local_window=6, **DROPOUTS), of_encoder),
    }
    for name, (model, measure) in models.items():
        model.train()
        loss, gradients = measure(model)
        language_model.selected = lambda device: True
        ours, of_ours = measure(model)
        language_model.selected = lambda device: False
        torch.testing.assert_close((ours, *of_ours), (loss, *gradients), rtol=1e-4, atol=1e-4)
        sys.stdout.write(f"{name}\n")


if __name__ == "__main__":
    main()
