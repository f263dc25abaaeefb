"""Block-sparse linear maps in models: sizes, initial values, and the dense model that they stand for."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from tiny import hidden_states, random_batch, randomize, tiny_config
from tiny_encoders import lay_out, loss_of, make_samples, tiny_encoder_config

from hornbook.config import CausalLMConfig, MaskedLMConfig, PretrainingConfig, Recipe, SparsityConfig
from hornbook.config.sparsity import linears_of
from hornbook.errors import UserError
from hornbook.generate import generate
from hornbook.generate.decoder import PlainDecoder, make_decoder
from hornbook.model import LanguageModel, build_model, initialize, model_of
from hornbook.model.attention import QueryKeyValue
from hornbook.model.language_model import forward_resident
from hornbook.model.layers import Linear
from hornbook.model.sparse_layers import dense_weights, sparse_layers
from hornbook.ops.block_sparse import prepare_compilation
from hornbook.sparse import BlockSparseLinear

CONFIGS = {
    "gpt": tiny_config(),
    "bert": tiny_encoder_config("bert"),
    "roberta": tiny_encoder_config("roberta"),
    "groupbert": tiny_encoder_config("groupbert"),
}
families = pytest.mark.parametrize("family", CONFIGS)


def sparse_recipe(family: str = "gpt", **changes) -> Recipe:
    sparsity = SparsityConfig(**{"linears": ("blocks.*",), "density": 0.3, "block_size": 4, **changes})
    objective = {"gpt": CausalLMConfig(), "bert": PretrainingConfig()}.get(family, MaskedLMConfig())
    return replace(Recipe(), model=CONFIGS[family], objective=objective, sparsity=sparsity)


def sparse_model(recipe: Recipe, seed: int = 7) -> LanguageModel:
    with torch.device("meta"):
        model = model_of(recipe, torch.float32)
    model.allocate(torch.device("cpu"))
    initialize(model, seed)
    return model.eval()


def dense_twin(recipe: Recipe, model: LanguageModel) -> LanguageModel:
    """The dense model with the matrices that the blocks make up."""
    twin = build_model(recipe.model, torch.float32).eval()
    weights = dense_weights(model.saved_tensors(), model)
    assert weights.keys() == twin.saved_tensors().keys()
    with torch.no_grad():
        for name, tensor in twin.saved_tensors().items():
            tensor.copy_(weights[name])
    return twin


@pytest.mark.parametrize("block_size", [1, 4, 8, 16, 32, 64, 128])
@pytest.mark.parametrize("density", [0.2, 0.37, 1.0])
def test_a_layer_of_its_own_computes_its_dense_matrix(block_size: int, density: float) -> None:
    layer = BlockSparseLinear(384, 256, block_size=block_size, density=density, seed=1, name="up")
    assert layer.values.shape == (math.ceil(density * 384 * 256 / block_size**2), block_size, block_size)
    x = torch.randn(3, 5, 384, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(layer(x), x @ layer.to_dense().t() + layer.bias)
    assert not (layer.to_dense() != 0).all() or density == 1.0
    # a sum of as many weights, of as much more variance: outputs are as large as those of a dense layer
    assert layer(x).std().item() == pytest.approx(1.0, rel=0.25)


@pytest.mark.parametrize("kernel", ["reference", "torch", "auto"])
def test_positions_from_elsewhere_are_checked_before_they_are_used(kernel: str) -> None:
    layer = BlockSparseLinear(32, 64, block_size=8, density=0.4, kernel=kernel, name="up")
    x, good = torch.ones(2, 32), {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    expected = layer(x)
    for name, value in (("rows", 8), ("rows", -1), ("columns", 2**31 - 1), ("columns", 0)):
        layer.load_state_dict({**good, name: torch.full_like(good[name], value)})
        with pytest.raises(UserError, match="the positions of a block-sparse layer are wrong: ") as caught:
            layer(x)
        assert "\n" not in str(caught.value)
    layer.load_state_dict(good)
    assert torch.equal(layer(x), expected)


def test_positions_and_weights_are_a_function_of_seed_and_name() -> None:
    def tensors(seed: int, name: str) -> list[torch.Tensor]:
        layer = BlockSparseLinear(64, 64, block_size=8, density=0.25, seed=seed, name=name)
        return [layer.values.detach(), layer.rows, layer.columns]

    first = tensors(1, "up")
    assert all(map(torch.equal, first, tensors(1, "up")))
    for other in (tensors(2, "up"), tensors(1, "down")):
        assert not torch.equal(first[0], other[0]) and not torch.equal(first[2], other[2])


def test_a_layer_learns_and_is_saved_like_any_module() -> None:
    layer = BlockSparseLinear(32, 48, block_size=16, density=0.5, num_parts=3)
    update = torch.optim.SGD(layer.parameters(), lr=2.0)
    x = torch.randn(20, 32, generator=torch.Generator().manual_seed(0))
    losses = []
    for _ in range(5):
        loss = (layer(x) - 1.0).square().mean()
        loss.backward()
        update.step()
        update.zero_grad()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.9 * losses[0]
    other = BlockSparseLinear(32, 48, block_size=16, density=0.5, num_parts=3, seed=9)
    before = other(x)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x)) and not torch.equal(before, other(x))  # its pattern is derived again


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_size": 5}, "must be 1, 4, 8, 16, 32, 64 or 128"),
        ({"block_size": 32}, "does not divide"),
        ({"density": 0.05}, "leaves no block"),
    ],
)
def test_impossible_sizes_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        BlockSparseLinear(16, 64, **{"block_size": 16, "density": 0.5, **changes})


@families
def test_the_recipe_knows_the_linear_maps_of_the_model(family: str) -> None:
    model = build_model(CONFIGS[family], torch.float32)
    maps = {name: part for name, part in model.named_modules() if isinstance(part, Linear | QueryKeyValue)}
    listed = linears_of(CONFIGS[family])
    assert maps.keys() == listed.keys()
    for name, part in maps.items():
        *parts, num_out, num_in = part.weight.shape
        assert listed[name] == (math.prod(parts) * num_out, num_in, math.prod(parts))


@families
@pytest.mark.parametrize("distribution", ["uniform", "erdos_renyi"])
def test_parameters_and_flops_are_those_of_the_blocks(family: str, distribution: str) -> None:
    recipe = sparse_recipe(family, distribution=distribution)
    model = sparse_model(recipe)
    assert recipe.num_parameters() == model.num_parameters < recipe.model.num_parameters()
    dense = replace(recipe, sparsity=SparsityConfig())
    absent = recipe.model.num_parameters() - model.num_parameters
    assert dense.flops_per_token(8.0) - recipe.flops_per_token(8.0) == pytest.approx(6.0 * absent)
    layers = sparse_layers(model)
    assert layers.keys() == {name for name in linears_of(recipe.model) if name.startswith("blocks.")}
    total = sum(math.prod(shape[:2]) for name, shape in linears_of(recipe.model).items() if name in layers)
    assert sum(layer.values.numel() for layer in layers.values()) / total == pytest.approx(0.3, abs=0.04)


def test_large_matrices_are_sparser_in_an_erdos_renyi_model() -> None:
    densities = {
        name: layer.density
        for name, layer in sparse_layers(sparse_model(sparse_recipe(distribution="erdos_renyi"))).items()
    }
    assert densities["blocks.0.feed_forward.up"] < 0.3 < densities["blocks.0.attention.out"]


@families
@pytest.mark.parametrize("kernel", ["reference", "torch"])
def test_a_sparse_model_computes_what_its_dense_twin_does(family: str, kernel: str) -> None:
    recipe = sparse_recipe(family, kernel=kernel)
    model = sparse_model(recipe)
    randomize(model)
    twin = dense_twin(recipe, model)
    if family == "gpt":
        batch = random_batch(2, 9)
        torch.testing.assert_close(hidden_states(model, batch), hidden_states(twin, batch))
        return
    batch = lay_out(make_samples([5, 9, 3]), "packed")
    torch.testing.assert_close(loss_of(model, batch), loss_of(twin, batch))


def test_generation_keeps_its_cache() -> None:
    recipe = sparse_recipe()
    model = sparse_model(recipe)
    randomize(model)
    decoder = make_decoder(model)
    assert type(decoder).__name__ == "CachedDecoder"
    with torch.no_grad():
        logits = PlainDecoder(model, forward_resident).start([[1, 2, 3]], 5)
    torch.testing.assert_close(decoder.start([[1, 2, 3]], 5), logits)
    texts = [generate(part, [1, 2, 3], num_tokens=20, seed=0) for part in (model, dense_twin(recipe, model))]
    assert texts[0] == texts[1]


def test_the_patterns_of_layers_and_of_query_key_and_value_differ() -> None:
    layers = sparse_layers(sparse_model(sparse_recipe()))
    first, second = layers["blocks.0.attention.qkv"], layers["blocks.1.attention.qkv"]
    assert first.rows.shape[0] == 3 and first.values.shape == (3, first.rows.shape[1], 4, 4)
    found = {tuple(layer.columns[part].tolist()) for layer in (first, second) for part in range(3)}
    assert len(found) == 6


def test_a_model_of_ones_own_is_asked_for_its_linear_maps() -> None:
    class OwnConfig(type(CONFIGS["gpt"])):
        description = None

    recipe = replace(sparse_recipe(), model=OwnConfig(**vars(CONFIGS["gpt"])))
    assert not [*recipe.sparsity.conflicts(recipe.model, recipe.parallel)]
    with pytest.raises(UserError, match="no linear layer; layers have names such as"):
        sparse_model(replace(recipe, sparsity=SparsityConfig(linears=("nothing.*",), block_size=4)))


def test_a_description_that_is_not_the_models_is_refused() -> None:
    """As one gets by inheriting the options of another family."""

    @dataclass(frozen=True, kw_only=True)
    class OwnConfig(type(CONFIGS["gpt"])):
        pass

    @build_model.register
    def _(config: OwnConfig, compute_dtype: torch.dtype) -> LanguageModel:
        return build_model(replace(CONFIGS["gpt"], feed_forward_size=12), compute_dtype)

    recipe = replace(sparse_recipe(), model=OwnConfig(**vars(CONFIGS["gpt"])), sparsity=SparsityConfig())
    with torch.device("meta"), pytest.raises(UserError, match=r"blocks.0.feed_forward.up.weight is \[12, .*OwnConfig"):
        model_of(recipe, torch.float32)


def test_a_picture_has_a_digit_a_place() -> None:
    layer = BlockSparseLinear(8, 8, block_size=1, density=0.25, num_parts=2)
    lines = layer.picture(most=4)
    assert len(lines) == 4 and all(len(line) == 4 for line in lines)
    dense = (layer.to_dense().view(8, 8) != 0).float()
    for at, line in enumerate(lines):
        for column, digit in enumerate(line):
            share = dense[2 * at : 2 * at + 2, 2 * column : 2 * column + 2].mean().item()
            assert int(digit, 16) == math.ceil(share * 15)


def test_the_meta_device_gives_the_shapes_of_a_layer() -> None:
    with torch.device("meta"):
        layer = BlockSparseLinear(32, 48, block_size=8, density=0.3)
        y = layer(torch.empty(2, 5, 32).requires_grad_())
    assert y.is_meta and y.shape == (2, 5, 48)
    y.sum().backward()
    assert layer.values.grad.shape == layer.values.shape


@pytest.mark.slow
@pytest.mark.filterwarnings("default::DeprecationWarning")  # PyTorch's own, while it compiles
@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0:RuntimeWarning")
@pytest.mark.parametrize("kernel", ["auto", "reference", "torch"])
def test_a_block_with_sparse_maps_compiles_to_one_graph(kernel: str) -> None:
    recipe = sparse_recipe()
    recipe = replace(recipe, sparsity=replace(recipe.sparsity, kernel=kernel))
    with torch.device("meta"):
        model = model_of(recipe, torch.float32)
    model.allocate(torch.device("cpu"))
    initialize(model, 7)
    block, batch = model.blocks[0], random_batch(2, 9)
    prepare_compilation()
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    x_BTD = torch.randn(2, 9, recipe.model.hidden_size, generator=torch.Generator().manual_seed(0))
    found = []
    for moved in (False, True):
        layer = block.feed_forward.up
        if moved:  # the pattern is an input of the graph
            first = torch.arange(len(layer.rows))
            layer.rows.copy_(first // layer.grid_shape[1])
            layer.columns.copy_(first % layer.grid_shape[1])
        for module in (block, compiled):
            block.zero_grad()
            y_BTD = module(x_BTD, model.make_context(batch))
            y_BTD.square().sum().backward()
            found.append((y_BTD.detach(), layer.values.grad.clone()))
    for eager, graph in (found[:2], found[2:]):
        for ours, theirs in zip(eager, graph, strict=True):
            torch.testing.assert_close(ours, theirs)
    assert not torch.equal(found[0][0], found[2][0])
