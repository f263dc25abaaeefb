"""Encoders as a whole: layouts, padding, dropout, switches, initial weights, dtypes. Parity is in tests/parity."""

import pytest
import torch
from native_forms import all_native, forms
from tiny import hidden_states
from tiny_encoders import (
    FAMILIES,
    LAYOUTS,
    distance,
    gradients_of,
    lay_out,
    loss_of,
    make_samples,
    tiny_encoder,
    tiny_encoder_config,
)

from hornbook.config import recipe_from_dict
from hornbook.config.optimizers import role_of
from hornbook.errors import RecipeError
from hornbook.model import build_model, initialize
from hornbook.model.attention import EncoderSelfAttention
from hornbook.ops import attention, sequence_groups
from hornbook.ops.native.kernels import using
from hornbook.samples.windows import NOT_SCORED

LENGTHS = [24, 3, 17, 9, 1, 24, 12, 6]
DROPOUTS = {"embedding_dropout": 0.2, "residual_dropout": 0.3, "attention_dropout": 0.4}


@pytest.mark.parametrize("dropouts", [{}, DROPOUTS], ids=["no dropout", "dropout"])
@pytest.mark.parametrize("family", FAMILIES)
def test_layouts_agree_in_loss_and_gradients(family, dropouts):
    model, samples = tiny_encoder(family, **dropouts), make_samples(LENGTHS)
    (first, expected), *others = (gradients_of(model, lay_out(samples, layout)) for layout in LAYOUTS)
    for loss, gradients in others:
        torch.testing.assert_close(loss, first, atol=1e-5, rtol=1e-5)
        assert distance(gradients, expected) < 1e-5
    if dropouts:
        assert not torch.allclose(loss_of(model.eval(), lay_out(samples, "padded")), first, atol=1e-3)


