"""The native products of a linear layer against float64, form by form, and its operators against autograd."""

import itertools
from contextlib import nullcontext

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from native_forms import EMULATED, NativeCalls, all_native, emulated_tiles, noting_packs

from hornbook.engine.activations import recomputed
from hornbook.ops.layers import ACTIVATIONS, activated_linear, feed_forward
from hornbook.ops.layers import linear as any_linear
from hornbook.ops.native import linear as module
from hornbook.ops.native import linear_trial
from hornbook.ops.native.build import HALVES, INSTRUCTION_SETS
from hornbook.ops.native.choice import choose
from hornbook.ops.native.kernels import Form, instruction_sets, use, using, weights_unchanged

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 4e-3}
"""Of the largest value; a bf16 result is rounded to one part in 256."""
_PLAIN = {
    "weight_decay": 0.0,
    "momentum": 0.0,
    "dampening": 0.0,
    "nesterov": False,
    "maximize": False,
    "is_first_step": True,
}
CASES = [*itertools.product(INSTRUCTION_SETS, DTYPES), (EMULATED, "bf16")]


@pytest.fixture(autouse=True)
def on_this_machine(request):
    """Skip forms that this machine does not have, and everything where it has none."""
    isas = request.node.callspec.params.get("isa") if hasattr(request.node, "callspec") else None
    if not instruction_sets() or (isas and isas not in (*instruction_sets(), EMULATED)):
        pytest.skip("the machine lacks the instruction set, or a compiler")
    with emulated_tiles() if isas == EMULATED else nullcontext():
        yield


def linear(*given, **options):
    """Return the result without what an activation maps."""
    return module.linear(*given, **options)[0]


def drawn(*shape, seed=0, dtype=torch.float32, is_strided=False):
    """Normal numbers; strided ones are every second row of a wider matrix and begin at an odd address."""
    draws = torch.Generator().manual_seed(seed)
    if not is_strided:
        return torch.randn(shape, generator=draws).to(dtype)
    return torch.randn(2 * shape[0] + 1, shape[1] + 3, generator=draws).to(dtype)[1::2, 1 : 1 + shape[1]]


def assert_near(ours, expected, tolerance, summands=None):
    """Largest difference at most ``tolerance`` of the largest value, or of the largest sum of absolute summands."""
    assert ours.shape == expected.shape
    if expected.numel():
        scale = (expected if summands is None else summands).abs().max()
        assert (ours.double() - expected).abs().max() <= tolerance * max(scale, 1e-3)


@pytest.mark.parametrize(("isa", "name"), CASES)
@settings(max_examples=25, deadline=None)
@given(
    rows=st.sampled_from([0, 1, 5, 6, 7, 48, 49, 97, 260]),
    num_in=st.integers(0, 150) | st.sampled_from([1023, 1024, 1025, 2300]),
    num_out=st.integers(0, 150) | st.sampled_from([1025, 2050]),
    is_strided=st.booleans(),
    threads=st.integers(1, 2),
)
@example(rows=5, num_in=0, num_out=7, is_strided=False, threads=1)  # its address is null
@example(rows=5, num_in=7, num_out=0, is_strided=False, threads=1)
@example(rows=0, num_in=7, num_out=5, is_strided=False, threads=1)
def test_products_are_those_of_float64(isa, name, rows, num_in, num_out, is_strided, threads):
    dtype, form = DTYPES[name], Form(isa)
    x = drawn(rows, num_in, dtype=dtype, is_strided=is_strided)
    g = drawn(rows, num_out, seed=1, dtype=dtype, is_strided=is_strided)
    weight, bias = drawn(num_out, num_in, seed=2, is_strided=is_strided), drawn(num_out, seed=3)
    of_weight, of_bias = torch.full((num_out, num_in), 2.0), torch.full((num_out,), 3.0)
    exact_weight = weight.to(dtype).double()
    torch.set_num_threads(threads)
    try:
        y = module.product(form, x, module.panels_of(form, weight, dtype, for_gradient=False), weight, bias)
        back = module.panels_of(form, weight, dtype, for_gradient=True)
        of_x = module.product(form, g, back, weight, None, for_gradient=True)
        module.linear_weight_gradient(g, x, of_weight, of_bias, form.isa, True)
    finally:
        torch.set_num_threads(1)
    assert y.dtype == of_x.dtype == dtype
    x, g = x.double(), g.double()
    summands = x.abs() @ exact_weight.abs().t() + bias.abs(), g.abs() @ exact_weight.abs(), g.t().abs() @ x.abs() + 2
    assert_near(y, x @ exact_weight.t() + bias, TOLERANCE[dtype], summands[0])
    assert_near(of_x, g @ exact_weight, TOLERANCE[dtype], summands[1])
    assert_near(of_weight, g.t() @ x + 2, 1e-6, summands[2])  # fp32 whatever the activations are
    assert_near(of_bias, g.sum(0) + 3, 1e-6, g.abs().sum(0) + 3)


