"""Compare Triton's attention, run by its interpreter, with float64; started by test_triton_attention.py.

Its argument is a number of random examples; the first ones are fixed.
"""

import math
import sys
from dataclasses import dataclass

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hornbook.ops.attention import head_keys
from hornbook.ops.dropout import keep_mask
from hornbook.ops.native.kernels import sums_of
from hornbook.ops.spans import Spans, spans_of_sequences, spans_of_windows
from hornbook.ops.triton.attention import num_words
from hornbook.ops.triton.operators import triton_attention

TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 6e-3}
SITE, FIRST_HEAD = 7, 3
COMPARED = 0


@dataclass(frozen=True, kw_only=True)
class Case:
    dtype: torch.dtype = torch.float32
    lengths: tuple[int, ...]
    """Of padded sequences; causal: their number is that of windows, which have documents."""
    width: int
    causal: bool
    heads: tuple[int, int] = (2, 2)
    size: int = 16
    window: int | None = None
    cap: float | None = None
    probability: float = 0.0
    stacked: bool = False


CASES = st.builds(
    Case,
    dtype=st.sampled_from(list(TOLERANCES)),
    lengths=st.lists(st.integers(0, 75), min_size=1, max_size=2).map(tuple),
    width=st.integers(75, 90) | st.sampled_from([64, 96]),
    causal=st.booleans(),
    heads=st.sampled_from([(1, 1), (2, 1), (2, 2)]),
    size=st.sampled_from([3, 8, 16, 20, 64]),
    window=st.none() | st.integers(1, 80),
    cap=st.none() | st.floats(1.0, 20.0),
    probability=st.sampled_from([0.0, 0.1, 0.5]),
    stacked=st.booleans(),
)


def pairs_of(case: Case, random: torch.Generator) -> tuple[Spans, torch.Tensor]:
    """Return the spans, and which queries attend to which keys ``[N, N]``."""
    shape = (len(case.lengths), case.width)
    places, window_of = torch.arange(math.prod(shape)), torch.arange(shape[0]).repeat_interleave(case.width)
    if case.causal:  # documents recur
        documents = torch.randint(3, shape, generator=random)
        spans = spans_of_windows(torch.arange(case.width).expand(shape), documents)
        whole = window_of * 3 + documents.flatten()
    else:
        firsts, lengths = torch.arange(shape[0]) * case.width, torch.tensor(case.lengths).clamp(max=case.width)
        spans = spans_of_sequences(firsts, lengths, len(places), torch.device("cpu"))
        whole = torch.where(places % case.width < lengths[window_of], window_of, -1)
    sees = (whole[:, None] == whole) & (whole >= 0)
    if case.causal:
        sees &= places <= places[:, None]
    if case.window is not None:
        sees &= (places - places[:, None]).abs() < case.window
    return spans, sees


def close(mine: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> None:
    global COMPARED
    torch.testing.assert_close(mine.double(), right, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])
    COMPARED += 1


def before_nan(x: torch.Tensor) -> torch.Tensor:
    """Return a copy in front of tokens that no kernel may read: they would make results NaN."""
    return torch.cat((x, torch.full_like(x[:1], math.nan).expand(128, *x.shape[1:])))[: len(x)]


def check(case: Case) -> None:
    random = torch.Generator().manual_seed(0)
    (spans, longest), sees = pairs_of(case, random)
    num_tokens, (num_heads, num_groups), scale = len(sees), case.heads, case.size**-0.5
    is_stacked = case.stacked and num_heads == num_groups
    shapes = [(3, num_heads)] if is_stacked else [(num_heads,), (2, num_groups)]
    leaves = [torch.randn(num_tokens, *shape, case.size, generator=random).to(case.dtype) for shape in shapes]
    leaves = [before_nan(leaf) for leaf in leaves]
    keys = torch.randint(1 << 32, (num_tokens,), generator=random)
    upstream = before_nan(torch.randn(num_tokens, num_heads, case.size, generator=random).to(case.dtype))

    exact = [leaf.double().requires_grad_() for leaf in leaves]
    q, k, v = (part for x in exact for part in (x.unbind(1) if x.dim() == 4 else (x,)))
    k, v = (x.repeat_interleave(num_heads // num_groups, 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    scores = scores if case.cap is None else case.cap * torch.tanh(scores / case.cap)
    weights = scores.masked_fill(~sees, -1e30).softmax(-1) * sees
    if case.probability:
        kept = keep_mask(head_keys(keys[None], num_heads, FIRST_HEAD)[0], SITE, case.width, case.probability)
        kept = kept.gather(2, spans[2].long().expand_as(weights))
        weights = weights * kept / (1.0 - case.probability)
    y = torch.einsum("hqk,khd->qhd", weights, v)
    y.backward(upstream.double())

    ours = [leaf.detach().requires_grad_() for leaf in leaves]
    limits = (case.causal, scale, case.window, case.cap, case.probability)
    dropout = (longest, keys if case.probability else None, FIRST_HEAD, SITE)
    found, _, dropped = triton_attention(*ours, *[None] * (3 - len(ours)), spans, *limits, *dropout)
    found.backward(upstream)
    close(sums_of(ours[0].grad.flatten(1)), exact[0].grad.flatten(1).sum(0), case.dtype)
    words = num_words(longest, case.window, is_causal=case.causal) if case.probability else 0
    assert dropped.shape == (num_heads, words, num_tokens)
    if case.probability:
        check_bits(case, dropped, kept, spans[0], sees)
    assert found.dtype == case.dtype and not found[sees.any(1).logical_not()].any()
    for mine, right in zip((found, *(x.grad for x in ours)), (y, *(x.grad for x in exact)), strict=True):
        close(mine, right, case.dtype)


def check_bits(case: Case, dropped: torch.Tensor, kept: torch.Tensor, first: torch.Tensor, sees: torch.Tensor) -> None:
    """Compare the bits of all pairs ``[N, N]`` that exist with those of PyTorch's form, ``kept`` ``[H, N, N]``."""
    query, key = sees.nonzero().unbind(1)
    low = first[query] if case.window is None else torch.maximum(first[query], query - case.window + 1)
    words = dropped[:, key // 32 - low // 32, query]
    assert torch.equal((words >> (key % 32)) & 1 == 0, kept[:, query, key])


def main() -> None:
    cases = (
        Case(lengths=(5, 33), width=33, causal=False, probability=0.1, stacked=True),
        Case(lengths=(70,), width=70, causal=True, heads=(2, 1), probability=0.3, window=20, cap=3.0, size=5),
        Case(lengths=(0, 9), width=10, causal=False, window=4, heads=(1, 1), dtype=torch.bfloat16),
        # whole tiles, and sequences that begin inside of them
        Case(lengths=(64, 64), width=64, causal=True, probability=0.1, dtype=torch.float16, stacked=True),
        Case(lengths=(70, 96), width=96, causal=False, probability=0.1, dtype=torch.float16),
    )
    number = int(sys.argv[1])
    for case in cases:
        check(case)
    if number:
        settings(max_examples=number, deadline=None, derandomize=True, database=None)(
            given(CASES)(example(cases[0])(check))
        )()
    sys.stdout.write(f"{COMPARED}\n")


if __name__ == "__main__":
    main()
