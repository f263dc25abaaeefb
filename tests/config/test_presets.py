import re
from dataclasses import replace

import pytest

from hornbook.config import ParallelConfig, bundled_recipes, find_recipe, load_recipe
from hornbook.config.build import refuse_misfit
from hornbook.errors import RecipeError
from hornbook.exchange.huggingface.decoder_families import decoder_of

SIZES = {
    "gpt2-small": (12, 768, 12, 1024, 124_439_808),
    "gpt2-medium": (24, 1024, 16, 1024, 354_823_168),
    "gpt2-large": (36, 1280, 20, 1024, 774_030_080),
    "gpt2-xl": (48, 1600, 25, 1024, 1_557_611_200),
    "gpt3-2.7b": (32, 2560, 32, 2048, 2_651_553_280),
}
"""Layers, hidden size, heads, positions; parameters as transformers counts GPT-2's, the closed form for GPT-3."""
ENCODERS = {
    "bert-tiny": (2, 128, 2, 4_433_468),
    "bert-mini": (4, 256, 4, 11_267_900),
    "bert-small": (4, 512, 8, 29_058_876),
    "bert-medium": (8, 512, 8, 41_668_412),
    "bert-base-phase1": (12, 768, 12, 110_106_428),
    "bert-base-phase2": (12, 768, 12, 110_106_428),
    "bert-large-phase1": (24, 1024, 16, 336_226_108),
    "bert-large-phase2": (24, 1024, 16, 336_226_108),
    "groupbert-base-phase1": (12, 768, 12, 160_842_044),
    "groupbert-base-phase2": (12, 768, 12, 160_842_044),
}
"""Layers, hidden size, heads; parameters with BERT's vocabulary, as transformers counts those of BertForPreTraining."""
CEREBRAS = {
    "cerebras-gpt-111m": (10, 768, 12, 120),
    "cerebras-gpt-1.3b": (24, 2048, 16, 528),
    "cerebras-gpt-6.7b": (32, 4096, 32, 1040),
    "cerebras-gpt-13b": (40, 5120, 40, 1080),
}
"""Layers, hidden size, heads, sequences a step."""
DECODERS = {
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.1-8b": 8_030_261_248,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "olmo2-1b": 1_484_916_736,
    "smollm-135m": 134_515_008,
    "smollm-360m": 361_821_120,
    "gemma3-270m": 268_098_176,
    "gemma3-1b": 999_885_952,
    "nanochat-d20": 560_988_160,
}
"""Parameters of the published models, a tied table once; nanochat's those of its model in transformers."""
SMALL = {"story-1m": (2048, 1_377_920), "code-5m": (4096, 5_311_232), "book-15m": (8192, 15_143_680)}
"""Vocabulary; parameters as transformers counts those of Qwen3ForCausalLM."""
MODERNBERT = {
    "modernbert-mini": (30522, 10_140_474),
    "modernbert-base": (50368, 149_655_232),
    "modernbert-large": (50368, 395_881_664),
}
"""Vocabulary; parameters as transformers counts those of ModernBertForMaskedLM."""
TUNED = ("bert-base-wikitext2", "roberta-base-wikitext2", "gpt2-small-wikitext2", "gpt2-medium-wikitext2")
MNLI = {
    "gpt2-small-mnli": ("gpt2-small", 128, 128, 6e-5, 0.1),
    "gpt2-medium-mnli": ("gpt2-medium", 128, 512, 2.65e-4, 0.00625),
    "cerebras-gpt-111m-mnli": ("cerebras-gpt-111m", 120, 512, 2.65e-4, 0.00625),
    "cerebras-gpt-1.3b-mnli": ("cerebras-gpt-1.3b", 528, 512, 2.65e-4, 0.00625),
    "cerebras-gpt-6.7b-mnli": ("cerebras-gpt-6.7b", 1040, 512, 2.65e-4, 0.00625),
    "cerebras-gpt-13b-mnli": ("cerebras-gpt-13b", 1080, 512, 2.65e-4, 0.00625),
}
"""The recipe of the same model, tokens a sequence, sequences a step, peak learning rate, warm-up; PopXL's presets."""