def test_tiles_are_emulated_as_intel_describes_them():
    """Products of even and of odd tokens are added up apart, and denormals count as zero."""
    g, x = drawn(32, 20, dtype=torch.bfloat16), drawn(32, 23, seed=1, dtype=torch.bfloat16)
    g[:, 0], x[3, 5], x[4, 6] = 2.0**-126, 2.0**-130, 0.5
    found = torch.empty(20, 23)
    with emulated_tiles():
        form = Form(EMULATED)
        assert linear_trial._agrees(form, torch.bfloat16)
        assert form("works") == 1
        module.linear_weight_gradient(g, x, found, None, form.isa, False)
    terms = g.float()[:, :, None] * x.float()[:, None, :]  # exact in fp32
    terms = torch.where(terms.abs() < 2.0**-126, 0.0, terms)
    terms[3, :, 5] = 0.0
    expected = sum(terms[0::2]) + sum(terms[1::2])
    assert torch.equal(found[1:], expected[1:])
    assert torch.equal(found[0].abs() < 2.0**-126, found[0] == 0)


@pytest.mark.parametrize("isa", [HALVES])
def test_halves_have_the_range_of_bf16(isa):
    """Rows and weights whose magnitudes fp16 does not have, values that are not finite, and zeros."""
    form, scales = Form(isa), 2.0 ** torch.arange(-60, 61, 10)
    x = (drawn(len(scales), 130, seed=1) * scales[:, None]).bfloat16()
    for smallness in (1.0, 2.0**-50):
        weight = drawn(70, 130, seed=2) * smallness
        y = module.product(form, x, module.panels_of(form, weight, torch.bfloat16, for_gradient=False), weight).double()
        exact = x.double() @ weight.bfloat16().double().t()
        assert ((y - exact).abs().amax(1) <= 4e-3 * exact.abs().amax(1)).all()
    broken, weight = torch.ones(4, 130).bfloat16(), drawn(70, 130)
    broken[0, 3], broken[1, 129], broken[2] = torch.inf, torch.nan, 0.0
    y = module.product(form, broken, module.panels_of(form, weight, torch.bfloat16, for_gradient=False), weight)
    assert not y[:2].isfinite().any()
    assert not y[2].any()
    assert y[3].isfinite().all()
    weight[5, 7] = torch.nan
    y = module.product(form, broken, module.panels_of(form, weight, torch.bfloat16, for_gradient=False), weight)
    assert not y[3, 5].isfinite()


@pytest.mark.parametrize(("isa", "name"), CASES)
def test_threads_and_rows_change_no_bit(isa, name):
    dtype, form = DTYPES[name], Form(isa)
    x, g, weight = drawn(391, 70, dtype=dtype), drawn(391, 90, seed=1, dtype=dtype), drawn(90, 70, seed=2)
    packed = module.panels_of(form, weight, dtype, for_gradient=False)
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        of_weight, of_bias = torch.empty(90, 70), torch.empty(90)
        module.linear_weight_gradient(g, x, of_weight, of_bias, form.isa, False)
        found.append((module.product(form, x, packed, weight, None), of_weight, of_bias))
    torch.set_num_threads(1)
    for others in found[1:]:
        assert all(map(torch.equal, found[0], others))
    alone = torch.cat([module.product(form, x[row : row + 1], packed, weight, None) for row in range(20)])
    assert torch.equal(alone, found[0][0][:20])


