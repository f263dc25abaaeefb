"""Updates of patterns in training steps: what moves, what stays, and the dense oracle beside it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import random_batch, split, tiny_config
from torch import Tensor

from hornbook.config import AdamWConfig, LambConfig, MuonConfig, PrecisionConfig, Recipe, SparsityConfig, TrainingConfig
from hornbook.config.optimizers import ConstantConfig, MomentsConfig
from hornbook.engine.build_training import build_training
from hornbook.engine.state import TrainState
from hornbook.engine.step import StepConfig, StepResult, train_step
from hornbook.model import build_model
from hornbook.model.initialize import generator
from hornbook.model.sparse_layers import BlockSparseLinear, dense_weights, sparse_layers
from hornbook.objective import CausalLM
from hornbook.optim.muon import orthogonalize
from hornbook.parallel.world import World
from hornbook.samples.batches import Batch
from hornbook.samples.windows import NOT_SCORED

UPDATES = ["random", "rigl", "rigl_norm", "rigl_sample"]


def recipe_of(optimizer: object = None, num_steps: int = 20, **changes) -> Recipe:
    defaults = {"linears": ("blocks.*",), "density": 0.3, "block_size": 4, "update": "rigl", "update_interval": 3}
    return replace(
        Recipe(),
        model=tiny_config(),
        training=TrainingConfig(steps=num_steps, seed=5),
        sparsity=SparsityConfig(**{**defaults, **changes}),
        optimizer=optimizer or AdamWConfig(learning_rate=3e-3),
        schedule=ConstantConfig(warmup_steps=0),
        precision=PrecisionConfig(compute="fp32"),
    )


def begin(recipe: Recipe) -> tuple[TrainState, StepConfig]:
    state, config = build_training(recipe, recipe.training.steps, World())
    state.model.train()
    return state, config


def step(state: TrainState, config: StepConfig, size: int = 2) -> StepResult:
    return train_step(state, split(random_batch(4, 8, seed=state.progress.step), size), config)


def tensors(state: TrainState) -> dict[str, Tensor]:
    groups = state.home.tensors().values()
    return {name: shard.values.clone() for group in groups for name, shard in group.items()}


@pytest.mark.parametrize(("update", "stored"), [*((update, "fp32") for update in UPDATES), ("rigl", "bf16")])
def test_an_update_moves_some_blocks_and_keeps_the_others_bit_for_bit(update: str, stored: str) -> None:
    names = ("weights", "gradients", "first_moment", "second_moment")
    precision = PrecisionConfig(compute="fp32", **dict.fromkeys(names, stored))
    state, config = begin(replace(recipe_of(update=update, update_interval=2), precision=precision))
    other, static = begin(replace(recipe_of(update="static"), precision=precision))
    for _ in range(2):
        result = step(state, config)
        step(other, static)
    moved, stayed = tensors(state), tensors(other)
    assert [row["layer"] for row in result.rewired] == list(sparse_layers(state.model))
    for name, layer in sparse_layers(state.model).items():
        for part in range(layer.num_parts):

            def of_part(found: dict[str, Tensor], kind: str, name=name, layer=layer, part=part) -> Tensor:
                tensor = found[f"{name}.{kind}"]
                return tensor[part] if layer.num_parts > 1 else tensor

            places = [
                list(zip(of_part(found, "rows").tolist(), of_part(found, "columns").tolist(), strict=True))
                for found in (moved, stayed)
            ]
            assert len(set(places[0])) == len(places[1]) and places[0] == sorted(places[0])
            grown_at, old = of_part(moved, "grown_at").tolist(), dict(zip(places[1], range(99), strict=False))
            assert 0 < sum(map(bool, grown_at)) < len(grown_at)
            for number, place in enumerate(places[0]):
                for kind in ("values", "values.exp_avg", "values.exp_avg_sq"):
                    now = of_part(moved, kind)[number]
                    if grown_at[number]:
                        assert place not in old and grown_at[number] == 2 and not now.any()
                    else:
                        assert torch.equal(now, of_part(stayed, kind)[old[place]])
    dense = {name for name in moved if not any(name.startswith(f"{layer}.") for layer in sparse_layers(state.model))}
    dense |= {name for name in moved if ".bias" in name}
    assert all(torch.equal(moved[name], stayed[name]) for name in dense)


def test_scores_are_collected_on_steps_that_need_them_alone() -> None:
    state, config = begin(recipe_of(update_interval=3, num_steps=8))  # the pattern stays from step 6 on
    rewired = []
    for _ in range(8):
        rewired.append(bool(step(state, config).rewired))
        assert all(layer.scores is None for layer in sparse_layers(state.model).values())
    assert rewired == [False, False, True, False, False, False, False, False]


@pytest.mark.parametrize("beta2", [0.95, 0.999])
def test_the_first_step_of_a_grown_block_is_the_smaller_of_two(beta2: float) -> None:
    """With the run's count, it would be several times the rate for a large β₂, and is half of it for a small one."""
    optimizer = AdamWConfig(learning_rate=3e-3, beta2=beta2, weight_decay=0.0, clip_norm=None)
    state, config = begin(recipe_of(optimizer, update_interval=10, num_steps=40, learning_rate_scale=1.0))
    for _ in range(10):
        step(state, config)
    layer = sparse_layers(state.model)["blocks.0.feed_forward.up"]
    is_new = layer.grown_at > 0
    assert is_new.any()
    step(state, config)
    moves = layer.values.detach()[is_new].abs()
    by_count = 0.1 / (1 - 0.9**11) * math.sqrt((1 - beta2**11) / (1 - beta2))
    assert moves.max() / 3e-3 == pytest.approx(by_count if beta2 == 0.95 else 1.0, rel=1e-3)