LAYOUTS = {
    "demo-2-stages": (0, 4),
    "demo-tensor-4": (),
    "bert-tiny-2-stages": (0, 2),
    "gpt2-small-4-stages": (0, 4, 4, 4),
    "gpt2-medium-8-stages": (0, 3, 3, 3, 3, 4, 4, 4),
    "gpt2-large-8-stages": (1, *[5] * 7),
    "gpt2-large-16-stages": (0, *[2] * 8, *[3] * 6, 2),
    "gpt3-2.7b-tensor-8": (),
    "bert-base-phase1-4-stages": (0, 4, 4, 4),
    "bert-base-phase1-7-stages": (0, *[2] * 6),
    "bert-base-phase2-4-stages": (0, 4, 4, 4),
    "bert-large-phase1-4-stages": (3, 7, 7, 7),
    "bert-large-phase2-4-stages": (3, 7, 7, 7),
    "bert-large-phase2-13-stages": (0, *[2] * 12),
    "groupbert-base-phase1-4-stages": (1, 3, 4, 4),
    "groupbert-base-phase2-4-stages": (1, 3, 4, 4),
    "bert-base-wikitext2-4-stages": (0, 4, 4, 4),
    "roberta-base-wikitext2-4-stages": (0, 4, 4, 4),
    "gpt2-small-wikitext2-4-stages": (0, 4, 4, 4),
    "gpt2-medium-wikitext2-8-stages": (0, 3, 3, 3, 3, 4, 4, 4),
}
"""Layers of each stage, as the systems that hornbook replaces had them."""
SPARSE = ("sparse-demo", "sparse-gpt", "sparse-gpt-large")


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_goes_with_the_ranks_that_its_description_names(name):
    """Its batch divides among them, and all else is the recipe that it starts from."""
    recipe = load_recipe(name, require_data=False).recipe
    assert recipe.parallel.layers_per_stage == LAYOUTS[name]
    description = bundled_recipes()[name].read_text().splitlines()[0]
    numbers = re.search(r" on ((?:\d+ or )?\d+) ranks", description)
    for num_ranks in numbers[1].split(" or "):
        refuse_misfit(recipe, int(num_ranks))
    start = load_recipe(description.split()[1], require_data=False).recipe
    own = {"name": name, "parallel": recipe.parallel, "data": recipe.data, "training": recipe.training}
    assert replace(start, **own) == recipe
    assert start.parallel == ParallelConfig()


@pytest.mark.parametrize("name", SIZES)
def test_published_shapes(name):
    recipe = load_recipe(name, require_data=False).recipe
    model = recipe.model
    shape = (model.num_layers, model.hidden_size, model.num_heads, model.max_positions, model.num_parameters())
    assert shape == SIZES[name]
    assert (recipe.name, model.vocab_size, recipe.sequence_length) == (name, 50257, model.max_positions)
    assert recipe.training.global_batch_size == 512
    assert model.num_heads * model.effective_head_size == model.hidden_size
    assert model.effective_feed_forward_size == 4 * model.hidden_size


@pytest.mark.parametrize("name", CEREBRAS)
def test_cerebras_gpt_sees_20_tokens_a_parameter(name):
    """As the paper says of all its models; the parameters are the closed form for GPT-2."""
    recipe = load_recipe(name, require_data=False).recipe
    model, training = recipe.model, recipe.training
    layers, hidden, _, batch = CEREBRAS[name]
    assert (model.num_layers, model.hidden_size, model.num_heads, training.global_batch_size) == CEREBRAS[name]
    parameters = (50257 + 2048 + 2) * hidden + layers * (12 * hidden + 13) * hidden
    assert model.num_parameters() == parameters
    assert training.steps * batch * 2048 == pytest.approx(20 * parameters, rel=1e-4)
    assert recipe.schedule.warmup_steps * batch * 2048 == pytest.approx(375e6, rel=0.01)


