"""The pre-training heads of encoders: masked language modeling and next-sentence prediction.

::

    x_BTD --predictions_P--> x_PD -> dense, activation, norm -> tied table, bias -> loss, number correct
    x_BTD --firsts_S-------> x_SD -> pooler: dense, tanh     -> dense, 2 logits  -> loss, number correct

Only the tokens to predict, about a seventh, are gathered and multiplied by the table.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from hornbook.model.head import OutputHead, tokens_at
from hornbook.model.layers import LayerNorm, Linear, activated
from hornbook.ops.cross_entropy import counted_cross_entropy, token_losses
from hornbook.samples.windows import NOT_SCORED


class Transform(nn.Module):
    """Dense layer, activation and norm before the table (Devlin et al. 2019)."""

    def __init__(self, hidden_size: int, *, activation: str, epsilon: float, std: float, bias: bool = True) -> None:
        super().__init__()
        self.dense = Linear(hidden_size, hidden_size, std=std, bias=bias)
        self.activation = activation
        self.norm = LayerNorm(hidden_size, epsilon=epsilon, has_bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., D]`` to ``[..., D]``."""
        y: Tensor = self.norm(activated(self.dense, x, self.activation))
        return y


class EncoderHead(OutputHead):
    """BERT's heads (Devlin et al. 2019). Index tensors are int64 and hold flat indices of the B·T tokens.

    Args:
        hidden_size: D.
        vocab_size: size of the vocabulary, without padding.
        transform: the layers before the table, if any.
        bias: whether each token of the vocabulary has a bias.
        relates: whether to add a pooler and a classifier of pairs.
        std: standard deviation of the initial weights of those two.
        norm: final layer norm (pre-norm models).
    """

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        *,
        transform: Transform | None,
        bias: bool,
        relates: bool,
        std: float,
        norm: LayerNorm | None = None,
    ) -> None:
        super().__init__(hidden_size, vocab_size, bias=bias, norm=norm, std=std)
        self.transform = transform or nn.Identity()
        self.pooler = Linear(hidden_size, hidden_size, std=std) if relates else None
        self.classifier = Linear(hidden_size, 2, std=std) if relates else None

    def prepare(self, x: Tensor) -> Tensor:
        """Return the input of the output projection ``[..., D]`` for hidden states ``[..., D]``."""
        prepared: Tensor = self.transform(self.norm(x))
        return prepared

    def predict(self, x_BTD: Tensor, predictions_P: Tensor, targets_P: Tensor) -> tuple[Tensor, Tensor]:
        """Score the tokens at ``predictions``; targets of -100 are ignored.

        Returns:
            The summed cross-entropy in nats and the number of targets that have the largest logit, the first of ties;
            fp32 scalars, the second without a gradient.
        """
        x_PD = self.prepare(tokens_at(x_BTD, predictions_P))
        return counted_cross_entropy(x_PD, self.table, targets_P, self.vocab_size, self.bias, self.vocabulary_chunks)

    @torch.no_grad()
    def token_losses(self, x_BTD: Tensor, predictions_P: Tensor, targets_P: Tensor) -> Tensor:
        """Return the cross-entropy at each of ``predictions``, ``[P]`` fp32, in nats; 0 where the target is -100."""
        x_PD = self.prepare(tokens_at(x_BTD, predictions_P))
        return token_losses(x_PD, self.table, targets_P, self.vocab_size, self.bias, self.vocabulary_chunks)

    def pooled(self, x_BTD: Tensor, firsts_S: Tensor) -> Tensor:
        """Return the pooled first token of each sequence, ``[S, D]``."""
        assert self.pooler is not None, "the model has no pooler"
        return torch.tanh(self.pooler(self.first_tokens(x_BTD, firsts_S)))

    def relate(self, x_BTD: Tensor, firsts_S: Tensor, labels_S: Tensor) -> tuple[Tensor, Tensor]:
        """Score pairs of texts: label 0 if the second follows the first, 1 if not; labels of -100 are ignored.

        Returns:
            The summed cross-entropy in nats and the number of correct predictions; fp32 scalars, the second without a
            gradient.
        """
        assert self.classifier is not None, "the model has no classifier of pairs"
        logits_S2 = self.classifier(self.pooled(x_BTD, firsts_S)).float()
        loss = functional.cross_entropy(logits_S2, labels_S, ignore_index=NOT_SCORED, reduction="sum")
        return loss, (logits_S2.argmax(1) == labels_S).sum().float()