class MaskedDense:
    """The same training by hand: a dense model, masks, Adam with a count for each weight or one, and growth in NumPy.

    What it takes over from the sparse run are its initial weights, positions and random numbers.
    """

    def __init__(self, recipe: Recipe, state: TrainState) -> None:
        self.recipe, self.config = recipe, recipe.sparsity
        self.model = build_model(recipe.model, torch.float32).train()
        weights = dense_weights(state.model.saved_tensors(), state.model)
        with torch.no_grad():
            self.model.embedding.tokens.zero_()  # the rows of its padding
            for name, tensor in self.model.saved_tensors().items():
                tensor.copy_(weights[name])
        self.parameters = dict(self.model.own_parameters())
        self.moments = {name: (value.detach() * 0, value.detach() * 0) for name, value in self.parameters.items()}
        self.masks, self.born, self.scales = {}, {}, {}
        for name, layer in sparse_layers(state.model).items():
            self.masks[f"{name}.weight"] = self.grids(layer)
            self.born[f"{name}.weight"] = np.zeros_like(self.grids(layer), dtype=np.int64)
            self.scales[f"{name}.weight"] = self.config.rate_scale(layer.density)

    def grids(self, layer: BlockSparseLinear) -> np.ndarray:
        """Where a layer has blocks: bool ``[parts, R, C]``."""
        grid = np.zeros((layer.num_parts, *layer.grid_shape), dtype=bool)
        for part, rows, columns in zip(grid, layer.in_parts(layer.rows), layer.in_parts(layer.columns), strict=True):
            part[rows, columns] = True
        return grid

    def spread(self, grid: np.ndarray, like: Tensor) -> Tensor:
        """A number a block as a number a weight."""
        size = self.config.block_size
        return torch.from_numpy(grid.repeat(size, 1).repeat(size, 2)).view(like.shape)

    def pool(self, weights: Tensor, grid: np.ndarray) -> np.ndarray:
        """The sum of the absolute weights of each block."""
        parts, rows, columns = grid.shape
        size = self.config.block_size
        return weights.detach().abs().view(parts, rows, size, columns, size).sum((2, 4)).double().numpy()

    def step(self, batch: Batch, number: int, size: int) -> float:
        """One training step; the loss before it."""
        gradients = {name: torch.zeros_like(value) for name, value in self.parameters.items()}
        scores = {name: np.zeros(grid.shape) for name, grid in self.masks.items()}
        count, total = int((batch["targets"] != NOT_SCORED).sum()), 0.0
        for micro_batch in split(batch, size):
            loss = self.model(CausalLM().sums, micro_batch)["causal_lm"] / count
            loss.backward()
            self.model.fold_tied_gradients()
            total += loss.item()
            for name, value in self.parameters.items():
                if name in self.masks:
                    scores[name] += self.pool(value.grad, self.masks[name])
                    value.grad *= self.spread(self.masks[name], value)
                gradients[name] += value.grad
            self.model.zero_grad()
        norm = torch.cat([gradient.flatten() for gradient in gradients.values()]).norm()
        limit = self.recipe.optimizer.clip_norm
        for name, value in self.parameters.items():
            is_muons = isinstance(self.recipe.optimizer, MuonConfig) and name in self.masks
            (self.muon if is_muons else self.adam)(
                name, value.detach(), gradients[name] * min(1.0, limit / norm), number
            )
        if self.config.update != "static" and number % self.config.update_interval == 0 and number < 0.75 * 50:
            for name in self.masks:
                self.rewire(name, scores[name], number)
        return total

    def adam(self, name: str, value: Tensor, gradient: Tensor, number: int) -> None:
        config, (mean, square) = self.recipe.optimizer, self.moments[name]
        age, mask = torch.tensor(number).double(), torch.tensor(1.0)  # 1 - 0.999 has four digits in fp32
        if name in self.masks:
            mask = self.spread(self.masks[name], value)
            if (1 - config.beta1) ** 2 > 1 - config.beta2:
                age = (number - self.spread(self.born[name], value)).double()
        rate = config.learning_rate * self.scales.get(name, 1.0)
        if value.dim() > 1 and not name.endswith("bias"):
            value *= 1 - rate * config.weight_decay
        mean.copy_(config.beta1 * mean + (1 - config.beta1) * gradient)
        square.copy_(config.beta2 * square + (1 - config.beta2) * gradient**2)
        move = (mean / (1 - config.beta1**age)) / ((square / (1 - config.beta2**age)).sqrt() + config.epsilon)
        value -= rate * move * mask

    def muon(self, name: str, value: Tensor, gradient: Tensor, number: int) -> None:
        config, momentum, mask = self.recipe.optimizer, self.moments[name][0], self.spread(self.masks[name], value)
        rate = config.learning_rate * self.scales[name]
        value *= 1 - rate * config.weight_decay
        momentum.copy_(config.momentum * momentum + (1 - config.momentum) * gradient)
        direction = (1 - config.momentum) * gradient + config.momentum * momentum
        move = orthogonalize([direction], config.polynomials)[0] * mask
        rows, columns = value.shape[-2:]
        mean = move.square().sum((-2, -1), keepdim=True) / mask.sum((-2, -1), keepdim=True)
        value -= rate * math.sqrt(max(1, rows / columns)) * move / (mean * max(rows, columns)).sqrt()

    def rewire(self, name: str, scores: np.ndarray, number: int) -> None:
        value, mask = self.parameters[name].detach(), self.masks[name]
        random = generator(self.recipe.training.seed, f"{name.removesuffix('.weight')}.growth.{number}")
        sizes, grown = self.pool(value, mask), np.zeros_like(mask)
        for part in range(len(mask)):
            growth = scores[part]
            if self.config.update == "random":
                growth = torch.rand(growth.shape, dtype=torch.float64, generator=random).numpy()
            most = math.ceil(self.config.prune_ratio * mask[part].sum())
            replaced = math.ceil(most * 0.5 * (1 + math.cos(math.pi * number / (0.75 * 50))))
            order = np.argsort(np.where(mask[part], sizes[part], np.inf), axis=None, kind="stable")[:replaced]
            best = np.argsort(np.where(mask[part], np.inf, -growth), axis=None, kind="stable")[:replaced]
            mask[part].flat[order] = False
            mask[part].flat[best] = True
            grown[part].flat[best] = True
        self.born[name][grown] = number
        kept = self.spread(mask & ~grown, value)
        for tensor in (value, *self.moments[name]):
            tensor *= kept


