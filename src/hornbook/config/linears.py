"""The linear layers and token tables of described models, by name and shape, which may be block-sparse."""

from typing import NamedTuple

from hornbook.config.description import description_of


class LinearShape(NamedTuple):
    """The shape of a linear layer's weights, which may be several stacked matrices of equal shape."""

    num_out: int
    num_in: int
    num_parts: int = 1


def linears_of(model: object) -> dict[str, LinearShape] | None:
    """Return the linear layers of the model that a recipe's section describes, by name; None for a custom model."""
    described = description_of(model)
    if described is None:
        return None
    return {name: LinearShape(layer.num_out, layer.num_in, layer.num_parts) for name, layer in described.linears()}


def table_of(model: object) -> LinearShape | None:
    """Return the token table of the model that a recipe's section describes; None for a custom model.

    It has no rows if the vocabulary is not known.
    """
    described = description_of(model)
    return None if described is None else LinearShape(*described.table.shape)