@pytest.mark.parametrize(("isa", "name"), CASES)
@pytest.mark.parametrize("activation", module.ACTIVATIONS)
def test_products_fuse_activations_and_their_derivatives(isa, name, activation):
    f = {"none": lambda u: u, **ACTIVATIONS}[activation]
    dtype, form = DTYPES[name], Form(isa)
    tolerance = max(TOLERANCE[dtype], 2e-6)  # exponentials have errors of their own
    x, weight, bias = 3 * drawn(13, 33, dtype=dtype), drawn(37, 33, seed=1), drawn(37, seed=2)
    packed = module.panels_of(form, weight, dtype, for_gradient=False)
    exact = x.double() @ weight.to(dtype).double().t()
    before = drawn(13, 37, dtype=dtype)
    y = module.product(form, x, packed, weight, bias, activation=activation, before=before)
    assert_near(before, exact + bias, tolerance)
    assert_near(y, f(exact + bias), tolerance)
    u, g = 3 * drawn(13, 37, seed=4, dtype=dtype), drawn(13, 37, seed=5, dtype=dtype)
    slope = module.product(form, x, packed, weight, activation=activation, derivative_at=u)
    place = u.double().requires_grad_()
    (derivative,) = torch.autograd.grad(f(place).sum(), place)
    assert_near(slope, exact * derivative, tolerance)
    assert_near(module.linear_activation_gradient(g, u, activation, form.isa), g.double() * derivative, tolerance)


@pytest.mark.parametrize(("isa", "name"), CASES)
@settings(max_examples=25, deadline=None)
@example(rows=1, num_in=62, size=19, activation="gelu", has_bias=False, threads=1)  # sums that cancel in fp16
@example(rows=1, num_in=1, size=2, activation="gelu", has_bias=True, threads=1)  # likewise, of the gradient
@given(
    rows=st.sampled_from([0, 1, 6, 7, 49, 97]),
    num_in=st.integers(0, 70) | st.sampled_from([1025, 2300]),
    size=st.integers(0, 100) | st.sampled_from([683]),
    activation=st.sampled_from(list(ACTIVATIONS)),
    has_bias=st.booleans(),
    threads=st.integers(1, 2),
)
def test_products_fuse_gates(isa, name, rows, num_in, size, activation, has_bias, threads):
    dtype, form, f = DTYPES[name], Form(isa), ACTIVATIONS[activation]
    x, weight, down = drawn(rows, num_in, dtype=dtype), drawn(2 * size, num_in, seed=1), drawn(31, size, seed=2)
    weight, bias = weight / max(num_in, 1) ** 0.5, drawn(2 * size, seed=3) if has_bias else None
    u, g = torch.empty(rows, 2 * size, dtype=dtype), drawn(rows, 31, seed=4, dtype=dtype)
    torch.set_num_threads(threads)
    try:
        panels = module.panels_of(form, weight, dtype, for_gradient=False, is_gated=True)
        h = module.product(form, x, panels, weight, bias, activation=activation, before=u, is_gated=True)
        back = module.panels_of(form, down, dtype, for_gradient=True)
        options = {"for_gradient": True, "activation": activation}
        of_u = module.product(form, g, back, down, derivative_at=u, is_gated=True, **options)
        of_h = drawn(rows, size, seed=5, dtype=dtype)
        alone = module.linear_activation_gradient(of_h, u, activation, form.isa)
    finally:
        torch.set_num_threads(1)
    tolerance = max(TOLERANCE[dtype], 3e-6)
    cast, shift = weight.to(dtype).double().t(), torch.zeros(2 * size) if bias is None else bias
    exact = x.double() @ cast + shift
    assert_near(u, exact, tolerance, x.double().abs() @ cast.abs() + shift.abs())
    leaf = u.double().requires_grad_()
    right = f(leaf[:, :size]) * leaf[:, size:]
    assert_near(
        h, right.detach(), 2 * tolerance, right.detach().abs().max() + exact.square() if right.numel() else None
    )
    exact_down = down.to(dtype).double()
    (slopes,) = torch.autograd.grad(right.sum(), leaf, retain_graph=True)
    summands = slopes.abs() * (g.double().abs() @ exact_down.abs()).repeat(1, 2)
    for found, through, scale in ((of_u, g.double() @ exact_down, summands), (alone, of_h.double(), None)):
        (expected,) = torch.autograd.grad(right, leaf, through, retain_graph=True)
        assert_near(found, expected, tolerance, scale)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("has_next", [False, True])
