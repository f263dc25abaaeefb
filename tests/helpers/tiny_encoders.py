"""Tiny encoders, and samples that are laid out padded, packed and unpadded."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tiny import hidden_states, randomize
from torch import Tensor

from hornbook.config import BertConfig, EncoderConfig, GroupBertConfig, ModernBertConfig, RobertaConfig
from hornbook.model import EncoderModel, build_model, initialize
from hornbook.samples.batches import Batch
from hornbook.samples.windows import NOT_SCORED

FAMILIES = {"bert": BertConfig, "roberta": RobertaConfig, "groupbert": GroupBertConfig, "modernbert": ModernBertConfig}
LAYOUTS = ("padded", "packed", "unpadded")


def tiny_encoder_config(family: str = "bert", **changes) -> EncoderConfig:
    """Two layers, no dropout; a vocabulary that is no multiple of 64; sizes that differ from each other."""
    sizes = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "vocab_size": 70, "max_positions": 24}
    dropouts = dict.fromkeys(("embedding_dropout", "residual_dropout", "attention_dropout"), 0.0)
    return FAMILIES[family](**{**sizes, **dropouts, **changes})


def tiny_encoder(family: str = "bert", *, scale: float = 0.2, compute_dtype=torch.float32, **changes) -> EncoderModel:
    """An encoder of ``tiny_encoder_config`` whose every parameter matters."""
    model = build_model(tiny_encoder_config(family, **changes), compute_dtype)
    initialize(model, 3)
    randomize(model, scale=scale)
    return model


@dataclass
class Sample:
    """One sequence with what is to be predicted of it."""

    tokens: Tensor
    segments: Tensor
    keys: Tensor
    places: Tensor
    targets: Tensor
    label: int


def make_samples(lengths: Sequence[int], *, vocab_size: int = 70, seed: int = 0) -> list[Sample]:
    """Random sequences of these lengths; about a fifth of the tokens is to be predicted, one of each at least.

    The tokens 0 and 1 do not occur: as padding, transformers gives their embeddings no gradient.
    """
    draws = torch.Generator().manual_seed(seed)

    def integers(end: int, count: int) -> Tensor:
        return torch.randint(end, (count,), generator=draws)

    samples = []
    for length in lengths:
        places = torch.randperm(length, generator=draws)[: 1 + length // 5].sort().values
        segments = (torch.arange(length) > length // 2).long()
        targets, label = integers(vocab_size, len(places)), int(integers(2, 1))
        tokens, keys = integers(vocab_size - 2, length) + 2, integers(1 << 32, length)
        samples.append(Sample(tokens, segments, keys, places, targets, label))
    return samples


def lay_out(samples: Sequence[Sample], layout: str, num_columns: int = 24) -> Batch:
    """One micro-batch of all samples; places to predict are filled up with three that are not scored."""
    rows = _rows(samples, layout, num_columns)
    width = sum(len(sample.tokens) for sample in samples) if layout == "unpadded" else num_columns
    names = ("tokens", "positions", "segments", "keys")
    batch = {name: torch.zeros(len(rows), width, dtype=torch.int64) for name in names}
    flat = {name: tensor.view(-1) for name, tensor in batch.items()}
    firsts, ordered, predictions = [], [], []
    for number, row in enumerate(rows):
        first = number * width
        for sample in row:
            length = len(sample.tokens)
            values = {name: getattr(sample, name) for name in ("tokens", "segments", "keys")}
            values["positions"] = torch.arange(length)
            for name, value in values.items():
                flat[name][first : first + length] = value
            predictions.append(first + sample.places)
            firsts.append(first)
            ordered.append(sample)
            first += length
    targets = [*(sample.targets for sample in ordered), torch.full((3,), NOT_SCORED)]
    return batch | {
        "firsts": torch.tensor(firsts),
        "lengths": torch.tensor([len(sample.tokens) for sample in ordered]),
        "predictions": torch.cat([*predictions, torch.zeros(3, dtype=torch.int64)]),
        "targets": torch.cat(targets),
        "pair_labels": torch.tensor([sample.label for sample in ordered]),
    }


def _rows(samples: Sequence[Sample], layout: str, num_columns: int) -> list[list[Sample]]:
    if layout == "unpadded":
        return [list(samples)]
    rows: list[list[Sample]] = []
    for sample in samples:
        fits = rows and sum(len(other.tokens) for other in rows[-1]) + len(sample.tokens) <= num_columns
        if layout == "packed" and fits:
            rows[-1].append(sample)
        else:
            rows.append([sample])
    return rows


def loss_of(model: EncoderModel, batch: Batch) -> Tensor:
    """The mean over the masked tokens plus, where the model has a head for it, the mean over the pairs."""
    x_BTD = hidden_states(model, batch)
    total, _ = model.head.predict(x_BTD, batch["predictions"], batch["targets"])
    loss = total / (batch["targets"] != NOT_SCORED).sum()
    if model.head.classifier is not None:
        pairs, _ = model.head.relate(x_BTD, batch["firsts"], batch["pair_labels"])
        loss = loss + pairs / len(batch["firsts"])
    return loss


def gradients_of(model: EncoderModel, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss and the gradients of all parameters, the table's folded; 0 where there is none."""
    model.zero_grad(set_to_none=True)
    loss = loss_of(model, batch)
    loss.backward()
    model.fold_tied_gradients()
    own = dict(model.own_parameters())
    found = {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in own.items()}
    return loss.detach(), found


def distance(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """L2 norm of the difference of all gradients, as a share of the norm of theirs."""
    assert ours.keys() == theirs.keys()
    flat = [torch.cat([side[name].double().flatten() for name in sorted(theirs)]) for side in (ours, theirs)]
    return float((flat[0] - flat[1]).norm() / flat[1].norm())
