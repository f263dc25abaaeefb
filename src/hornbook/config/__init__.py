"""Recipes: the options of a run, the source of each value, and validation that reports all mistakes at once.

    TOML file, --section.key  -> build (a tree of leaves with sources, checked by options) -> Resolved(recipe, sources)
    models (model, objective), optimizers (optimizer, schedule), sections (data, training, precision, memory, ...)

The package imports only the standard library, so ``hornbook train --help`` is fast.
"""

from hornbook.config.build import Resolved, load_recipe, recipe_from_dict
from hornbook.config.decoder import DecoderConfig
from hornbook.config.factorized import FactorizedGPTConfig
from hornbook.config.generation import GenerationConfig
from hornbook.config.models import (
    BertConfig,
    EncoderConfig,
    GPTConfig,
    GroupBertConfig,
    RobertaConfig,
    TransformerConfig,
    TunableConfig,
)
from hornbook.config.modernbert import ModernBertConfig
from hornbook.config.objectives import (
    CausalLMConfig,
    ClassificationConfig,
    LabelledConfig,
    MaskedLMConfig,
    MaskingConfig,
    PretrainingConfig,
    SpanConfig,
)
from hornbook.config.optimizers import (
    AdamConfig,
    AdamWConfig,
    ByStepConfig,
    ConstantConfig,
    CosineConfig,
    LambConfig,
    LinearConfig,
    MomentumConfig,
    MuonConfig,
    NaturalExponentialConfig,
    PolynomialConfig,
    SGDConfig,
    WarmupStableDecayConfig,
)
from hornbook.config.options import Problem, UnknownPart, choices, option, register
from hornbook.config.parallel import ParallelConfig, Sizes
from hornbook.config.recipe import Change, Recipe, changed_keys, recipe_to_dict, recipe_to_toml
from hornbook.config.recipe_files import bundled_recipes, find_recipe
from hornbook.config.sections import DataConfig, EvaluationConfig, MemoryConfig, PrecisionConfig, TrainingConfig
from hornbook.config.sparsity import SparsityConfig

__all__ = [
    "AdamConfig",
    "AdamWConfig",
    "BertConfig",
    "ByStepConfig",
    "CausalLMConfig",
    "Change",
    "ClassificationConfig",
    "ConstantConfig",
    "CosineConfig",
    "DataConfig",
    "DecoderConfig",
    "EncoderConfig",
    "EvaluationConfig",
    "FactorizedGPTConfig",
    "GPTConfig",
    "GenerationConfig",
    "GroupBertConfig",
    "LabelledConfig",
    "LambConfig",
    "LinearConfig",
    "MaskedLMConfig",
    "MaskingConfig",
    "MemoryConfig",
    "ModernBertConfig",
    "MomentumConfig",
    "MuonConfig",
    "NaturalExponentialConfig",
    "ParallelConfig",
    "PolynomialConfig",
    "PrecisionConfig",
    "PretrainingConfig",
    "Problem",
    "Recipe",
    "Resolved",
    "RobertaConfig",
    "SGDConfig",
    "Sizes",
    "SpanConfig",
    "SparsityConfig",
    "TrainingConfig",
    "TransformerConfig",
    "TunableConfig",
    "UnknownPart",
    "WarmupStableDecayConfig",
    "bundled_recipes",
    "changed_keys",
    "choices",
    "find_recipe",
    "load_recipe",
    "option",
    "recipe_from_dict",
    "recipe_to_dict",
    "recipe_to_toml",
    "register",
]
