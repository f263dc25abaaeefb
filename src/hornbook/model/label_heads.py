"""The heads of fine-tuned models, for classes of sequences and spans of tokens.

::

    x_BTD --firsts_S--> x_SD -> pooler: dense, tanh -> dropout -> labels: dense -> logits of classes    [S, C]   encoder
    x_BTD --lasts_S---> x_SD -> norm ---------------------------> labels: dense -> logits of classes    [S, C]   decoder
    x_BTD -> norm --first or mean--> x_SD -> transform -> labels: dense -> logits of classes    [S, C]   ModernBERT
    x_BTD ----------------------------------------------> spans:  dense -> logits of start and end      [S, T, 2]

The first is that of transformers' BertForSequenceClassification, whose pooler may come from pre-training, and of
RobertaForSequenceClassification, whose pooler is new; of their two dropouts, it has the second. The second is that of
GPT2ForSequenceClassification (Radford et al. 2018, GPT, section 3.2): the last token has attended to all others. The
third is that of ModernBertForSequenceClassification; ModernBERT's spans have the norm and the transform, too. None of
them multiplies by the token table.
"""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

from hornbook.model.head import OutputHead, Transform, sequence_indices, tokens_at
from hornbook.model.layers import Dropout, LayerNorm, Linear
from hornbook.samples.batches import Batch
from hornbook.samples.windows import NOT_SCORED

_DROPOUT_SITE = (1 << 30) - 1
"""Greater than the site of any block's dropout."""