@pytest.mark.parametrize("name", ENCODERS)
def test_shapes_of_encoders(name):
    recipe = load_recipe(name, require_data=False).recipe
    model = recipe.model
    assert (model.num_layers, model.hidden_size, model.num_heads, model.num_parameters(30522)) == ENCODERS[name]
    assert (model.max_positions, model.vocab_size, recipe.objective.name) == (512, None, "mlm_nsp")
    assert recipe.sequence_length == (512 if name.endswith("phase2") else 128)


@pytest.mark.parametrize(
    ("name", "batch", "steps", "rate", "warmup"),
    [
        ("bert-base-phase1", 65536, 10500, 0.006, 0.28),
        ("bert-base-phase2", 16384, 2038, 0.002828, 0.128),
        ("groupbert-base-phase1", 65600, 10500, 0.012, 0.14),
        ("groupbert-base-phase2", 16384, 2038, 0.01, 0.13),
    ],
)
def test_phases_are_as_published(name, batch, steps, rate, warmup):
    recipe = load_recipe(name, require_data=False).recipe
    assert (recipe.training.global_batch_size, recipe.training.steps) == (batch, steps)
    assert (recipe.optimizer.name, recipe.optimizer.learning_rate) == ("lamb", rate)
    assert (recipe.schedule.warmup_fraction, recipe.model.layer_norm_epsilon) == (warmup, 1e-3)


RANKS = {"bert-large-phase1": 16, "bert-large-phase2": 16, "gpt3-2.7b": 8, **dict.fromkeys(list(SIZES)[:4], 16)}
"""Data-parallel ranks of the original runs, where they had more than four."""


@pytest.mark.parametrize("name", sorted({*SIZES, *CEREBRAS, *ENCODERS, *TUNED}))
def test_the_batch_divides_on_all_ranks_of_the_original(name):
    """On 1, 2 and 4 ranks all do, but the demo, which is one micro-batch large."""
    training = load_recipe(name, require_data=False).recipe.training
    for world_size in (1, 2, 4, RANKS.get(name, 4)):
        assert training.global_batch_size % (training.micro_batch_size * world_size) == 0, world_size


def test_gpt3_sees_its_tokens():
    recipe = load_recipe("gpt3-2.7b", require_data=False).recipe
    tokens_per_step = recipe.training.global_batch_size * recipe.sequence_length
    assert recipe.training.steps * tokens_per_step == pytest.approx(300e9, rel=0.01)
    assert recipe.schedule.warmup_steps * tokens_per_step == pytest.approx(375e6, rel=0.01)


def test_demo_takes_its_vocabulary_from_the_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe("demo", ["--data.train", "corpus"]).recipe
    assert recipe.model.vocab_size is None
    assert recipe.model.num_parameters(4096) - recipe.model.num_parameters() == 4096 * recipe.model.hidden_size
    assert recipe.data.train == (str(tmp_path / "corpus"),)


@pytest.mark.parametrize(
    "name", [*SIZES, *CEREBRAS, *ENCODERS, *TUNED, *MNLI, *LAYOUTS, *DECODERS, *SMALL, *MODERNBERT, "demo", *SPARSE]
)
def test_bundled_recipes_need_nothing_but_data(name):
    with pytest.raises(RecipeError) as caught:
        load_recipe(name)
    assert caught.value.problems == [
        "data.train = [] (default): no training data; set `data.train=PATH`, or use `data.synthetic`"
    ]
    if name in MNLI:
        return
    random = ["--data.synthetic", "--model.vocab-size", "64", "--training.steps", "2"]
    assert load_recipe(name, random).recipe.data.synthetic


def test_the_list_is_whole_and_described():
    bundled = bundled_recipes()
    known = {*SIZES, *CEREBRAS, *ENCODERS, *TUNED, *MNLI, *LAYOUTS, *DECODERS, *SMALL, *MODERNBERT, *SPARSE}
    assert set(bundled) == known | {"demo", "decoder-demo"}
    for path in bundled.values():
        comment = path.read_text(encoding="utf-8").splitlines()[0]
        assert comment.startswith("# ") and len(comment) > 20


