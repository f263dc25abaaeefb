"""Self-attention of encoders: a token sees its whole sequence, wherever in the batch that lies.

::

    x_BTD -> qkv, flat [B·T, 3·H·K] -> places of the groups -> attention [G, H, t, K], group by group -> back -> out

See `hornbook.ops.sequence_groups` for the groups. Padding is never looked at and looks at nothing: to it attention
adds zero. Attention dropout hashes the place *inside the sequence*, so it does not depend on where sequences lie.
"""

import torch
from torch import Tensor
from torch.nn import functional

from hornbook.model.attention import Context, SelfAttention
from hornbook.ops.attention import WeightDropout, cpu_attention, fits
from hornbook.ops.sequence_groups import take


class EncoderSelfAttention(SelfAttention):
    """Self-attention in both directions; ``context`` is that of an `hornbook.model.encoder.EncoderModel`."""

    def forward(self, x_BTD: Tensor, context: Context) -> Tensor:
        """Mix the tokens of each sequence, ``[B, T, D]``."""
        packed_NE = self.project(x_BTD).flatten(0, 1)
        if "slots" not in context:
            ((num_sequences, length, _),) = context["groups"].tolist()
            shape = (num_sequences, length)
            y_NC = self._attend(packed_NE.view(*shape, -1), None, context["keys"].view(shape))
        else:
            y_NC = self._attend_groups(packed_NE, context)
        y_BTD: Tensor = self.out(y_NC.view(*x_BTD.shape[:2], -1))
        return y_BTD

    def _attend_groups(self, packed_NE: Tensor, context: Context) -> Tensor:
        slots_R, places_N, groups = context["slots"], context["places"], context["groups"].tolist()
        sizes = [num_sequences * length for num_sequences, length, _ in groups]
        laid_out = (take(packed_NE, slots_R, places_N), context["there"], context["place_keys"])
        parts = zip(groups, *(torch.split(tensor, sizes) for tensor in laid_out), strict=True)
        mixed = [packed_NE.new_empty(0, self.num_heads * self.head_size)]
        for (num_sequences, length, is_padded), packed, there, keys in parts:
            shape = (num_sequences, length)
            there_Gt = there.view(shape) if is_padded else None
            mixed.append(self._attend(packed.view(*shape, -1), there_Gt, keys.view(shape)))
        y_RC = torch.cat(mixed)
        return take(y_RC, places_N, slots_R)

    def _attend(self, packed_GtE: Tensor, there_Gt: Tensor | None, keys_Gt: Tensor) -> Tensor:
        """Return ``[G·t, H·K]`` for one group; ``there`` says which of its places hold a token, all if None."""
        q_GHtK, k_GHtK, v_GHtK = qkv = self.part(packed_GtE)
        mask = None if there_Gt is None else there_Gt.view(len(there_Gt), 1, 1, -1)
        if fits(q_GHtK, is_causal=False) and (self.drops or q_GHtK.dtype != torch.float32):
            dropout = self._weight_dropout(keys_Gt) if self.drops else None
            y_GHtK = cpu_attention(*qkv, there_BT=there_Gt, dropout=dropout)
        elif self.drops:
            y_GHtK = self.attend_dropping(qkv, mask, keys_Gt)
        else:
            y_GHtK = functional.scaled_dot_product_attention(q_GHtK, k_GHtK, v_GHtK, attn_mask=mask)
        return y_GHtK.transpose(1, 2).flatten(2).flatten(0, 1)

    def _weight_dropout(self, keys_Gt: Tensor) -> WeightDropout:
        return WeightDropout(self.head_keys(keys_Gt), self.dropout.site, self.dropout.probability)