def test_gates_have_the_gradients_of_autograd(name, has_next):
    """One gated layer, or a feed-forward of two layers."""
    dtype, isa = DTYPES[name], instruction_sets()[0]
    x, up, down = (drawn(*shape, seed=seed) for seed, shape in enumerate(((9, 17), (2, 24, 17), (7, 24))))
    leaves = [leaf.requires_grad_() for leaf in (x.to(dtype), up, down)][: 2 + has_next]
    exact = [leaf.detach().to(dtype).double().requires_grad_() for leaf in leaves]
    gate, value = (exact[0] @ exact[1].flatten(0, 1).t()).chunk(2, 1)
    right = ACTIVATIONS["silu"](gate) * value
    ours, u = module.linear(leaves[0], up, None, isa, "silu", True)
    if has_next:
        ours, right = linear(ours.detach(), down, None, isa, before=u, activation_before="silu"), right @ exact[2].t()
    upstream = drawn(*ours.shape, seed=9, dtype=dtype)
    tolerance = max(3 * TOLERANCE[dtype], 2e-6)
    assert_near(ours, right, tolerance)
    expected = torch.autograd.grad(right, exact, upstream.double())
    for own, other in zip(torch.autograd.grad(ours, leaves, upstream), expected, strict=True):
        assert_near(own, other, tolerance)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("layers", [1, 2])
def test_activations_between_layers_have_the_gradients_of_autograd(name, activation, layers):
    """One layer with an activation, or a feed-forward of two."""
    dtype, f = DTYPES[name], ACTIVATIONS[activation]
    x, up, bias, down = (drawn(*shape, seed=seed) for seed, shape in enumerate(((9, 17), (24, 17), (24,), (7, 24))))
    leaves = [leaf.requires_grad_() for leaf in (x.to(dtype), up, bias, down)][: 2 + layers]
    exact = [leaf.detach().to(dtype if leaf.dim() > 1 else leaf.dtype).double().requires_grad_() for leaf in leaves]
    right = f(exact[0] @ exact[1].t() + exact[2])
    with using(all_native()), NativeCalls() as calls:
        if layers == 1:
            ours = activated_linear(*leaves, activation)
        else:
            ours, right = feed_forward(leaves[0], (up, bias), (down, None), activation), right @ exact[3].t()
        upstream = drawn(*ours.shape, seed=9, dtype=dtype)
        gradients = torch.autograd.grad(ours, leaves, upstream)
    assert calls.names >= {"linear", "linear_activation_gradient" if layers == 1 else "linear_input_gradient"}
    assert (layers == 1) == ("linear_activation_gradient" in calls.names), (
        "a second layer's product applies the derivative"
    )
    tolerance = max(2 * TOLERANCE[dtype], 2e-6)  # h and u are rounded, too
    assert_near(ours, right, tolerance)
    for own, expected in zip(gradients, torch.autograd.grad(right, exact, upstream.double()), strict=True):
        assert_near(own, expected, tolerance)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(11, 17), (3, 11, 17)], ids=["matrix", "stack"])
