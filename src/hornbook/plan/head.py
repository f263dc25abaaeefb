"""Memory of heads: `hornbook.model.head`, `hornbook.model.encoder` and their cross-entropy.

::

    x -> (gather) -> (transform) -> logits of 512 tokens at a time -> losses, dX [P, D], dTable [V, D] fp32
"""

from dataclasses import dataclass

from hornbook.config.description import Description, description_of
from hornbook.config.objectives import LabelledConfig
from hornbook.config.parts import Norm
from hornbook.config.recipe import Recipe
from hornbook.config.shapes import HEAD_TOKENS, HEAD_TOKENS_FUSED
from hornbook.plan.attention import Tokens
from hornbook.plan.layers import FP32, TABLE, Layers

_BLOCK = 64


@dataclass(frozen=True, kw_only=True)
class Head:
    """The head of a model.

    Args:
        model: determines the sizes.
        objective: of the training.
        tokens: of the micro-batch.
        num_rows: rows of this rank's part of the table, with padding.
        chunks: number of vocabulary chunks.
    """

    model: Description
    objective: object
    tokens: Tokens
    num_rows: int
    chunks: int = 1

    @classmethod
    def of(cls, recipe: Recipe, tokens: Tokens, num_rows: int) -> "Head":
        """Return the head of a recipe's model."""
        chunks, model = recipe.memory.vocabulary_chunks, description_of(recipe.model)
        assert model is not None, "the caller has checked it"
        return cls(model=model, objective=recipe.objective, tokens=tokens, num_rows=num_rows, chunks=chunks)

    @property
    def size(self) -> int:
        """D."""
        return self.model.hidden_size

    @property
    def width(self) -> int:
        """Number of columns of the token table: D, or E for a factorized embedding."""
        return self.model.table.shape[1]

    @property
    def is_encoder(self) -> bool:
        """Whether the model reads masked tokens or first tokens of sequences."""
        return not self.model.is_causal

    @property
    def is_narrow(self) -> bool:
        """Whether the head projects tokens to the columns of a factorized table."""
        return self.model.layer("head.projection") is not None

    def has(self, name: str) -> bool:
        """Return whether the head has a layer or a parameter of this name."""
        return self.model.layer(f"head.{name}") is not None

    @property
    def norm(self) -> Norm:
        """The final norm of a pre-norm model."""
        norm = self.model.layer("head.norm")
        assert isinstance(norm, Norm), "the caller knows that there is one"
        return norm

    @property
    def has_loss_of_tokens(self) -> bool:
        """Whether the head computes logits of tokens."""
        return not isinstance(self.objective, LabelledConfig)

    @property
    def has_pairs(self) -> bool:
        """Whether the head pools the first tokens of sequences."""
        return self.is_encoder and getattr(self.objective, "name", "") in (
            "mlm_nsp",
            "classification",
        )

    @property
    def is_causal_classifier(self) -> bool:
        """Whether the head classifies the last tokens of sequences."""
        return not self.is_encoder and not self.has_loss_of_tokens

    def forward(self, layers: Layers, x: str) -> None:
        """Compute the loss of the hidden states ``x``, and gradients of the table."""
        num, size, tape = self.tokens.num_scored, self.size, layers.tape
        if self.has_pairs:
            self._pool(layers)
        if layers.table_weights is not None:  # the blocks are put into zeros, which are laid out as a table
            for _ in range(2):
                layers.scratch("head.table/dense", self.num_rows * self.width, FP32)
        if self.is_causal_classifier:
            layers.activation("head/last tokens", self.tokens.num_sequences * size)
            layers.norm("head.norm", self.tokens.num_sequences, size, "head/normed")
        elif not self.is_encoder:
            normed = "head/wide" if self.is_narrow else "head/normed"
            layers.norm("head.norm", num, size, normed, kind=self.norm.kind)
            if self.is_narrow:
                self._narrow(layers)
        elif self.has_loss_of_tokens:
            self._transform(layers)
        if self.has_loss_of_tokens:
            self._cross_entropy(layers)
        tape.free("head/normed", "head.table/dense")
        if self.is_causal_classifier or self.is_encoder:
            tape.free(x)

    def backward(self, layers: Layers, x: str) -> None:
        """Compute ``gradient``, that of ``x``, and those of the head's parameters."""
        num, size, tape, item = self.tokens.num_scored, self.size, layers.tape, layers.itemsize
        width = self.width
        if self.has_loss_of_tokens:
            is_widened = item < FP32 and layers.compute.device == "cpu"
            layers.scratch("gradient", num * width, FP32 if is_widened else item)
            if is_widened:
                layers.scratch("product", num * width, FP32)
                layers.scratch("gradient", num * width)
                tape.free("product")
            numbers, owner = self.num_rows * width, "head.table"
            if layers.table_weights is not None:  # the dense gradient is copied before its blocks are read
                tape.use(numbers * FP32)
                numbers, owner = layers.table_weights, TABLE
            tape.free("head/dx", "head/dtable", "head/dbias")  # the table's gradient is scaled in place
            layers.add_gradient(owner, numbers, FP32)
        if self.is_causal_classifier:
            sequences = self.tokens.num_sequences
            layers.norm_backward("head.norm", sequences, size, "gradient", "branch", "head/last tokens")
            layers.scratch("gradient", self.tokens.num * size)
            tape.free("branch")
            return
        if not self.is_encoder:
            if self.is_narrow:
                self._narrow_backward(layers)
            layers.norm_backward(
                "head.norm", num, size, "gradient", "branch", x, kind=self.norm.kind, gain=self.norm.gain
            )
            layers.scratch("gradient", num * size)
            tape.free("branch")
            return
        if self.has_loss_of_tokens:
            self._transform_backward(layers)
        if self.has_loss_of_tokens:
            layers.scratch("spread", self.tokens.num * size)
            tape.free("gradient")
            layers.scratch("gradient", self.tokens.num * size)
            tape.free("spread")
        if self.has_pairs:
            self._pool_backward(layers)
        if not tape.holds("gradient"):
            layers.scratch("gradient", self.tokens.num * size)

    def _cross_entropy(self, layers: Layers) -> None:
        num, size, rows, tape, item = self.tokens.num_scored, self.width, self.num_rows, layers.tape, layers.itemsize
        tokens = min(num, HEAD_TOKENS)
        layers.activation("head/dx", num * size)
        layers.activation("head/dtable", rows * size, FP32)
        has_bias = self.has("bias")
        if has_bias:
            layers.activation("head/dbias", rows, FP32)
        if self.chunks > 1:
            self._by_parts(layers, tokens)
            return
        is_cut = layers.is_cut("head.table")
        is_capped, is_weighted = self.model.logit_cap is not None, getattr(self.objective, "recurrence_weights", False)
        exact = item + 3 * FP32 if is_capped else item + FP32 + (FP32 if item < FP32 else 0)
        is_exact = not has_bias or layers.compute.weights == "fp32"
        is_in_place = layers.compute.is_native("cross_entropy") and is_exact and not is_cut
        if layers.compute.has_triton and is_exact:
            is_in_place, tokens = True, min(num, HEAD_TOKENS_FUSED)
        is_widened = is_weighted and item < FP32 and layers.compute.device == "cpu"
        softmax = tokens * rows * max(item if is_in_place else exact, is_widened * (item + 2 * FP32))
        if layers.compute.is_native("linear"):
            packed = [f"head.table/{what}" for what in ("panels", "panels of the gradient")]
            for name in packed:
                layers.panels(name, rows * size)
            tape.use(softmax, "logits")
            is_made = is_cut or layers.table_weights is not None
            tape.free(*packed * is_made)  # what is no parameter is packed anew for each micro-batch
            return
        is_mixed = layers.casts == "step"
        if is_mixed:
            layers.copy("head.table", rows * size)
        elif layers.compute.weights != layers.compute.dtype and layers.casts != "never":
            layers.scratch("head.table/cast", rows * size)
        tape.use(softmax, "logits")
        products = 0 if is_mixed else item + (FP32 if item < FP32 else 0)
        tape.use(tokens * rows * item + rows * size * products, "logits")
        tape.free("head.table/cast")

    def _by_parts(self, layers: Layers, tokens: int) -> None:
        """Process the vocabulary in chunks: see ``memory.vocabulary_chunks``."""
        rows = min(self.num_rows, -(-self.num_rows // (self.chunks * _BLOCK)) * _BLOCK)
        item, size = layers.itemsize, self.width
        is_cast = layers.compute.weights != layers.compute.dtype
        casts = rows * size * item if is_cast else 0
        logits = tokens * rows
        summing = logits * (2 * FP32 + (item if item < FP32 else 0))
        products = logits * (FP32 + (item if item < FP32 else 0)) + rows * size * (item + FP32 * (item < FP32))
        layers.tape.use(tokens * size * FP32 + 2 * casts + max(summing, products), "logits")

    def _narrow(self, layers: Layers) -> None:
        """Project the normalized tokens to the columns of a factorized table."""
        num, width = self.tokens.num_scored, self.width
        layers.linear("head.projection", num, self.size, width, "head/dense")
        layers.activation("head/active", num * width)
        layers.norm("head.projection_norm", num, width, "head/normed")

    def _narrow_backward(self, layers: Layers) -> None:
        num, size, width, tape = self.tokens.num_scored, self.size, self.width, layers.tape
        layers.norm_backward("head.projection_norm", num, width, "gradient", "dnorm", "head/active")
        layers.scratch("dactive", num * width)
        tape.free("dnorm", "head/dense")
        layers.linear_backward("head.projection", num, size, width, "dactive", "gradient", "head/wide")
        tape.free("dactive")

    def _transform(self, layers: Layers) -> None:
        """Gather the scored tokens, and apply the transform before the table."""
        num, size = self.tokens.num_scored, self.size
        layers.activation("head/places", num * size)
        last = "head/places"
        if self.has("norm"):
            layers.norm("head.norm", num, size, "head/first")
            last = "head/first"
        if self.has("transform.dense"):
            layers.linear("head.transform.dense", num, size, size, "head/dense")
            layers.activation("head/active", num * size)
            layers.norm("head.transform.norm", num, size, "head/normed")
        elif last == "head/places":
            layers.activation("head/normed", 0)

    def _transform_backward(self, layers: Layers) -> None:
        num, size, tape = self.tokens.num_scored, self.size, layers.tape
        if self.has("transform.dense"):
            layers.norm_backward("head.transform.norm", num, size, "gradient", "dnorm", "head/active")
            layers.scratch("dactive", num * size)
            tape.free("dnorm", "head/dense")
            layers.linear_backward("head.transform.dense", num, size, size, "dactive", "gradient", "head/first")
            tape.free("dactive")
        if self.has("norm"):
            layers.norm_backward("head.norm", num, size, "gradient", "dnorm", "head/places")
            layers.scratch("gradient", num * size)
            tape.free("dnorm")
        tape.free("head/places", "head/first")

    @property
    def _pooler(self) -> str:
        """Name of the layer that maps pooled tokens."""
        return "head.pooler" if self.has("pooler") else "head.transform.dense"

    def _pool(self, layers: Layers) -> None:
        num, size = self.tokens.num_sequences, self.size
        layers.activation("head/first tokens", 2 * num * size)
        layers.linear(self._pooler, num, size, size, "head/pooled")
        layers.activation("head/tanh", num * size)

    def _pool_backward(self, layers: Layers) -> None:
        num, size, tape = self.tokens.num_sequences, self.size, layers.tape
        layers.linear_backward(self._pooler, num, size, size, "dtanh", "dfirst", "head/pooled", "head/tanh")
        if tape.holds("gradient"):
            layers.scratch("spread", self.tokens.num * size)
            tape.use(self.tokens.num * size * layers.itemsize)
        tape.free("spread", "dfirst", "head/first tokens")
