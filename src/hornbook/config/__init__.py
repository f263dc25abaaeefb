"""Recipes: what a run is made of, where each value came from, and what is wrong with it.

    TOML file      -> tree.file_leaves -----.
    --section.key  -> tree.override_leaves --+-> merge -> build (values, options) -> Resolved(recipe, sources)

No torch and no numpy here: ``hornbook train --help`` answers from this package alone.
"""

from hornbook.config.load import (
    Change,
    Resolved,
    changed_keys,
    load_recipe,
    problems_of,
    recipe_from_dict,
    recipe_to_dict,
    recipe_to_toml,
)
from hornbook.config.models import GPTConfig
from hornbook.config.objectives import CausalLMConfig
from hornbook.config.optimizers import AdamWConfig
from hornbook.config.options import Problem, option
from hornbook.config.presets import BundledRecipe, bundled_recipes, find_recipe
from hornbook.config.recipe import (
    CheckpointConfig,
    DataConfig,
    EvaluationConfig,
    PrecisionConfig,
    Recipe,
    TrackingConfig,
    TrainingConfig,
)
from hornbook.config.registry import choices, register
from hornbook.config.schedules import ConstantConfig, CosineConfig, LinearConfig

__all__ = [
    "AdamWConfig",
    "BundledRecipe",
    "CausalLMConfig",
    "Change",
    "CheckpointConfig",
    "ConstantConfig",
    "CosineConfig",
    "DataConfig",
    "EvaluationConfig",
    "GPTConfig",
    "LinearConfig",
    "PrecisionConfig",
    "Problem",
    "Recipe",
    "Resolved",
    "TrackingConfig",
    "TrainingConfig",
    "bundled_recipes",
    "changed_keys",
    "choices",
    "find_recipe",
    "load_recipe",
    "option",
    "problems_of",
    "recipe_from_dict",
    "recipe_to_dict",
    "recipe_to_toml",
    "register",
]
