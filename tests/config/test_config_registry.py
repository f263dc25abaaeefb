from dataclasses import dataclass

import pytest

from hornbook.config import (
    CosineConfig,
    GPTConfig,
    Problem,
    Recipe,
    TrainingConfig,
    UnknownPart,
    choices,
    load_recipe,
    option,
    options,
    recipe_from_dict,
    recipe_to_dict,
    recipe_to_toml,
    register,
)
from hornbook.errors import RecipeError, UserError
from hornbook.exchange.contents import refuse_unknown_parts


@dataclass(frozen=True, kw_only=True)
class MineConfig:
    """A third party's model."""

    family: str = option("mine", help="kind of model")
    vocab_size: int | None = option(None, help="tokens", minimum=1)
    max_positions: int = option(64, help="positions", minimum=1)
    num_experts: int = option(4, help="experts", minimum=1)
    top_experts: int = option(2, help="experts of a token", minimum=1)

    def problems(self) -> list[Problem]:
        if self.top_experts > self.num_experts:
            return [Problem(("top_experts", "num_experts"), "top_experts must not exceed num_experts")]
        return []


@pytest.fixture
def mine(monkeypatch):
    monkeypatch.setitem(options._CHOICES, "model", dict(options._CHOICES["model"]))
    register("model", "mine", MineConfig)


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[model]\nfamily = "mine"\nnum_experts = 8\n[data]\ntrain = "x"\n[training]\nsteps = 1\n')
    return str(path)


def test_the_package_registers_its_own():
    assert choices("model")["gpt"] is GPTConfig
    assert choices("schedule")["cosine"] is CosineConfig
    assert set(choices("schedule")) >= {"constant", "linear", "cosine"}


def test_a_third_party_model_is_an_ordinary_choice(mine, recipe):
    resolved = load_recipe(recipe, ["--model.top-experts", "3"])
    assert resolved.recipe.model == MineConfig(num_experts=8, top_experts=3)
    assert recipe_from_dict(recipe_to_dict(resolved.recipe)) == resolved.recipe
    assert "top_experts = 3" in recipe_to_toml(resolved.recipe)


def test_its_own_checks_are_reported(mine, recipe):
    with pytest.raises(RecipeError) as caught:
        load_recipe(recipe, ["--model.top-experts", "9"])
    (problem,) = caught.value.problems
    assert problem.startswith("model.top_experts = 9 (command line), model.num_experts = 8 (")
    assert problem.endswith("mine.toml:3): top_experts must not exceed num_experts")


def test_options_of_another_family_do_not_apply(mine, recipe):
    with pytest.raises(RecipeError) as caught:
        load_recipe(recipe, ["--model.num-layers", "2"])
    assert caught.value.problems == [
        'model.num_layers (command line): applies only to model.family = "gpt", "bert", "roberta", "groupbert", '
        '"decoder", "factorized_gpt" or "modernbert", not "mine"; remove it or change model.family'
    ]


def test_without_registration_the_family_is_unknown(recipe):
    with pytest.raises(RecipeError) as caught:
        load_recipe(recipe)
    (problem,) = caught.value.problems  # its options may well be those of the unknown family
    assert problem.startswith('model.family = "mine" (') and 'no such choice, expected one of "gpt"' in problem


@pytest.mark.parametrize(
    ("section", "tag", "what"),
    [("model", "family", "of the family"), ("objective", "name", "made with the objective")],
)
def test_a_stored_recipe_with_an_unregistered_part(section, tag, what):
    document = {section: {tag: "mine", "num_experts": 8}}
    with pytest.raises(RecipeError) as caught:
        refuse_unknown_parts(document, "runs/mine")
    assert str(caught.value) == (
        f'runs/mine has a model {what} "mine", which hornbook does not have: run this command with the script '
        "that registers it, python SCRIPT.py instead of hornbook"
    )


def test_a_stored_recipe_names_the_script_of_a_part_of_ones_own(mine, recipe):
    stored = recipe_to_dict(load_recipe(recipe).recipe)
    assert stored["scripts"] == {"model": __file__}
    assert "scripts" not in recipe_to_dict(Recipe())
    stored["model"]["family"] = "of_another_process"
    with pytest.raises(RecipeError, match=f"with the script that registers it, python {__file__} instead of hornbook"):
        refuse_unknown_parts(stored, "runs/mine")
    stored["scripts"]["model"] = "mine.py; rm x"
    with pytest.raises(RecipeError, match=r"python 'mine\.py; rm x' instead"):
        refuse_unknown_parts(stored, "runs/mine")


@pytest.mark.parametrize("section", ["objective", "optimizer", "schedule"])
def test_only_training_needs_a_part_other_than_the_model(section):
    stored = recipe_to_dict(Recipe(training=TrainingConfig(steps=1)))
    stored[section] = {"name": "mine", "strength": 0.5, "learning_rate": "odd"}
    recipe = recipe_from_dict(stored)
    assert getattr(recipe, section) == UnknownPart(name="mine", options={"strength": 0.5, "learning_rate": "odd"})
    assert recipe_to_dict(recipe) == stored
    refuse_unknown_parts(stored, "runs/mine", ("model",))
    with pytest.raises(RecipeError, match=f'made with the {section} "mine"'):
        refuse_unknown_parts(stored, "runs/mine")


def test_checks_that_concern_an_unknown_objective_are_left_out():
    stored = recipe_to_dict(Recipe(training=TrainingConfig(steps=1)))
    stored |= {"model": {"family": "bert", "head": "span"}, "objective": {"name": "mine"}}
    assert recipe_from_dict(stored).model.head == "span"
    stored["model"]["hidden_size"] = 7
    with pytest.raises(RecipeError, match="hidden_size must be divisible by num_heads"):
        recipe_from_dict(stored)


def test_a_stored_recipe_of_known_parts(mine):
    refuse_unknown_parts({"model": {"family": "mine"}, "objective": {"name": "mlm"}, "optimizer": []}, "runs/mine")
    refuse_unknown_parts(None, "runs/mine")


def test_registering_twice(mine):
    register("model", "mine", MineConfig)  # the same class: nothing to say
    again = type("MineConfig", (MineConfig,), {"__module__": __name__})
    register("model", "mine", again)  # its definition was run again, as a notebook's cell is
    assert choices("model")["mine"] is again
    with pytest.raises(UserError, match=r'model\.family = "gpt" is taken by GPTConfig'):
        register("model", "gpt", MineConfig)


@dataclass
class Thawed:
    family: str = option("mine2", help="")


@dataclass(frozen=True)
class Untagged:
    size: int = option(1, help="")


@dataclass(frozen=True)
class Positionless:
    family: str = option("mine2", help="")
    vocab_size: int = option(1, help="")


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (int, "expected a frozen dataclass"),
        (Thawed, "expected a frozen dataclass"),
        (Untagged, "expected a field family"),
        (MineConfig, r'expected a field family: str = option\("mine2"'),
        (Positionless, "expected the fields max_positions, which every model has"),
    ],
)
def test_unsuitable_classes_are_errors(cls, message):
    with pytest.raises(UserError, match=message):
        register("model", "mine2", cls)
    assert "mine2" not in choices("model")


def test_sections_without_choices():
    with pytest.raises(UserError, match='section "data" has no choices'):
        register("data", "mine", MineConfig)