@pytest.mark.parametrize("has_bias", [True, False])
def test_gradients_are_those_of_autograd(name, shape, has_bias):
    dtype = DTYPES[name]
    weight = drawn(*shape).requires_grad_()
    bias = drawn(*shape[:-1], seed=1).requires_grad_() if has_bias else None
    x = drawn(2, 5, 17, seed=2, dtype=dtype).requires_grad_()
    upstream = drawn(2, 5, weight[..., 0].numel(), seed=3, dtype=dtype)
    leaves = [leaf for leaf in (x, weight, bias) if leaf is not None]
    ours = torch.autograd.grad(linear(x, weight, bias, instruction_sets()[0]), leaves, upstream)
    exact = [leaf.detach().to(dtype if leaf is weight else leaf.dtype).double().requires_grad_() for leaf in leaves]
    y = exact[0] @ exact[1].flatten(0, -2).t() + (exact[2].flatten() if has_bias else 0.0)
    for own, expected, leaf in zip(ours, torch.autograd.grad(y, exact, upstream.double()), leaves, strict=True):
        assert own.dtype == leaf.dtype
        assert_near(own, expected, TOLERANCE[dtype])


@pytest.mark.slow
@pytest.mark.parametrize("name", DTYPES)
def test_the_operators_pass_opcheck(name):
    dtype, isa = DTYPES[name], instruction_sets()[0]
    x, weight = drawn(2, 5, 17, dtype=dtype).requires_grad_(), drawn(3, 4, 17).requires_grad_()
    bias, g = drawn(3, 4).requires_grad_(), drawn(2, 5, 12, dtype=dtype)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(module.linear, (x, weight, bias, isa), test_utils=tests)
    torch.library.opcheck(module.linear, (x, weight, None, isa), test_utils=tests)
    torch.library.opcheck(module.linear_input_gradient, (g, weight.detach(), isa), test_utils=tests)
    u, up = x.detach().clone().requires_grad_(), drawn(6, 17, seed=1).requires_grad_()
    after = {"before": u, "activation_before": "gelu"}
    torch.library.opcheck(module.linear, (x.detach(), weight, bias, isa), after, test_utils=tests)
    torch.library.opcheck(module.linear, (x, up, None, isa, "relu"), test_utils=tests)
    torch.library.opcheck(module.linear, (x.detach(), up, None, isa, "relu"), after, test_utils=tests)
    torch.library.opcheck(module.linear_input_gradient, (g, weight.detach(), isa, u.detach(), "silu"), test_utils=tests)
    torch.library.opcheck(module.linear_activation_gradient, (x.detach(), u.detach(), "gelu", isa), test_utils=tests)
    torch.library.opcheck(module.linear, (x, up, None, isa, "relu", True), test_utils=tests)
    after["before"] = u = drawn(2, 5, 34, dtype=dtype).requires_grad_()
    torch.library.opcheck(module.linear, (x.detach(), weight, bias, isa), after, test_utils=tests)
    torch.library.opcheck(module.linear_activation_gradient, (x.detach(), u.detach(), "silu", isa), test_utils=tests)
    sums, rest = (drawn(12, 17), drawn(12)), tests[:1] + tests[2:3]  # it changes its arguments and has no gradient
    torch.library.opcheck(module.linear_weight_gradient, (g, x.detach(), *sums, isa, True), test_utils=rest)
    torch.library.opcheck(module.linear_weight_gradient, (g, x.detach(), sums[0], None, isa, False), test_utils=rest)


def test_later_micro_batches_add_to_the_gradient_in_place(monkeypatch):
    weight, bias = torch.nn.Parameter(drawn(3, 4, 17)), torch.nn.Parameter(drawn(3, 4, seed=1))
    xs, isa = drawn(36, 17, seed=2).view(4, 9, 17), instruction_sets()[0]
    for x in xs:
        linear(x, weight, bias, isa).sum().backward()
    expected, weight.grad, bias.grad = (weight.grad, bias.grad), None, None
    with weights_unchanged():
        linear(xs[0], weight, bias, isa).sum().backward()
        sums, adds = (weight.grad, bias.grad), module.linear_weight_gradient
        given = list[tuple[object, ...]]()
        monkeypatch.setattr(module, "linear_weight_gradient", lambda *words: given.append(words[2:4]) or adds(*words))
        for x in xs[1:]:
            linear(x, weight, bias, isa).sum().backward()
        assert len(given) == 3 and all(of is own for pair in given for of, own in zip(pair, sums, strict=True))
    for own, plain in zip((weight.grad, bias.grad), expected, strict=True):
        assert_near(own, plain.double(), 1e-6)