def test_paths_are_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").write_text("")
    assert find_recipe("demo") == bundled_recipes()["demo"]
    assert str(find_recipe("./sub/demo")) == "sub/demo"
    assert str(find_recipe("my.toml")) == "my.toml"


@pytest.mark.parametrize(("name", "expected"), MNLI.items())
def test_recipes_for_mnli_are_those_of_the_old_presets(name, expected):
    base, length, batch, rate, warmup = expected
    recipe, trunk = (load_recipe(each, require_data=False).recipe for each in (name, base))
    shape, expected_shape = (
        (model.num_layers, model.hidden_size, model.num_heads, model.vocab_size, model.max_positions)
        for model in (recipe.model, trunk.model)
    )
    assert shape == expected_shape
    assert (recipe.sequence_length, recipe.training.global_batch_size, recipe.training.epochs) == (length, batch, 1)
    assert (recipe.optimizer.learning_rate, recipe.schedule.warmup_fraction) == (rate, warmup)
    assert recipe.objective.name == "classification" and recipe.objective.second_text == "hypothesis"


def test_a_misspelt_name_gets_a_suggestion():
    with pytest.raises(RecipeError, match='recipe "gpt2-smal": no such bundled recipe; did you mean "gpt2-small"'):
        find_recipe("gpt2-smal")
    with pytest.raises(RecipeError, match="`hornbook recipes` lists them"):
        find_recipe("qqq")


def test_a_name_that_several_recipes_begin_with_gets_them_all_the_smallest_first():
    names = (
        "gpt2-small, gpt2-small-mnli, gpt2-small-wikitext2, gpt2-medium, gpt2-medium-mnli, gpt2-medium-wikitext2, "
        "gpt2-large, gpt2-xl"
    )
    with pytest.raises(RecipeError) as caught:
        find_recipe("gpt2")
    assert str(caught.value) == f'recipe "gpt2": no such bundled recipe; did you mean one of {names}?'
    with pytest.raises(RecipeError, match=r"one of bert-tiny, bert-mini, bert-small, bert-medium, bert-base-phase1, "):
        find_recipe("bert")


def test_beginnings_of_all_names_are_one_line():
    """Also of recipes that have their size, or a part of it, from another one."""
    names = bundled_recipes()
    beginnings = {"-".join(name.split("-")[:words]) for name in names for words in range(1, 4)} - set(names)
    assert {"decoder", "story", "nanochat"} <= beginnings
    for beginning in beginnings:
        with pytest.raises(RecipeError, match=f'^recipe "{beginning}": no such bundled recipe'):
            find_recipe(beginning)
    for beginning, name in (("decoder", "decoder-demo"), ("story", "story-1m"), ("nanochat", "nanochat-d20")):
        with pytest.raises(RecipeError, match=f'did you mean "{name}"\\?$'):
            find_recipe(beginning)


@pytest.mark.parametrize("name", MODERNBERT)
def test_modernberts_are_as_published(name):
    vocabulary, num_parameters = MODERNBERT[name]
    assert load_recipe(name, require_data=False).recipe.model.num_parameters(vocabulary) == num_parameters


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_has_the_parameters_of_the_published_model(name):
    assert load_recipe(name, require_data=False).recipe.num_parameters() == DECODERS[name]


@pytest.mark.parametrize("name", SMALL)
def test_a_small_model_is_a_qwen3(name):
    vocabulary, num_parameters = SMALL[name]
    model = replace(load_recipe(name, require_data=False).recipe.model, vocab_size=vocabulary)
    assert model.num_parameters() == num_parameters
    assert decoder_of(model).architecture == "Qwen3ForCausalLM"


def test_flops_count_what_local_layers_of_modernbert_see():
    """Of four layers, 0 and 3 see all of 512 tokens, the others 64 on either side and the token itself."""
    model = load_recipe("modernbert-mini", require_data=False).recipe.model
    assert model.description().attention_flops(512) == 12 * 256 * (2 * 512 + 2 * 129)
    assert model.description().attention_flops(100) == 12 * 256 * 4 * 100
