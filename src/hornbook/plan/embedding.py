"""Memory of embeddings: `hornbook.model.layers` and `hornbook.model.factorized`.

::

    tokens, positions, segments in fp32 -> (+) -> norm -> dropout -> y [tokens, D]       norm: an encoder's
    norm(tokens) + norm(positions) -> dropout -> norm -> projection -> y [tokens, D]     a table of E columns
"""

from hornbook.config.description import Description
from hornbook.config.parts import Linear, Norm, Table
from hornbook.plan.attention import Tokens
from hornbook.plan.layers import FP32, Layers


def embed(layers: Layers, model: Description, tokens: Tokens, num_rows: int, y: str) -> None:
    """Compute the hidden states ``y``; tables are looked up in fp32, the token table has ``num_rows`` rows."""
    projection = model.layer("embedding.projection")
    if isinstance(projection, Linear):
        _embed_narrow(layers, model, projection, tokens, num_rows, y)
        return
    num, size, tape = tokens.num, model.hidden_size, layers.tape
    if layers.compute.weights != "fp32":
        layers.scratch("table", num_rows * size, FP32)
    layers.scratch("embedded", num * size, FP32)
    if layers.table_weights is not None:  # rows of blocks are put into zeros
        tape.use(num * size * FP32)
    tape.free("table")
    positions, segments = (rows_of(model, name) for name in ("positions", "segments"))
    for _ in range((positions > 0) + (segments > 1)):
        layers.scratch("looked up", num * size, FP32)
        layers.scratch("embedded", num * size, FP32)
        tape.free("looked up")
    if segments == 1:
        layers.scratch("embedded", num * size, FP32)
    norm = model.layer("embedding.norm")
    layers.activation(y if norm is None else "embedding/x", num * size)
    tape.free("embedded")
    if isinstance(norm, Norm):
        layers.norm(norm.name, num, size, y, kind=norm.kind)
    layers.dropout(num, size, y, probability=model.embedding_dropout)


def embed_backward(
    layers: Layers, model: Description, tokens: Tokens, num_rows: int, *, is_alone: bool = False
) -> None:
    """Compute the gradients of the tables from ``gradient``; the token table has ``num_rows`` rows.

    A process that is alone, with the whole model, adds rows to the gradient of a tied head, if Triton computes them.
    """
    num, size, tape = tokens.num, model.hidden_size, layers.tape
    projection, norm = model.layer("embedding.projection"), model.layer("embedding.norm")
    if isinstance(projection, Linear):
        size = _embed_narrow_backward(layers, model, projection, tokens)
    else:
        layers.dropout(num, size, "gradient", probability=model.embedding_dropout)
    if isinstance(norm, Norm):
        frees = ("embedding/x", "gradient")
        layers.norm_backward(norm.name, num, size, "gradient", "dx", *frees, kind=norm.kind, gain=norm.gain)
        layers.scratch("gradient", num * size)
        tape.free("dx")
    if layers.itemsize < FP32:
        layers.scratch("gradient", num * size, FP32)
    rows = {name: rows_of(model, name) for name in ("segments", "positions")}
    is_plain = layers.compute.has_triton and layers.compute.weights == "fp32" and norm is None and not rows["segments"]
    is_added = is_alone and is_plain and model.is_tied and layers.table_weights is None
    for name, count in (*rows.items(), ("tokens", 0 if is_added else num_rows)):
        if count:
            numbers = layers.table_weights if name == "tokens" and layers.table_weights is not None else count * size
            layers.scratch(f"embedding.{name}/new", numbers, FP32)
            layers.add_gradient(f"embedding.{name}", numbers, FP32, new=f"embedding.{name}/new")
    tape.free("gradient")


def rows_of(model: Description, name: str) -> int:
    """Return the rows of a table of the embedding; 0 if there is none."""
    table = model.layer(f"embedding.{name}")
    return table.shape[0] if isinstance(table, Table) else 0


def _embed_narrow(
    layers: Layers, model: Description, projection: Linear, tokens: Tokens, num_rows: int, y: str
) -> None:
    """Compute ``y`` from tables of E columns, by three norms and a projection."""
    num, size, tape = tokens.num, projection.num_in, layers.tape
    if layers.compute.weights != "fp32":
        layers.scratch("table", num_rows * size, FP32)
    for table in ("tokens", "positions"):
        layers.scratch("looked up", num * size, FP32)
        tape.free("table")
        if not rows_of(model, table) and table == "positions":
            tape.use(num * size * FP32)
        layers.activation(f"embedding/{table}", num * size)
        tape.free("looked up")
    for table in ("tokens", "positions"):
        layers.norm(f"embedding.{table}_norm", num, size, f"embedding/normed {table}")
    layers.activation("embedding/x", num * size)
    tape.free("embedding/normed tokens", "embedding/normed positions")
    layers.dropout(num, size, "embedding/x", probability=model.embedding_dropout)
    layers.norm("embedding.sum_norm", num, size, "embedding/normed")
    layers.linear(projection.name, num, size, projection.num_out, y)


def _embed_narrow_backward(layers: Layers, model: Description, projection: Linear, tokens: Tokens) -> int:
    """Replace ``gradient`` by that of the looked-up tokens, and return its number of columns."""
    num, size, tape = tokens.num, projection.num_in, layers.tape
    layers.linear_backward(projection.name, num, size, projection.num_out, "gradient", "dnorm", "embedding/normed")
    tape.free("gradient")
    layers.norm_backward("embedding.sum_norm", num, size, "dnorm", "gradient", "embedding/x", "dnorm")
    layers.dropout(num, size, "gradient", probability=model.embedding_dropout)
    layers.norm_backward("embedding.positions_norm", num, size, "gradient", "dpositions", "embedding/positions")
    layers.norm_backward("embedding.tokens_norm", num, size, "gradient", "dtokens", "embedding/tokens")
    tape.free("gradient", "dpositions")
    layers.scratch("gradient", num * size)
    tape.free("dtokens")
    return size