@pytest.mark.parametrize(("num_in", "num_out"), [(0, 5), (7, 0)])
def test_a_layer_without_columns_gives_its_bias_and_zeros(num_in, num_out):
    x, weight = drawn(2, 3, num_in).requires_grad_(), torch.nn.Parameter(drawn(num_out, num_in))
    bias = torch.nn.Parameter(drawn(num_out))
    y = linear(x, weight, bias, instruction_sets()[0])
    assert torch.equal(y, bias.expand(2, 3, num_out))
    y.sum().backward()
    assert torch.equal(x.grad, torch.zeros(2, 3, num_in))
    assert weight.grad.shape == weight.shape
    assert torch.equal(bias.grad, torch.full((num_out,), 6.0))


def test_hooks_see_every_gradient():
    weight, isa, seen = torch.nn.Parameter(drawn(5, 7)), instruction_sets()[0], []
    weight.register_post_accumulate_grad_hook(lambda parameter: seen.append(parameter.grad.clone()))
    with weights_unchanged():
        for _ in range(3):
            linear(torch.ones(2, 7), weight, None, isa).sum().backward()
    assert [int(grad[0, 0]) for grad in seen] == [2, 4, 6]


def test_a_changed_weight_is_packed_again():
    weight, x, isa = torch.nn.Parameter(torch.ones(4, 3)), torch.ones(2, 3), instruction_sets()[0]
    for value in (1.0, 2.0, 3.0):
        with torch.no_grad():
            torch._fused_sgd_([weight.detach()], [weight - value], [], lr=1.0, **_PLAIN)  # which moves no version
        with weights_unchanged():
            assert linear(x, weight, None, isa)[0, 0] == 3 * value
            assert linear(x, weight, None, isa)[0, 0] == 3 * value
        weight.data = torch.full((4, 3), 5.0)
        assert linear(x, weight, None, isa)[0, 0] == 15


@pytest.mark.parametrize("recomputes", [False, True])
def test_a_weight_is_packed_once_while_it_does_not_change(monkeypatch, recomputes):
    packed = noting_packs(monkeypatch)
    weight, isa = torch.nn.Parameter(torch.ones(4, 3)), instruction_sets()[0]
    compute = recomputed(linear) if recomputes else linear
    for _ in range(2):
        with weights_unchanged():
            for _ in range(3):
                compute(torch.ones(2, 3, requires_grad=True), weight, None, isa).sum().backward()
    assert torch.equal(weight.grad, torch.full((4, 3), 12.0))
    assert len(packed) == 4, "for the output and for the gradient, in each of two periods"
    for _ in range(2):
        linear(torch.ones(2, 3), weight, None, isa)
    assert len(packed) == 6


def test_the_layers_take_the_native_form_only_where_it_is_chosen(monkeypatch):
    called = []

    def counted(*given, **options):
        called.append(given)
        return module.linear(*given, **options)

    monkeypatch.setattr("hornbook.ops.layers.native_linear", counted)
    x, weight = drawn(4, 6), drawn(5, 6)
    for asked, expected in (("torch", 0), ("native", 1)):
        use(choose(asked, x.device, x.dtype))
        called.clear()  # trials call it, too
        assert_near(any_linear(x, weight, None), x.double() @ weight.double().t(), 1e-6)
        assert len(called) == expected
    any_linear(x.bfloat16(), weight, None)  # the choice was for fp32
    any_linear(x.double(), weight.double(), None)
    assert len(called) == 1
