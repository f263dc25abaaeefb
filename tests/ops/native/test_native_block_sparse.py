"""Native products of a block-sparse matrix beside the reference, on any sizes, threads and forms."""

from collections.abc import Iterator
from unittest.mock import patch

import pytest
import torch
from cases import mostly_slow
from hypothesis import example, given, settings
from hypothesis import strategies as st
from native_forms import EMULATED, cut_for, emulated_tiles
from native_forms import threads as use_threads

from hornbook.errors import UserError
from hornbook.ops.block_pattern import Pattern, from_dense, to_dense
from hornbook.ops.block_sparse import KERNELS, block_sparse_linear
from hornbook.ops.native import block_sparse
from hornbook.ops.native.kernels import Form

pytestmark = pytest.mark.skipif(isinstance(block_sparse.form(), str), reason=f"no native form: {block_sparse.form()}")
forms = pytest.mark.parametrize("computing", ["this machine's", EMULATED], indirect=True)


@pytest.fixture
def computing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let the newest form of this machine compute, or that for tiles with their instructions in plain C++."""
    if request.param != EMULATED:
        yield
        return
    with emulated_tiles(), patch.object(block_sparse, "form", lambda: Form(EMULATED)):
        yield


def numbers(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def laid_out(tensor: torch.Tensor, is_strided: bool) -> torch.Tensor:
    """Return it as it is, or as every second row of a wider matrix, beginning at an odd address."""
    if not is_strided:
        return tensor
    wide = tensor.new_zeros(2 * len(tensor) + 1, tensor.shape[1] + 3)
    wide[1::2, 1:-2] = tensor
    return wide[1::2, 1:-2]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Pattern, int, int]:
    num_rows, num_columns = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    positions = sorted(draw(st.sets(st.integers(0, num_rows * num_columns - 1))))
    chosen = torch.tensor(positions, dtype=torch.int64)
    pattern = Pattern.of(chosen // num_columns, chosen % num_columns, num_rows, num_columns)
    return pattern, draw(st.sampled_from(block_sparse.BLOCK_SIZES)), draw(st.integers(0, 70))


@forms
@given(case=cases(), dtype=st.sampled_from([torch.float32, torch.bfloat16]), is_strided=st.booleans())
@settings(max_examples=60, deadline=None)
@pytest.mark.usefixtures("computing")
def test_products_and_gradients_are_those_of_the_reference(
    case: tuple[Pattern, int, int], dtype: torch.dtype, is_strided: bool
) -> None:
    pattern, size, num_tokens = case
    values = numbers(len(pattern.rows), size, size, seed=0)
    x, upstream = (
        numbers(num_tokens, pattern.num_columns * size, seed=1),
        numbers(num_tokens, pattern.num_rows * size, seed=2),
    )
    found = []
    for kernel, kind in (("native", dtype), ("reference", torch.float64)):
        leaves = [tensor.detach().to(dtype).to(kind).clone().requires_grad_() for tensor in (x, values)]
        y = block_sparse_linear(laid_out(leaves[0], is_strided), leaves[1], pattern, kernel)
        assert y.dtype == kind
        y.backward(laid_out(upstream.to(dtype).to(kind), is_strided))
        found.append([y.detach(), *(leaf.grad for leaf in leaves)])
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    for ours, exact in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=tolerance, atol=tolerance * 3)


def case(num_tokens: int = 75) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Pattern]:
    chosen = torch.tensor([0, 2, 5, 7, 8, 10, 13])
    pattern = Pattern.of(chosen // 4, chosen % 4, 4, 4)
    return numbers(num_tokens, 64, seed=1), numbers(num_tokens, 64, seed=2), numbers(7, 16, 16, seed=0), pattern


def products(pattern: Pattern, x: torch.Tensor, upstream: torch.Tensor, values: torch.Tensor) -> list[torch.Tensor]:
    kernel = KERNELS["native"]
    y, of_x = kernel.forward(x, values, pattern, None), kernel.input_gradient(upstream, values, pattern)
    return [y, of_x, kernel.weight_gradient(upstream, x, pattern, values.shape[-1])]


@forms
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("computing")
def test_the_bias_is_added_as_by_another_operator(dtype: torch.dtype) -> None:
    x, upstream, values, pattern = case()
    found = []
    for is_apart in (False, True):
        bias = numbers(64, seed=3).requires_grad_()
        y = block_sparse_linear(x.to(dtype), values, pattern, "native", bias=None if is_apart else bias)
        y = y + bias.to(dtype) if is_apart else y
        y.backward(upstream.to(dtype))
        found.append((y.detach(), bias.grad))
    for together, apart in zip(*found, strict=True):
        assert torch.equal(together, apart)


def without_bounds(pattern: Pattern) -> Iterator[Pattern]:
    """The same pattern with one index that is not in the matrix or the list of blocks."""
    for name, value in (("columns", 2**31 - 1), ("columns", -1), ("columns", 4), ("rows", 4), ("rows", -(2**31))):
        yield pattern._replace(**{name: getattr(pattern, name).index_fill(0, torch.tensor([3]), value)})
    for name in ("row_starts", "column_starts"):
        starts = getattr(pattern, name)
        yield pattern._replace(**{name: starts + 1})
        yield pattern._replace(**{name: starts.index_fill(0, torch.tensor([1]), 10**6)})
    yield pattern._replace(column_order=pattern.column_order + 1)


@forms
@pytest.mark.usefixtures("computing")
def test_indices_outside_of_the_operands_are_refused() -> None:
    x, upstream, values, pattern = case()
    for dtype in (torch.float32, torch.bfloat16):
        operands = [tensor.to(dtype) for tensor in (x, upstream, values)]
        products(pattern, *operands)
        for forged in without_bounds(pattern):
            with pytest.raises(UserError, match="does not fit its operands"):
                products(forged, *operands)
                block_sparse.weight_gradient(
                    block_sparse.form(), operands[1], operands[0], block_sparse.Lines.columns(forged), 16
                )


@forms
@pytest.mark.usefixtures("computing")
def test_the_number_of_threads_changes_no_bit() -> None:
    *operands, pattern = case()
    for dtype in (torch.float32, torch.bfloat16):
        found = []
        for threads in (1, 2):
            with use_threads(threads):
                found.append(products(pattern, *(operand.to(dtype) for operand in operands)))
        assert all(map(torch.equal, *found))


@given(
    num_tokens=st.integers(0, 200),
    num_columns=st.integers(1, 40),
    size=st.sampled_from(block_sparse.BLOCK_SIZES),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
@example(num_tokens=200, num_columns=40, size=16, dtype=torch.float32)  # from one to ten slices of tokens at a time
@settings(max_examples=10, deadline=None)
def test_the_size_of_the_cache_changes_no_bit(num_tokens: int, num_columns: int, size: int, dtype: torch.dtype) -> None:
    at = torch.arange(0, 3 * num_columns, 2)
    pattern = Pattern.of(at // num_columns, at % num_columns, 3, num_columns)
    operands = (
        numbers(num_tokens, num_columns * size, seed=1),
        numbers(num_tokens, 3 * size, seed=2),
        numbers(len(at), size, size, seed=0),
    )
    found = []
    for kib in (256, 512, 1024, 2048):
        with cut_for(kib << 10):
            found.append(products(pattern, *(operand.to(dtype) for operand in operands)))
    for others in found[1:]:
        assert all(map(torch.equal, found[0], others))


@pytest.mark.parametrize("isa", block_sparse.KERNEL.instruction_sets)
def test_every_form_of_this_machine_is_right(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert block_sparse.KERNEL.check(Form(isa), torch.float32)
    monkeypatch.setattr(block_sparse, "form", lambda: Form(isa))
    x, upstream, values, pattern = case()
    for ours, exact in zip(
        products(pattern, x, upstream, values),
        (
            KERNELS["reference"].forward(x, values, pattern, None),
            KERNELS["reference"].input_gradient(upstream, values, pattern),
            KERNELS["reference"].weight_gradient(upstream, x, pattern, 16),
        ),
        strict=True,
    ):
        torch.testing.assert_close(ours, exact, rtol=1e-4, atol=1e-4)


def test_forward_products_have_the_same_bits_in_every_form(monkeypatch: pytest.MonkeyPatch) -> None:
    x, upstream, values, pattern = case()
    found = []
    for isa in block_sparse.KERNEL.instruction_sets:
        monkeypatch.setattr(block_sparse, "form", lambda isa=isa: Form(isa))
        found.append(products(pattern, x, upstream, values)[:2])
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


@pytest.mark.parametrize("shape", [(1088, 1024), (1024, 1088)], ids=["rows", "columns"])
@pytest.mark.parametrize("size", mostly_slow(reversed(block_sparse.BLOCK_SIZES), 2))
@pytest.mark.parametrize("threads", mostly_slow([2, 1]))
def test_more_tokens_than_fit_the_cache_are_added_up(shape: tuple[int, int], size: int, threads: int) -> None:
    num_rows, num_columns = shape[0] // size, shape[1] // size
    random = torch.Generator().manual_seed(size)
    chosen = torch.randperm(num_rows * num_columns, generator=random)[:40].sort().values
    pattern = Pattern.of(chosen // num_columns, chosen % num_columns, num_rows, num_columns)
    values = numbers(40, size, size, seed=0)
    x, upstream = numbers(557, shape[1], seed=1), numbers(557, shape[0], seed=2)  # results are written past the caches
    with use_threads(threads):
        found = products(pattern, x, upstream, values)
    dense = to_dense(values, pattern).double()
    exact = (
        x.double() @ dense.t(),
        upstream.double() @ dense,
        from_dense(upstream.double().t() @ x.double(), pattern, size),
    )
    for ours, expected in zip(found, exact, strict=True):
        torch.testing.assert_close(ours.double(), expected, rtol=1e-4, atol=3e-4)


@pytest.mark.parametrize(("size", "num_blocks"), [(16, 90), pytest.param(64, 66, marks=pytest.mark.slow)])
def test_tiles_add_up_more_tokens_and_blocks_than_fit_the_cache(size: int, num_blocks: int) -> None:
    num_rows, num_columns = 4096 // size, 1024 // size
    chosen = torch.randperm(num_rows * num_columns, generator=torch.Generator().manual_seed(size))[:num_blocks]
    chosen = chosen.sort().values
    pattern = Pattern.of(chosen // num_columns, chosen % num_columns, num_rows, num_columns)
    x, upstream, values = (
        numbers(*shape, seed=seed).bfloat16()
        for seed, shape in enumerate(((291, 1024), (291, 4096), (num_blocks, size, size)))
    )
    lines = block_sparse.Lines
    dense = to_dense(values, pattern).double()
    with emulated_tiles():
        form = Form(EMULATED)
        assert block_sparse.KERNEL.check(form, torch.float32)
        found = [
            block_sparse.product(form, x, values, lines.rows(pattern)),
            block_sparse.product(form, upstream, values, lines.columns(pattern)),
            block_sparse.weight_gradient(form, upstream, x, lines.rows(pattern), size),
            block_sparse.weight_gradient(form, upstream, x, lines.columns(pattern), size),
        ]
    of_values = from_dense(upstream.double().t() @ x.double(), pattern, size)
    exact = (x.double() @ dense.t(), upstream.double() @ dense, of_values, of_values)
    for ours, expected, tolerance in zip(found, exact, (4e-3, 4e-3, 1e-6, 1e-6), strict=True):
        assert (ours.double() - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize("size", [8, 16, 32, 64])
def test_blocks_as_large_as_tiles_are_multiplied_by_tiles(size: int) -> None:
    """Tiles add the products of even and of odd summands apart, and then to the sums of the tiles before."""
    values, x, upstream = (numbers(*shape, seed=7).bfloat16() for shape in ((1, size, size), (32, size), (32, size)))
    one = torch.zeros(1, dtype=torch.int64)
    pattern = Pattern.of(one, one, 1, 1)
    with emulated_tiles():
        y = block_sparse.product(Form(EMULATED), x, values, block_sparse.Lines.rows(pattern))
        of_values = block_sparse.weight_gradient(Form(EMULATED), upstream, x, block_sparse.Lines.columns(pattern), size)

    def added(terms: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(terms[0])
        for tile in terms.split(32):
            total = total + (sum(tile[0::2]) + sum(tile[1::2]))
        return total

    of_y = added(x.float().t()[:, :, None] * values[0].float().t()[:, None, :])  # exact in fp32
    gradient = added(upstream.float()[:, :, None] * x.float()[:, None, :])
    assert torch.equal(y, of_y.bfloat16()) or size < 16
    assert torch.equal(of_values[0], gradient) or size < 16


def test_any_strides_are_taken() -> None:
    x, _, values, pattern = case()
    wide = x.t().contiguous().t()
    assert torch.equal(
        block_sparse_linear(wide, values, pattern, "native"), block_sparse_linear(x, values, pattern, "native")
    )
