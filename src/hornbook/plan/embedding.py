"""Memory of embeddings: `hornbook.model.layers`, `hornbook.model.factorized` and BERT's.

::

    tokens, positions, segments in fp32 -> (+) -> norm -> dropout -> y [tokens, D]       norm: an encoder's
    norm(tokens) + norm(positions) -> dropout -> norm -> projection -> y [tokens, D]     a table of E columns
"""

from hornbook.config.factorized import FactorizedGPTConfig
from hornbook.config.models import EncoderConfig, TransformerConfig
from hornbook.plan.attention import Tokens
from hornbook.plan.layers import FP32, Layers


def embed(layers: Layers, model: TransformerConfig, tokens: Tokens, num_rows: int, y: str) -> None:
    """Compute the hidden states ``y``; tables are looked up in fp32, the token table has ``num_rows`` rows."""
    if isinstance(model, FactorizedGPTConfig):
        _embed_narrow(layers, model, tokens, num_rows, y)
        return
    num, size, tape = tokens.num, model.hidden_size, layers.tape
    if layers.compute.weights != "fp32":
        layers.scratch("table", num_rows * size, FP32)
    layers.scratch("embedded", num * size, FP32)
    if layers.table_weights is not None:  # rows of blocks are put into zeros
        tape.use(num * size * FP32)
    tape.free("table")
    tables = 1 + (isinstance(model, EncoderConfig) and model.num_segments > 1)
    for _ in range(tables):
        layers.scratch("looked up", num * size, FP32)
        layers.scratch("embedded", num * size, FP32)
        tape.free("looked up")
    if isinstance(model, EncoderConfig) and model.num_segments == 1:
        layers.scratch("embedded", num * size, FP32)
    is_encoder = isinstance(model, EncoderConfig)
    layers.activation("embedding/x" if is_encoder else y, num * size)
    tape.free("embedded")
    if is_encoder:
        layers.norm("embedding.norm", num, size, y)
    layers.dropout(num, size, y, probability=model.embedding_dropout)


def embed_backward(layers: Layers, model: TransformerConfig, tokens: Tokens, num_rows: int) -> None:
    """Compute the gradients of the tables from ``gradient``; the token table has ``num_rows`` rows."""
    num, size, tape = tokens.num, model.hidden_size, layers.tape
    if isinstance(model, FactorizedGPTConfig):
        size = _embed_narrow_backward(layers, model, tokens)
    else:
        layers.dropout(num, size, "gradient", probability=model.embedding_dropout)
    if isinstance(model, EncoderConfig):
        layers.norm_backward("embedding.norm", num, size, "gradient", "dx", "embedding/x", "gradient")
        layers.scratch("gradient", num * size)
        tape.free("dx")
    if layers.itemsize < FP32:
        layers.scratch("gradient", num * size, FP32)
    rows = model.max_positions + getattr(model, "first_position", 0)
    rows *= getattr(model, "positions", "learned") == "learned"
    for name, count in (("segments", getattr(model, "num_segments", 0)), ("positions", rows), ("tokens", num_rows)):
        if count:
            numbers = layers.table_weights if name == "tokens" and layers.table_weights is not None else count * size
            layers.scratch(f"embedding.{name}/new", numbers, FP32)
            layers.add_gradient(f"embedding.{name}", numbers, FP32, new=f"embedding.{name}/new")
    tape.free("gradient")


def _embed_narrow(layers: Layers, model: FactorizedGPTConfig, tokens: Tokens, num_rows: int, y: str) -> None:
    """Compute ``y`` from tables of E columns, by three norms and a projection."""
    num, size, tape = tokens.num, model.embedding_size, layers.tape
    if layers.compute.weights != "fp32":
        layers.scratch("table", num_rows * size, FP32)
    for table in ("tokens", "positions"):
        layers.scratch("looked up", num * size, FP32)
        tape.free("table")
        if table == "positions" and model.positions == "sinusoidal":
            tape.use(num * size * FP32)
        layers.activation(f"embedding/{table}", num * size)
        tape.free("looked up")
    for table in ("tokens", "positions"):
        layers.norm(f"embedding.{table}_norm", num, size, f"embedding/normed {table}")
    layers.activation("embedding/x", num * size)
    tape.free("embedding/normed tokens", "embedding/normed positions")
    layers.dropout(num, size, "embedding/x", probability=model.embedding_dropout)
    layers.norm("embedding.sum_norm", num, size, "embedding/normed")
    layers.linear("embedding.projection", num, size, model.hidden_size, y)


def _embed_narrow_backward(layers: Layers, model: FactorizedGPTConfig, tokens: Tokens) -> int:
    """Replace ``gradient`` by that of the looked-up tokens, and return its number of columns."""
    num, size, tape = tokens.num, model.embedding_size, layers.tape
    layers.linear_backward(
        "embedding.projection", num, size, model.hidden_size, "gradient", "dnorm", "embedding/normed"
    )
    tape.free("gradient")
    layers.norm_backward("embedding.sum_norm", num, size, "dnorm", "gradient", "embedding/x", "dnorm")
    layers.dropout(num, size, "gradient", probability=model.embedding_dropout)
    layers.norm_backward("embedding.positions_norm", num, size, "gradient", "dpositions", "embedding/positions")
    layers.norm_backward("embedding.tokens_norm", num, size, "gradient", "dtokens", "embedding/tokens")
    tape.free("gradient", "dpositions")
    layers.scratch("gradient", num * size)
    tape.free("dtokens")
    return size