@pytest.mark.parametrize("dropouts", [{}, DROPOUTS], ids=["no dropout", "dropout"])
@pytest.mark.parametrize("compute_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_ways_of_other_devices_agree(monkeypatch, compute_dtype, dropouts):
    """On a CPU, products of its own are used; elsewhere fused attention, or with dropout the explicit one."""
    model, samples = tiny_encoder(compute_dtype=compute_dtype, **dropouts), make_samples(LENGTHS)
    results = []
    for fitting in (True, False):
        monkeypatch.setattr(attention, "is_blocked", lambda *_, fitting=fitting, **__: fitting)
        monkeypatch.setattr(sequence_groups, "_COARSE", 16 if fitting else 1000)
        results.append(gradients_of(model, lay_out(samples, "packed")))
    tolerance = 1e-5 if compute_dtype == torch.float32 else 2e-2
    torch.testing.assert_close(results[1][0], results[0][0], atol=tolerance, rtol=tolerance)
    assert distance(results[1][1], results[0][1]) < 3 * tolerance


def test_keys_of_places_are_made_once_a_micro_batch():
    """What attention needs of the keys is there before the first layer, in the order of the groups."""
    model, batch = tiny_encoder(**DROPOUTS), lay_out(make_samples(LENGTHS), "packed")
    context = model.make_context(batch)
    gather_index, is_token = context["gather_index"], context["is_token"]
    assert torch.equal(context["group_keys"][is_token], batch["keys"].flatten()[gather_index[is_token]])


def test_native_attention_has_no_groups_unless_a_module_may_be_a_users():
    forms()  # or skip
    model, batch = tiny_encoder(**DROPOUTS), lay_out(make_samples(LENGTHS), "packed")
    with using(all_native()):
        assert model.make_context(batch).keys() == {"keys", "firsts", "lengths"}
        model.blocks[1].attention.__class__ = type("Own", (EncoderSelfAttention,), {})
        assert "gather_index" in model.make_context(batch)


@pytest.mark.parametrize("family", FAMILIES)
def test_neither_the_order_of_the_sequences_nor_their_number_matters(family):
    """Alone, each sequence has the hidden states that it has in a batch; dropout included."""
    model, samples = tiny_encoder(family, **DROPOUTS), make_samples(LENGTHS)
    together = hidden_states(model, lay_out(samples[::-1], "packed")).flatten(0, 1)
    firsts = lay_out(samples[::-1], "packed")["firsts"].flip(0)
    for sample, first in zip(samples, firsts.tolist(), strict=True):
        alone = hidden_states(model, lay_out([sample], "unpadded"))[0]
        torch.testing.assert_close(together[first : first + len(alone)], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_is_finite_and_changes_nothing(family):
    model, samples = tiny_encoder(family), make_samples([5, 3])
    batch = lay_out(samples, "padded", num_columns=9)
    loss, gradients = gradients_of(model, batch)
    batch["tokens"][torch.arange(9) >= batch["lengths"].unsqueeze(1)] = 69
    assert hidden_states(model, batch).isfinite().all()
    other, others = gradients_of(model, batch)
    assert torch.equal(loss, other)
    assert distance(others, gradients) == 0.0
    assert all(gradient.isfinite().all() for gradient in others.values())


def test_a_sequence_of_no_tokens_is_left_out():
    model, samples = tiny_encoder(), make_samples([5, 3])
    batch = lay_out(samples, "padded")
    expected = loss_of(model, batch)
    batch["firsts"] = torch.cat([batch["firsts"], torch.tensor([0])])
    batch["lengths"] = torch.cat([batch["lengths"], torch.tensor([0])])
    batch["pair_labels"] = torch.cat([batch["pair_labels"], torch.tensor([NOT_SCORED])])
    x_BTD = hidden_states(model, batch)
    pairs, _ = model.head.relate(x_BTD, batch["firsts"], batch["pair_labels"])
    total, _ = model.head.predict(x_BTD, batch["predictions"], batch["targets"])
    torch.testing.assert_close(pairs / 2 + total / (batch["targets"] != NOT_SCORED).sum(), expected)


def test_no_sequence_at_all():
    """What a rank computes that has nothing left in an evaluation."""
    model = tiny_encoder("groupbert")
    empty = torch.empty(0, dtype=torch.int64)
    batch = lay_out(make_samples([5]), "padded") | {"firsts": empty, "lengths": empty, "targets": empty}
    x_BTD = hidden_states(model, batch)
    assert x_BTD.isfinite().all()
    loss, num_correct = model.head.predict(x_BTD, empty, empty)
    loss.backward()
    assert (float(loss.detach()), float(num_correct)) == (0.0, 0.0)


def test_a_token_sees_what_comes_after_it_and_no_other_sequence():
    model, samples = tiny_encoder(), make_samples([6, 6])
    before = hidden_states(model, lay_out(samples, "unpadded"))[0]
    samples[0].tokens[5] = (samples[0].tokens[5] + 1) % 70
    after = hidden_states(model, lay_out(samples, "unpadded"))[0]
    assert not torch.isclose(after[0], before[0]).any(-1).all()
    assert (after[0] - before[0]).abs().max() > 1e-3
    assert torch.equal(after[6:], before[6:])


@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_sites_are_all_different(family):
    model = build_model(tiny_encoder_config(family, num_layers=3), torch.float32)
    sites = [module.site for module in model.modules() if hasattr(module, "site")]
    assert sorted(sites) == list(range(len(sites)))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"vocab_size": 128, "num_segments": 5, "head_size": 5},
        {"qkv_bias": False, "projection_bias": False},
        {"head_transform": False, "prediction_bias": False, "feed_forward_size": 40},
    ],
    ids=str,
)
def test_number_of_parameters_is_the_formula_of_the_recipe(family, changes):
    config = tiny_encoder_config(family, **changes)
    model = build_model(config, torch.float32)
    by_hand = sum(model.logical(name, p).numel() for name, p in model.own_parameters())
    assert model.num_parameters == by_hand == config.num_parameters()


def test_the_tensorflow_bert_has_neither_biases_nor_a_transform():
    switches = dict.fromkeys(("qkv_bias", "projection_bias", "head_transform", "prediction_bias"), False)
    model = tiny_encoder(layer_norm_epsilon=1e-3, **switches)
    names = {name for name, _ in model.own_parameters()}
    assert not {name for name in names if "qkv.bias" in name or "out.bias" in name or "transform" in name}
    assert "head.bias" not in names
    batch = lay_out(make_samples(LENGTHS), "packed")
    x_BTD = hidden_states(model, batch)
    places = batch["predictions"][:4]
    table = model.embedding.tokens[:70]
    torch.testing.assert_close(model.head.logits(x_BTD.flatten(0, 1)[places]), x_BTD.flatten(0, 1)[places] @ table.t())
    gradients_of(model, batch)