class ClassificationHead(OutputHead, ABC):
    """The base of sequence classifiers."""

    @abstractmethod
    def label_logits(self, x_BTD: Tensor, batch: Batch) -> Tensor:
        """Return ``[S, C]`` fp32 for the sequences of a batch."""

    def classify(self, x_BTD: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Score the classes of sequences; labels of -100 are ignored.

        Returns:
            The summed cross-entropy in nats and the number of correct predictions; fp32 scalars, the second without a
            gradient.
        """
        logits_SC, labels_S = self.label_logits(x_BTD, batch), batch["labels"]
        loss = functional.cross_entropy(logits_SC, labels_S, ignore_index=NOT_SCORED, reduction="sum")
        return loss, (logits_SC.argmax(1) == labels_S).sum().float()


class FirstTokenClassifier(ClassificationHead):
    """An encoder's classifier: pooler, dropout and logits of the first token.

    Args:
        hidden_size: D.
        vocab_size: of the embedding.
        num_labels: C.
        dropout: of the pooler's output.
        std: standard deviation of the initial weights.
        norm: see ``OutputHead``.
    """

    def __init__(
        self, hidden_size: int, vocab_size: int, *, num_labels: int, dropout: float, std: float, norm: LayerNorm | None
    ) -> None:
        super().__init__(hidden_size, vocab_size, norm=norm, std=std)
        self.pooler = Linear(hidden_size, hidden_size, std=std)
        self.dropout = Dropout(dropout, site=_DROPOUT_SITE)
        self.labels = Linear(hidden_size, num_labels, std=std)

    def label_logits(self, x_BTD: Tensor, batch: Batch) -> Tensor:
        pooled_SD = torch.tanh(self.pooler(self.first_tokens(x_BTD, batch["firsts"])))
        logits: Tensor = self.labels(self.dropout(pooled_SD, tokens_at(batch["keys"], batch["firsts"]))).float()
        return logits


class TransformClassifier(ClassificationHead):
    """ModernBERT's classifier: pooling, the transform of the pre-training head, dropout and logits.

    Args:
        hidden_size: D.
        vocab_size: of the embedding.
        num_labels: C.
        transform: the layers before the logits.
        takes_mean: whether a sequence's hidden states are averaged; otherwise its first token stands for it.
        dropout: of the output of ``transform``.
        std: standard deviation of the initial weights.
        norm: see ``OutputHead``.
    """

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        *,
        num_labels: int,
        transform: Transform,
        takes_mean: bool,
        dropout: float,
        std: float,
        norm: LayerNorm | None,
    ) -> None:
        super().__init__(hidden_size, vocab_size, norm=norm, std=std)
        self.takes_mean = takes_mean
        self.transform = transform
        self.dropout = Dropout(dropout, site=_DROPOUT_SITE)
        self.labels = Linear(hidden_size, num_labels, std=std)

    def label_logits(self, x_BTD: Tensor, batch: Batch) -> Tensor:
        pooled_SD = self._means(x_BTD, batch) if self.takes_mean else self.first_tokens(x_BTD, batch["firsts"])
        keys_S = tokens_at(batch["keys"], batch["firsts"])
        logits: Tensor = self.labels(self.dropout(self.transform(pooled_SD), keys_S)).float()
        return logits

    def _means(self, x_BTD: Tensor, batch: Batch) -> Tensor:
        """Return the mean over each sequence's tokens of the normalized hidden states, ``[S, D]``."""
        flat_ST, outside_ST = sequence_indices(batch, x_BTD.device)
        x_STD: Tensor = self.norm(x_BTD).flatten(0, 1)[flat_ST].float().masked_fill(outside_ST[..., None], 0.0)
        return (x_STD.sum(1) / (~outside_ST).sum(1, keepdim=True)).to(x_BTD.dtype)


class LastTokenClassifier(ClassificationHead):
    """A decoder's classifier: final norm and logits of the last token of each sequence, ignoring padding.

    Args:
        hidden_size: D.
        vocab_size: of the embedding.
        num_labels: C.
        std: standard deviation of the initial weights.
        norm: see ``OutputHead``.
    """

    def __init__(self, hidden_size: int, vocab_size: int, *, num_labels: int, std: float, norm: LayerNorm) -> None:
        super().__init__(hidden_size, vocab_size, norm=norm, std=std)
        self.labels = Linear(hidden_size, num_labels, std=std, bias=False)

    def label_logits(self, x_BTD: Tensor, batch: Batch) -> Tensor:
        logits: Tensor = self.labels(self.last_tokens(x_BTD, batch)).float()
        return logits


class SpanHead(OutputHead):
    """Two logits per token, for the start and the end of a span (Devlin et al. 2019, section 4.2).

    Args:
        hidden_size: D.
        vocab_size: of the embedding.
        std: standard deviation of the initial weights.
        norm: see ``OutputHead``.
        transform: layers before the logits, if any.
    """

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        *,
        std: float,
        norm: LayerNorm | None,
        transform: Transform | None = None,
    ) -> None:
        super().__init__(hidden_size, vocab_size, norm=norm, std=std)
        self.transform = transform or nn.Identity()
        self.spans = Linear(hidden_size, 2, std=std)

    def span_logits(self, x_BTD: Tensor, batch: Batch) -> Tensor:
        """Return ``[S, T, 2]`` fp32, T being the length of the longest sequence; -inf beyond a sequence's end."""
        flat_ST, outside_ST = sequence_indices(batch, x_BTD.device)
        logits_ST2: Tensor = self.spans(self.transform(self.norm(x_BTD))).flatten(0, 1)[flat_ST].float()
        return logits_ST2.masked_fill(outside_ST[..., None], -math.inf)

    def locate(self, x_BTD: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Score spans by the mean cross-entropy of start and end over the tokens of the sequence.

        Returns:
            The sum over sequences in nats and the number of sequences with correct start and end; fp32 scalars, the
            second without a gradient.
        """
        logits_ST2, labels_S2 = self.span_logits(x_BTD, batch), batch["labels"]
        starts_and_ends = logits_ST2.transpose(1, 2).flatten(0, 1)
        loss = functional.cross_entropy(starts_and_ends, labels_S2.flatten(), ignore_index=NOT_SCORED, reduction="sum")
        return loss / 2, (logits_ST2.argmax(1) == labels_S2).all(1).sum().float()
