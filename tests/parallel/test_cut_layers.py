"""Split layers as GPUs compute them: copies of weights once a step, gradients added in fp32, sums in place."""

import cut_ranks
from ranks import fork_ranks


def test_split_layers_add_gradients_in_fp32_and_logits_are_copied_once() -> None:
    fork_ranks(2, cut_ranks.main)