@pytest.mark.parametrize("family", FAMILIES)
def test_initial_weights_are_a_function_of_seed_and_name(family):
    models = [build_model(tiny_encoder_config(family), torch.float32) for _ in range(3)]
    for model, seed in zip(models, (1, 1, 2), strict=True):
        initialize(model, seed)
    first, again, other = (dict(model.own_parameters()) for model in models)
    assert all(torch.equal(first[name], again[name]) for name in first)
    drawn = {name for name, p in first.items() if p[: len(models[0].logical(name, p))].std() > 0.005}
    assert drawn == {name for name, p in first.items() if p.dim() > 1 and not name.endswith("bias")}
    assert not any(torch.equal(first[name], other[name]) for name in drawn)


def test_groupbert_starts_from_a_normal_distribution_cut_at_two_deviations():
    model = build_model(tiny_encoder_config("groupbert", hidden_size=128), torch.float32)
    initialize(model, 5)
    weights = torch.cat(
        [
            p.flatten()
            for name, p in model.own_parameters()
            if role_of(name, p.shape) == "matrix" and "tokens" not in name
        ]
    ).detach()
    assert 0.0399 < float(weights.abs().max()) <= 0.04
    assert float(weights.std()) == pytest.approx(0.02 * 0.87963, rel=0.01)
    assert float(weights.mean()) == pytest.approx(0.0, abs=1e-4)
    share = float((weights.abs() < 0.02).double().mean())
    assert share == pytest.approx(0.68269 / 0.95450, rel=0.01)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_compute_dtype_is_that_of_all_activations(family, layout):
    model = tiny_encoder(family, compute_dtype=torch.bfloat16, **DROPOUTS)
    dtypes = {}
    for name, module in model.named_modules():
        module.register_forward_hook(lambda _module, _args, output, name=name: dtypes.update({name: output.dtype}))
    batch = lay_out(make_samples(LENGTHS), layout)
    loss, gradients = gradients_of(model, batch)
    assert len(dtypes) > 10
    assert set(dtypes.values()) == {torch.bfloat16}
    assert loss.dtype == torch.float32
    assert {gradient.dtype for gradient in gradients.values()} == {torch.float32}
    exact, _ = gradients_of(tiny_encoder(family, **DROPOUTS), batch)
    torch.testing.assert_close(loss, exact, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("family", FAMILIES)
def test_entries_of_the_head_agree(family):
    model = tiny_encoder(family).eval()
    batch = lay_out(make_samples(LENGTHS), "packed")
    x_BTD = hidden_states(model, batch)
    places, targets = batch["predictions"], batch["targets"]
    total, num_correct = model.head.predict(x_BTD, places, targets)
    losses = model.head.token_losses(x_BTD, places, targets)
    logits = model.head.logits(x_BTD.flatten(0, 1)[places])
    assert losses.shape == targets.shape
    assert logits.shape == (len(targets), 70)
    assert (losses[targets == NOT_SCORED] == 0).all()
    torch.testing.assert_close(losses.sum(), total.detach())
    assert num_correct == (logits.argmax(-1) == targets).sum()
    assert not num_correct.requires_grad
    with torch.no_grad():
        again, num_again = model.head.predict(x_BTD, places, targets)
    torch.testing.assert_close(again, total.detach())
    assert num_again == num_correct


def test_pooled_is_one_vector_a_sequence():
    model, samples = tiny_encoder().eval(), make_samples(LENGTHS)
    batches = [lay_out(samples, layout) for layout in LAYOUTS]
    pooled = [model.head.pooled(hidden_states(model, batch), batch["firsts"]) for batch in batches]
    assert pooled[0].shape == (len(samples), 32)
    for other in pooled[1:]:
        torch.testing.assert_close(other, pooled[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("bert", {"num_heads": 5}, "hidden_size must be divisible by num_heads"),
        ("groupbert", {"convolution_kernel": 4}, "must be odd"),
        ("groupbert", {"convolution_group_size": 5}, "divisible by convolution_group_size"),
        ("groupbert", {"feed_forward_groups": 3, "feed_forward_size": 30}, "divisible by feed_forward_groups"),
        ("roberta", {"convolution_kernel": 3}, 'applies only to model.family = "groupbert"'),
    ],
)
def test_what_does_not_fit_together_is_reported(family, options, message):
    model = {"family": family, "hidden_size": 32, "num_heads": 4, **options}
    with pytest.raises(RecipeError, match=message):
        recipe_from_dict({"name": "x", "model": model, "training": {"steps": 1}})
