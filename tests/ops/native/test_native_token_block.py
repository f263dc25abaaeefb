"""A token of each text through the native block, against its formula in float64 and against PyTorch's blocks."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from native_forms import all_native, forms, threads
from tiny import randomize, tiny_model
from torch.nn import functional

from hornbook.config import DecoderConfig
from hornbook.generate import make_decoder
from hornbook.generate.incremental_model import IncrementalModel, incremental_model
from hornbook.model import build_model, initialize
from hornbook.ops.native import token_block as module
from hornbook.ops.native.kernels import NOT_CHOSEN, Kernels, using

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3}
OPTIONS = module.TokenOptions(4, 16, "gelu")


def assert_near(ours, right, tolerance):
    assert (ours.double() - right).norm() <= tolerance * max(float(right.norm()), 1.0)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 19),
    heads=st.integers(1, 3),
    head_size=st.sampled_from([1, 8, 15, 16, 33, 80]),
    size=st.sampled_from([1, 7, 16, 70]),
    wide=st.sampled_from([1, 16, 61]),
    columns=st.integers(1, 40),
    num_blocks=st.integers(1, 3),
    starts=st.booleans(),
    has_biases=st.booleans(),
    has_head=st.booleans(),
    num_threads=st.integers(1, 3),
    modern=st.none() | st.tuples(
        st.integers(1, 3), st.sampled_from([0.0, 0.5, 1.0]), st.none() | st.integers(1, 30), st.none() | st.just(2.0),
        st.booleans(), st.booleans(), st.booleans(), st.booleans(),
    ),
)  # fmt: skip
def test_blocks_and_head_are_their_formula(
    dtype, rows, heads, head_size, size, wide, columns, num_blocks, starts, has_biases, has_head, num_threads, modern
):
    assume(modern is None or size > 1)  # the RMS norm of one number is its sign, and near zero magnifies its rounding
    draws, groups, rotation, cap = torch.Generator().manual_seed(columns), heads, None, None
    options = module.TokenOptions(heads, head_size, "gelu")
    if modern is not None:
        per_group, share, window, cap, is_gated, norms_all_heads, has_values, has_scales = modern
        angles = torch.randn(rows, int(share * head_size / 2), generator=draws)
        rotation = (angles.cos(), angles.sin()) if share else None
        heads = groups * per_group
        others = {"norms_all_heads": norms_all_heads, "window": window, "cap": cap, "scale": 0.4}
        options = module.TokenOptions(heads, head_size, "silu", groups, is_gated, **others)
    parts = module.drawn_parts(dtype, size, options, wide, has_biases=has_biases, is_rms=modern is not None)
    if modern is not None:
        parts = parts._replace(values=parts.values if has_values else None, scales=parts.scales if has_scales else None)
    x, start = torch.randn(2, rows, size, generator=draws).to(dtype)
    tokens = torch.randint(50, (rows,), generator=draws)
    untouched = torch.randn(num_blocks, rows, 2, groups, columns + 5, head_size, generator=draws)
    visible = None
    if starts:
        hidden = torch.arange(columns + 5) < columns // 2 + 2
        visible = torch.zeros(rows, 1, 1, columns + 5).masked_fill_(hidden, -torch.inf)[..., 2 : 2 + columns]
    exact_caches = untouched[..., 2 : 2 + columns, :].double()
    right = x.double()
    for exact_cache in exact_caches:
        mask = None if visible is None else visible.double()
        right = module.exact_block(right, exact_cache, mask, parts, options, rotation, tokens, start.double())
    table = torch.randn(103, size, generator=draws).to(dtype)
    head = module.TokenHead(parts.norm, table, cap) if has_head else None
    if head is not None:
        right = module.exact_of_norm(right, parts.norm) @ table.double().t()
        right = right if cap is None else cap * torch.tanh(right / cap)
    block = module.TokenBlock(parts, options)
    for form in forms():
        caches = untouched.clone()
        window = caches[..., 2 : 2 + columns, :]
        model = module.TokenModel(form, [block] * num_blocks, head)
        model.most_threads = num_threads  # small ones have one
        with threads(num_threads):
            ours = model(x, list(window), visible, [rotation] * num_blocks, tokens, start)
        assert ours.dtype == (torch.float32 if has_head else dtype)
        assert_near(ours, right, TOLERANCE[dtype])
        assert_near(window, exact_caches, TOLERANCE[dtype])
        assert torch.equal(caches[..., :2, :], untouched[..., :2, :]), "written outside of the window"
        assert torch.equal(caches[..., 2 + columns :, :], untouched[..., 2 + columns :, :])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("rows", [1, 8, 11])
def test_logits_are_the_norm_times_the_table(dtype, rows):
    draws = torch.Generator().manual_seed(0)
    x, gain, bias = (torch.randn(shape, generator=draws) for shape in ((rows, 45), (45,), (45,)))
    table = torch.randn(103, 45, generator=draws).to(dtype)
    right = functional.layer_norm(x.to(dtype).double(), (45,), gain.double(), bias.double(), 1e-5) @ table.double().t()
    head = module.TokenHead(module.TokenNorm(gain, bias, 1e-5), table)
    for form in forms():
        assert_near(module.TokenModel(form, [], head)(x.to(dtype)), right, 2e-6)


def test_rows_and_threads_change_no_bit():
    parts = module.drawn_parts(torch.float32, 70, OPTIONS, 100)
    x, caches = torch.randn(9, 70), torch.randn(2, 9, 2, 4, 33, 16)
    block = module.TokenBlock(parts, OPTIONS)
    head = module.TokenHead(parts.norm, torch.randn(192, 70))
    for form in forms():
        model = module.TokenModel(form, [block, block], head)
        together = model(x, list(caches))
        alone = torch.cat([model(x[row : row + 1], list(caches[:, row : row + 1])) for row in range(9)])
        model.most_threads = 3
        with threads(3):
            shared = model(x, list(caches))
        assert torch.equal(together, alone) and torch.equal(together, shared)


def test_columns_before_a_text_may_hold_anything():
    """The columns of a text that was there before, say; weights of 0 times NaN would be NaN."""
    parts = module.drawn_parts(torch.float32, 70, OPTIONS, 100)
    block = module.TokenBlock(parts, OPTIONS)
    x, cache = torch.randn(2, 70), torch.randn(2, 2, 4, 33, 16)
    visible = torch.zeros(2, 1, 1, 33)
    visible[0, ..., :5], visible[1, ..., :32] = -torch.inf, -torch.inf
    broken = cache.clone()
    broken[0, ..., :5, :], broken[1, ..., :32, :] = torch.nan, torch.inf
    for form in forms():
        model = module.TokenModel(form, [block])
        assert torch.equal(model(x, [broken.clone()], visible), model(x, [cache.clone()], visible))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_texts_are_those_of_pytorchs_blocks(dtype):
    """Prompts of unequal lengths, which need a mask, and texts that outgrow the window."""
    model = tiny_model(compute_dtype=dtype).eval()
    prompts, native = [[1, 2, 3], [4], [5, 6]], all_native()

    def texts(kernels, given):
        with using(kernels):
            decoder = make_decoder(model)
            logits = [decoder.start(given, 40)]
            for token in range(1, 40):
                logits.append(decoder.advance([token % 7 + row for row in range(len(given))]))
        return torch.stack(logits)

    theirs, ours = (texts(kernels, prompts) for kernels in (Kernels(why="test"), native))
    assert_near(ours, theirs.double(), 2 * TOLERANCE[dtype])


def test_generation_takes_it_where_nothing_else_was_chosen(monkeypatch):
    model = tiny_model().eval()
    times = {"torch": 1.0, forms()[0].isa: 0.1}
    monkeypatch.setattr("hornbook.ops.native.choice.seconds", lambda kernel, shape: times)
    with using(Kernels(why="precision.kernels")):
        assert incremental_model(model)._token is None
    with using(NOT_CHOSEN):
        quick = incremental_model(model)
        assert isinstance(quick, IncrementalModel)
        assert quick._token is not None and isinstance(quick._token.head, module.TokenHead)
        times["torch"] = 0.01
        assert incremental_model(model)._token is None


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"value_embeddings": True, "num_kv_heads": 2},
        {"residual_scales": True},
        {"shifted_keys": True, "num_kv_heads": 2, "query_key_norm": "head"},
        {"shifted_keys": True, "query_key_norm": "width", "window": 5},
        {"smear": True, "residual_scales": True, "value_embeddings": True},
    ],
    ids=lambda options: " ".join(options),
)
def test_texts_with_shortcuts_are_those_of_pytorchs_blocks(dtype, options):
    config = DecoderConfig(num_layers=3, hidden_size=32, num_heads=4, vocab_size=70, max_positions=24, **options)
    model = build_model(config, dtype).eval()
    initialize(model, 7)
    randomize(model)
    native = all_native()

    def texts(kernels):
        with using(kernels):
            decoder = make_decoder(model)
            logits = [decoder.start([[1, 2, 3], [4], [5, 6]], 40)]
            for token in range(1, 40):
                logits.append(decoder.advance([token % 7 + row for row in range(3)]))
        return torch.stack(logits)

    with using(native):
        assert incremental_model(model)._token is not None
    assert_near(texts(native), texts(Kernels(why="test")).double(), 4 * TOLERANCE[dtype])
