import pytest

from hornbook.config import GenerationConfig, load_recipe
from hornbook.config.options import describe
from hornbook.config.recipe import SECTIONS, specs
from hornbook.config.suggest import _USUAL, did_you_mean, did_you_mean_path, nearest
from hornbook.errors import RecipeError


def test_nearest():
    assert nearest("lerning_rate", ["learning_rate", "beta1"]) == "learning_rate"
    assert nearest("zzz", ["learning_rate", "beta1"]) is None
    assert did_you_mean("bta1", ["learning_rate", "beta1"]) == '; did you mean "beta1"?'
    assert did_you_mean("zzz", []) == ""


def test_the_nearest_path(tmp_path):
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "corpora").mkdir()
    for wrong, near in (("runs/mien", "runs/mine"), ("rusn/mine", "runs/mine"), ("rnus/other", "runs")):
        assert did_you_mean_path(tmp_path / wrong) == f'; did you mean "{tmp_path / near}"?'
    for far in ("runs/qqq", "zzz/mine", "runs/mine", "runs"):
        assert did_you_mean_path(tmp_path / far) == ""


def test_what_others_call_it_comes_before_what_looks_alike():
    assert nearest("lr", ["clip_norm", "learning_rate"]) == "learning_rate"
    assert nearest("n_layer", ["num_layers", "n_layers_of_cake"]) == "num_layers"
    assert nearest("model.lr", ["schedule.lr_x", "optimizer.learning_rate"]) == "optimizer.learning_rate"
    assert nearest("evaluation.eval_every", ["checkpoint.every_steps", "evaluation.every_steps"]).startswith("eval")


def test_usual_names_map_to_options_and_are_no_options():
    known = {name for section in SECTIONS for name in specs(section)} | set(describe(GenerationConfig))
    assert set(_USUAL) <= known
    assert [word for words in _USUAL.values() for word in words.split() if word in _USUAL] == []


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("optimizer.lr", "optimizer.learning_rate"),
        ("optimizer.wd", "optimizer.weight_decay"),
        ("optimizer.eps", "optimizer.epsilon"),
        ("optimizer.betas", "optimizer.beta1"),
        ("optimizer.grad_clip", "optimizer.clip_norm"),
        ("training.lr", "optimizer.learning_rate"),
        ("training.batch_size", "training.global_batch_size"),
        ("optimizer.batch_size", "training.global_batch_size"),
        ("training.max_steps", "training.steps"),
        ("schedule.warmup", "schedule.warmup_steps"),
        ("training.warmup", "schedule.warmup_steps"),
        ("schedule.warmup_ratio", "schedule.warmup_fraction"),
        ("schedule.lr_decay_iters", "schedule.decay_end"),
        ("data.max_train_samples", "data.max_samples"),
        ("training.patience", "evaluation.early_stopping_patience"),
        ("model.n_layer", "model.num_layers"),
        ("model.num_key_value_heads", "model.num_kv_heads"),
        ("model.qk_norm", "model.query_key_norm"),
        ("model.rms_norm_eps", "model.norm_epsilon"),
        ("model.tie_word_embeddings", "model.tied"),
        ("model.n_head", "model.num_heads"),
        ("model.n_embd", "model.hidden_size"),
        ("model.d_model", "model.hidden_size"),
        ("model.hidden_dim", "model.hidden_size"),
        ("data.ctx_len", "data.sequence_length"),
        ("data.seq_len", "data.sequence_length"),
        ("data.block_size", "data.sequence_length"),
        ("model.block_size", "model.max_positions"),
        ("optimizer.lerning_rate", "optimizer.learning_rate"),
        ("training.dtype", "precision.compute"),
        ("validation.every_steps", "evaluation.every_steps"),
        ("data.leraning_rate", "optimizer.learning_rate"),
        ("optimiser.learning_rate", "optimizer.learning_rate"),
        ("shedule.name", "schedule.name"),
    ],
)
def test_a_recipe_suggests_what_was_meant(written, meant):
    with pytest.raises(RecipeError) as caught:
        load_recipe("demo", ["--data.synthetic", "--model.vocab-size=99", f"--{written}=1"])
    (problem,) = caught.value.problems
    assert problem.endswith(f': unknown key; did you mean "{meant}"?')


@pytest.mark.parametrize(
    ("written", "meant"),
    [("optimizer.name=adamW", "adamw"), ("optimizer.name=AdamW", "adamw"), ("model.family=gpt2", "gpt"),
     ("precision.compute=bfloat16", "bf16"), ("precision.compute=FP16", "fp16"), ("precision.kernels=nativ", "native")],
)  # fmt: skip
def test_a_value_is_suggested_by_its_usual_name_before_its_spelling(written, meant):
    with pytest.raises(RecipeError, match=f'did you mean "{meant}"'):
        load_recipe("demo", ["--data.synthetic", f"--{written}"])


def test_flags_are_suggested_with_their_section():
    known = ["--json", "--optimizer.learning-rate", "--training.steps", "--optimizer.clip-norm"]
    for written in ("--learning-rate", "--lerning-rate", "--lr", "--max_lr"):
        assert nearest(written, known) == "--optimizer.learning-rate"
    assert nearest("--grad-clip", known) == "--optimizer.clip-norm"
    assert nearest("--max-steps", known) == "--training.steps"
    unlike = ["--model.tied", "--precision.partials", "--model.head"]
    assert [nearest(written, unlike) for written in ("--time", "--params", "--thread")] == [None] * 3
    assert nearest("--duration", ["--data.validation", "--time"]) == "--time"
    assert nearest("gpu", ["auto", "cpu", "cuda", "mps"]) == "cuda"
