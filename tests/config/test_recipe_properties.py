"""Random sound recipes survive the way out and back; mutated ones are refused, a line for each mistake (R13)."""

import os
import random
from dataclasses import fields

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hornbook.config import bundled_recipes, choices, load_recipe, recipe_from_dict, recipe_to_dict, recipe_to_toml
from hornbook.config.options import TAGS, describe
from hornbook.config.recipe import SECTIONS, Recipe
from hornbook.errors import RecipeError

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1).filter(
    lambda t: t != "none"
)


def values_of(spec):
    """Values that the option takes."""
    bounds = spec.bounds
    if spec.choices:
        values = st.sampled_from(spec.choices)
    elif spec.type is int:
        values = st.integers(int(bounds.minimum), 2**63 - 1 if bounds.maximum is None else int(bounds.maximum))
    elif spec.type is float:
        low, high = bounds.above if bounds.above is not None else bounds.minimum, bounds.below or bounds.maximum
        exclude = {"exclude_min": bounds.above is not None, "exclude_max": bounds.below is not None}
        values = st.floats(low, high, allow_infinity=False, allow_nan=False, **exclude)
    elif spec.type is bool:
        values = st.booleans()
    elif spec.type is tuple and spec.entry is int:
        values = st.lists(st.integers(1, 1000)).map(tuple)
    elif spec.type is tuple and spec.entry is float:
        values = st.lists(st.floats(1e-6, 1e6)).map(tuple)
    elif spec.type is tuple:
        values = st.lists(TEXT.map(lambda text: os.path.normpath(f"/{text}"))).map(tuple)
    else:
        values = TEXT.map(lambda text: os.path.normpath(f"/{text}"))
    return st.none() | values if spec.optional else values


