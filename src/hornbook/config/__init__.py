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
    recipe_from_dict,
    recipe_to_dict,
    recipe_to_toml,
    refuse_unknown_parts,
)
from hornbook.config.models import (
    BertConfig,
    EncoderConfig,
    GPTConfig,
    GroupBertConfig,
    RobertaConfig,
    TransformerConfig,
)
from hornbook.config.objectives import (
    CausalLMConfig,
    ClassificationConfig,
    LabelledConfig,
    MaskedLMConfig,
    MaskingConfig,
    PretrainingConfig,
    SpanConfig,
)
from hornbook.config.optimizers import AdamConfig, AdamWConfig, LambConfig, MomentumConfig, SGDConfig
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
from hornbook.config.schedules import (
    ByStepConfig,
    ConstantConfig,
    CosineConfig,
    LinearConfig,
    NaturalExponentialConfig,
    PolynomialConfig,
)

__all__ = [
    "AdamConfig",
    "AdamWConfig",
    "BertConfig",
    "BundledRecipe",
    "ByStepConfig",
    "CausalLMConfig",
    "Change",
    "CheckpointConfig",
    "ClassificationConfig",
    "ConstantConfig",
    "CosineConfig",
    "DataConfig",
    "EncoderConfig",
    "EvaluationConfig",
    "GPTConfig",
    "GroupBertConfig",
    "LabelledConfig",
    "LambConfig",
    "LinearConfig",
    "MaskedLMConfig",
    "MaskingConfig",
    "MomentumConfig",
    "NaturalExponentialConfig",
    "PolynomialConfig",
    "PrecisionConfig",
    "PretrainingConfig",
    "Problem",
    "Recipe",
    "Resolved",
    "RobertaConfig",
    "SGDConfig",
    "SpanConfig",
    "TrackingConfig",
    "TrainingConfig",
    "TransformerConfig",
    "bundled_recipes",
    "changed_keys",
    "choices",
    "find_recipe",
    "load_recipe",
    "option",
    "recipe_from_dict",
    "recipe_to_dict",
    "recipe_to_toml",
    "refuse_unknown_parts",
    "register",
]