_BY_ADAMW = AdamWConfig(learning_rate=5e-3, beta2=0.95, epsilon=1e-4)  # rounding errors grow with rate over epsilon
_BY_MUON = MuonConfig(
    learning_rate=5e-3,
    vector_learning_rate=5e-3,
    table_learning_rate=5e-3,
    products="fp32",
    beta1=0.9,
    beta2=0.95,
    epsilon=1e-4,
)


@pytest.mark.parametrize(
    ("update", "optimizer"),
    [
        ("rigl", _BY_ADAMW),
        ("rigl", _BY_MUON),
        pytest.param("random", replace(_BY_ADAMW, beta2=0.999), marks=pytest.mark.slow),
        pytest.param("static", _BY_ADAMW, marks=pytest.mark.slow),
        pytest.param("rigl", replace(_BY_ADAMW, beta2=0.999), marks=pytest.mark.slow),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.name}-{value.beta2}",
)
def test_blocks_learn_what_masked_dense_matrices_learn(update: str, optimizer: MomentsConfig) -> None:
    recipe = recipe_of(
        optimizer,
        num_steps=50,
        update=update,
        update_interval=10,
        kernel="torch",
        learning_rate_scale=2.0,
    )
    state, config = begin(recipe)
    oracle = MaskedDense(recipe, state)
    batches = [random_batch(4, 8, seed=seed, unscored=0.2) for seed in range(2)]
    losses, expected = [], []
    for number in range(1, 51):
        losses.append(train_step(state, split(batches[number % 2], 2), config).loss)
        expected.append(oracle.step(batches[number % 2], number, 2))
    assert losses == pytest.approx(expected, rel=1e-5)
    assert losses[-1] < 0.8 * losses[0]
    for name, layer in sparse_layers(state.model).items():
        assert np.array_equal(oracle.masks[f"{name}.weight"], oracle.grids(layer))
        assert (layer.grown_at > 0).any() == (update != "static")


def test_the_state_of_muons_blocks_is_counted() -> None:
    recipe = recipe_of(MuonConfig(row_moments=True))
    state, config = begin(recipe)
    step(state, config)
    states = state.home.tensors()["optimizer"]
    assert recipe.bytes_of_states() == sum(4 * shard.values.numel() for shard in states.values())
    kinds = {name.rpartition(".")[2] for name in states if ".values." in name}
    assert kinds == {"momentum"}


def test_lamb_and_accumulation_take_blocks() -> None:
    found = []
    for size in (4, 2):
        state, config = begin(recipe_of(LambConfig(learning_rate=1e-2), update="random"))
        found.append([step(state, config, size).loss for _ in range(8)])
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_a_skipped_step_changes_no_pattern() -> None:
    state, config = begin(recipe_of(update_interval=1))
    before = {name: tensor for name, tensor in tensors(state).items() if name.endswith((".rows", ".columns"))}
    with torch.no_grad():
        state.model.head.norm.weight[0] = float("nan")
    result = step(state, config)
    after = tensors(state)
    assert result.skipped and not result.rewired
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