@st.composite
def recipes(draw):
    parts = {}
    for section, default in SECTIONS.items():
        cls = draw(st.sampled_from(list(choices(section).values()))) if section in TAGS else default
        specs = [spec for spec in describe(cls).values() if spec.name != TAGS.get(section)]
        parts[section] = cls(**{spec.name: draw(values_of(spec)) for spec in specs})
    recipe = Recipe(name=draw(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,20}", fullmatch=True)), **parts)
    return mended(recipe, draw)


def mended(recipe, draw):
    """Make what must fit together fit."""
    nested = recipe_to_dict(recipe)
    heads, micro = draw(st.integers(1, 64)), draw(st.integers(1, 64))
    sizes = {key: value for key, value in nested["model"].items() if type(value) is int}
    nested["model"] |= {key: min(value, 10_000) for key, value in sizes.items()}  # at most 1e15 parameters
    nested["model"] |= {"num_heads": heads, "hidden_size": heads * draw(st.integers(1, 64))}
    if nested["model"]["family"] == "groupbert":
        kernel = 2 * draw(st.integers(0, 9)) + 1
        nested["model"] |= {"convolution_kernel": kernel, "convolution_group_size": heads}
        nested["model"] |= {"feed_forward_groups": heads, "feed_forward_size": None}
    if nested["model"]["family"] == "factorized_gpt":
        width, groups = 2 * draw(st.integers(1, 64)), draw(st.sampled_from([1, heads]))
        nested["model"] |= {"embedding_size": width * heads, "norm_groups": groups}
    if nested["model"]["family"] == "modernbert":
        sizes = {"hidden_size": 2 * heads * draw(st.integers(1, 32)), "head_size": None}
        nested["model"] |= sizes | {"local_window": 2 * draw(st.integers(1, 64))}
    if nested["model"]["family"] == "decoder":
        nested["model"] |= fitting_decoder(nested["model"], draw)
    nested["data"] |= {"sequence_length": draw(st.integers(1, nested["model"]["max_positions"]))}
    if nested["model"].get("window"):
        nested["data"] |= {"sequence_length": nested["model"]["max_positions"]}
    nested["data"] |= draw(st.sampled_from([{"synthetic": False}, {"train": ()}]))
    num_stores = len(nested["data"]["train"])
    nested["data"]["weights"] = draw(st.sampled_from([(), tuple(range(1, num_stores + 1)) if num_stores > 1 else ()]))
    nested["model"]["vocab_size"] = nested["model"]["vocab_size"] or 7
    if "warmup_steps" in nested["schedule"]:
        nested["schedule"] |= draw(st.sampled_from([{"warmup_steps": 0}, {"warmup_fraction": None}]))
    if nested["schedule"].get("decay_end"):
        nested["schedule"]["warmup_steps"] %= nested["schedule"]["decay_end"]
    if "decay_steps" in nested["schedule"]:
        nested["schedule"] |= draw(st.sampled_from([{"decay_steps": None}, {"decay_end": None}]))
    if "epsilon_before_correction" in nested["optimizer"]:
        kept = {"epsilon_before_correction": False}, {"bias_correction": True}
        nested["optimizer"] |= draw(st.sampled_from(kept))
    if nested["evaluation"]["early_stopping_patience"] is None:
        nested["evaluation"]["early_stopping_min_delta"] = 0.0
    nested["tracking"]["trackers"] = tuple(dict.fromkeys(nested["tracking"]["trackers"]))
    if not nested["tracking"]["trackers"]:
        nested["tracking"]["histogram_every_steps"] = None
    if nested["optimizer"]["learning_rate_scale"]:
        nested["optimizer"]["learning_rate_scale"] = ("embedding.*=0.1", "head.*=0")
    if nested["optimizer"]["name"] == "muon":
        decays = nested["optimizer"]["cautious_decay"] and nested["optimizer"]["weight_decay"] > 0
        nested["optimizer"] |= {"row_moments": True, "cautious_decay": decays}
    if "factors" in nested["schedule"]:
        nested["schedule"]["factors"] = ("0=1", "7=0.5")
    if nested["schedule"].get("lengths"):
        nested["schedule"]["lengths"] = ("0=600", "61=367")
    if nested["precision"]["compute"] == "fp32" and nested["precision"]["partials"] == "half":
        nested["precision"]["partials"] = "fp32"
    nested["precision"] |= draw(st.sampled_from([{"loss_scale": None}, {"loss_scale_by_step": ()}]))
    if nested["precision"]["loss_scale_by_step"]:
        nested["precision"] |= {"loss_scale_by_step": ("0=128", "7=64"), "loss_scaling": "static"}
    nested["parallel"] |= draw(st.sampled_from([{"data_parallel": "hybrid", "shard_size": 2}, {"shard_size": None}]))
    if nested["parallel"]["shard_size"] is None and nested["parallel"]["data_parallel"] == "hybrid":
        nested["parallel"]["data_parallel"] = "shard"
    nested["parallel"] |= {"tensor_parallel": 1, "sequence_parallel": False, "async_tensor_parallel": False}
    table = {"embedding_block_size": None if nested["sparsity"]["embedding_block_size"] is None else 1}
    sparse = nested["sparsity"] | table | {"linears": ("blocks.*",), "block_size": 1, "density": 1.0, "kernel": "torch"}
    fits = nested["parallel"]["data_parallel"] == "replicate"
    fits = fits and nested["model"]["num_layers"] <= 64  # each sparse map is listed
    nested["sparsity"] = draw(st.sampled_from([recipe_to_dict(Recipe())["sparsity"], *([sparse] if fits else [])]))
    plain = {"pipeline_parallel": 1, "layers_per_stage": (), "pipeline_schedule": "1f1b"}
    if nested["training"]["compile"] == "blocks":
        nested["parallel"]["pipeline_schedule"] = "1f1b"
    stages = {"pipeline_parallel": 2, "layers_per_stage": (0, nested["model"]["num_layers"])}
    is_whole = nested["model"].get("residual_scales") or nested["sparsity"]["embedding_block_size"] is not None
    nested["parallel"] |= draw(st.sampled_from([plain, *([] if is_whole else [plain | stages])]))
    layers = {"recompute_layers": (nested["model"]["num_layers"] - 1,), "recompute_budget": None}
    kept = {"recompute": None, "recompute_layers": (), "recompute_budget": None}
    nested["memory"] |= draw(st.sampled_from([kept, layers | {"recompute": "all"}, kept | {"recompute": "attention"}]))
    if nested["training"]["compile"] == "blocks":
        nested["memory"] |= {"offload_activations": False}
        nested["memory"] |= draw(st.sampled_from([kept, layers | {"recompute": "all"}]))
    resident, phased = {"execution": "resident", "scratch": None}, {"execution": "phased", **kept}
    phased |= {"offload_activations": False, "offload_optimizer": False}
    is_plain = nested["parallel"]["pipeline_parallel"] == 1 and not nested["sparsity"]["linears"]
    is_plain = is_plain and not nested["model"].get("residual_scales")
    if nested["training"]["compile"] == "blocks" or nested["checkpoint"]["background"] or not is_plain:
        nested["memory"] |= resident
    else:
        nested["memory"] |= draw(st.sampled_from([resident, phased]))
    if nested["parallel"]["data_parallel"] == "replicate" or nested["parallel"]["pipeline_parallel"] > 1:
        nested["parallel"]["sum_gradients"] = "micro_batch"
    nested["training"] |= {"global_batch_size": micro * draw(st.integers(1, 64)), "micro_batch_size": micro}
    length = draw(st.sampled_from([{"steps": 3}, {"tokens": 5}, {"epochs": 0.5}]))
    if "epochs" in length:
        nested["data"]["synthetic"] = False
    nested["training"] |= {"steps": None, "tokens": None, "epochs": None} | length
    nested["checkpoint"] |= draw(st.sampled_from([{"best_by": "validation"}, {"best_by": "mine/accuracy"}]))
    nested["evaluation"]["tasks"] += ("mine",)
    nested |= fitting_kind(nested)
    return recipe_from_dict(nested)


def fitting_decoder(model, draw):
    """Sizes and options of a decoder that suit each other."""
    heads, window = model["num_heads"], draw(st.none() | st.integers(1, model["max_positions"]))
    is_rotary, has_window = model["positions"] == "rotary", window is not None
    scaling = dict.fromkeys(("rope_factor", "rope_original_positions", "rope_low_factor", "rope_high_factor"))
    numbers = {"linear": {"rope_factor": 2.0}, "yarn": {"rope_factor": 2.0, "rope_original_positions": 7}}
    numbers["llama3"] = {"rope_low_factor": 1.0, "rope_high_factor": 4.0, **numbers["yarn"]}
    kind = draw(st.sampled_from(["none", *numbers] if is_rotary else ["none"]))
    return {
        "head_size": (4 if model["shifted_keys"] else 2) * draw(st.integers(1, 64)),
        "num_kv_heads": draw(st.sampled_from([None, 1, heads])),
        "rope_share": 1.0,
        "rope_scaling": kind,
        **scaling,
        **numbers.get(kind, {}),
        "window": window,
        "window_pattern": draw(st.sampled_from(["L", "LLG"] if has_window else ["L"])),
        "local_rope_theta": model["local_rope_theta"] if has_window and is_rotary else None,
        "norm_gain": model["norm"] == "layer" or model["norm_gain"],
    }


def fitting_kind(nested):
    """Sections that suit the family of the model."""
    family = nested["model"]["family"]
    if "gpt" in family or family == "decoder":
        objective = nested["objective"] if nested["objective"]["name"] == "causal_lm" else {"name": "causal_lm"}
        if "unscored_tokens" in objective:
            objective["unscored_tokens"] %= nested["data"]["sequence_length"]
        if objective.get("recurrence_weights"):
            objective["z_loss"] = 0.0
        if nested["model"].get("attention_block_size"):
            nested["data"]["document_mask"] = False
        kept = {"model": nested["model"] | {"head": "pretraining", "num_labels": None}} if family == "gpt" else {}
        return kept | {"objective": objective, "data": nested["data"] | {"layout": "auto", "tokenizer": None}}
    learned = nested["objective"]["name"]
    head = learned if learned in ("classification", "span") else "pretraining"
    counted = {} if head == "classification" else {"num_labels": None}
    model = nested["model"] | {"head": head} | counted
    if head != "pretraining":
        nested["data"] |= {"synthetic": False, "weights": ()}
        return fitting_encoder(nested, model, nested["objective"])
    if nested["data"]["synthetic"]:
        nested["data"] |= {"tokenizer": None}
    pairs = nested["objective"]["name"] == "mlm_nsp" and nested["model"]["family"] != "roberta"
    objective = nested["objective"] if pairs or nested["objective"]["name"] == "mlm" else {"name": "mlm"}
    return fitting_encoder(nested, model, objective)


def fitting_encoder(nested, model, objective):
    if objective["name"] == "classification" and objective["text"] == objective["label"]:
        objective["label"] += "'s"
    tracking = nested["tracking"] | {"sample_every_steps": None}
    data = nested["data"] | {"document_mask": False, "windows": "stream"}
    return {"model": model, "objective": objective, "data": data, "tracking": tracking}


@settings(suppress_health_check=list(HealthCheck))
@given(recipe=recipes())
def test_toml_and_dictionary_round_trip(recipe, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "round-trip.toml"
    assert recipe_from_dict(recipe_to_dict(recipe)) == recipe
    for sources in (None, {}):
        path.write_text(recipe_to_toml(recipe, sources), encoding="utf-8", newline="")
        assert load_recipe(str(path), require_data=False).recipe == recipe


def sound_text():
    recipe = load_recipe("gpt2-small", ["--data.train", "/corpus"])
    return recipe_to_toml(recipe.recipe)


RAW = [
    "x",
    '""',
    "-1",
    "0",
    "1e400",
    "nan",
    "-inf",
    "[1]",
    "{a = 1}",
    "true",
    "1979-05-27",
    '"\\u0000"',
    "9" * 30,
    "'''\n'''",
]
"""Values that most options do not take."""


def change_value(lines, draw):
    index = draw.choice([index for index, line in enumerate(lines) if "=" in line])
    lines[index] = f"{lines[index].partition('=')[0]}= {draw.choice(RAW)}"


def misspell_key(lines, draw):
    index = draw.choice([index for index, line in enumerate(lines) if "=" in line])
    place = draw.randrange(3)
    lines[index] = lines[index][:place] + draw.choice("qxz-") + lines[index][place:]


def misspell_section(lines, draw):
    index = draw.choice([index for index, line in enumerate(lines) if line.startswith("[")])
    lines[index] = lines[index].replace("]", draw.choice(["s]", "]]", "", ".a]", "_]"]))


def repeat_line(lines, draw):
    index = draw.choice([index for index, line in enumerate(lines) if line])
    lines.insert(index, lines[index])


def insert_bytes(lines, draw):
    index = draw.randrange(len(lines))
    lines[index] += draw.choice(["\udcff", "\0", "\x1b", "\\", '"', "[", "{", " = ", "\r", "é"])


MUTATIONS = [change_value, misspell_key, misspell_section, repeat_line, insert_bytes]


@pytest.mark.parametrize("seed", range(120))
def test_mutated_recipes_are_refused_in_one_line_each(seed, tmp_path):
    draw = random.Random(seed)
    lines = sound_text().split("\n")
    for _ in range(draw.randint(1, 3)):
        draw.choice(MUTATIONS)(lines, draw)
    path = tmp_path / "mutated.toml"
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
    try:
        resolved = load_recipe(str(path))
    except RecipeError as error:
        assert error.problems
        assert all(problem.isprintable() and len(problem) < 1000 for problem in error.problems)
        assert str(path) in str(error)
    else:  # some mutations are harmless: another sound value, a blank
        assert recipe_from_dict(recipe_to_dict(resolved.recipe)) == resolved.recipe


def test_most_mutations_are_mistakes(tmp_path):
    refused = 0
    for seed in range(120):
        draw = random.Random(seed)
        lines = sound_text().split("\n")
        draw.choice(MUTATIONS)(lines, draw)
        path = tmp_path / f"{seed}.toml"
        path.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
        try:
            load_recipe(str(path))
        except RecipeError:
            refused += 1
    assert refused > 100


WORD = st.text(max_size=12) | st.sampled_from(["1e5", "none", "true", "--", "-1", "cosine", "nan", "9" * 400])
KEY = st.sampled_from([f"{s}.{f.name}" for s, cls in SECTIONS.items() for f in fields(cls)]) | st.text(max_size=12)


@settings(max_examples=150, deadline=None)
@given(words=st.lists(st.builds("--{}={}".format, KEY, WORD) | KEY.map("--{}".format) | WORD, max_size=6))
def test_any_words_on_the_command_line(words):
    try:
        resolved = load_recipe("demo", words, require_data=False)
    except RecipeError as error:
        assert error.problems
        assert all(problem.isprintable() for problem in error.problems)
    else:
        assert recipe_from_dict(recipe_to_dict(resolved.recipe)) == resolved.recipe


def test_bundled_recipes_round_trip(tmp_path):
    for name in bundled_recipes():
        resolved = load_recipe(name, ["--data.train", "/corpus"])
        path = tmp_path / f"{name}.toml"
        path.write_text(recipe_to_toml(resolved.recipe, resolved.sources))
        assert load_recipe(str(path)).recipe == resolved.recipe
