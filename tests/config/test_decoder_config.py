"""Options of decoders that do not fit are reported in one line each, and the rest follows from the description."""

import pytest

from hornbook.config import DecoderConfig, load_recipe
from hornbook.errors import RecipeError

TINY = "--data.synthetic --model.vocab-size=70 --model.num-layers=2 --model.hidden-size=32 --model.num-heads=4"
MISTAKES = {
    "--model.num-heads=3": "hidden_size must be divisible by num_heads; change one of them or set head_size",
    "--model.num-kv-heads=3": "num_kv_heads must divide num_heads, which is 4; change one of them",
    "--model.head-size=7": "rotary positions need an even number of columns, not 7 of a head's 7; change one of them",
    "--model.rope-share=0.1": "rotary positions need an even number of columns, not 0 of a head's 8; change",
    "--model.head-size=6 --model.shifted-keys": "shifted_keys need heads of a multiple of 4 columns, not 6; change one",
    "--model.window=300": "window must not exceed sequence_length, 256; lower it or remove it",
    "--model.window=9 --model.window-pattern=LX": "must consist of L (with window) and G (without), such as",
    "--model.window-pattern=LG": "window_pattern applies only with a window; remove it",
    "--model.window-pattern=": 'model.window_pattern = "" (command line): must not be empty',
    "--model.rope-scaling=linear": 'rope_scaling = "linear" needs rope_factor; set them or remove it',
    "--model.rope-scaling=yarn --model.rope-factor=2": "needs rope_original_positions; set them or remove it",
    "--model.rope-scaling=llama3 --model.rope-factor=8": "needs rope_original_positions and rope_low_factor and",
    "--model.rope-factor=2": 'has no effect with rope_scaling = "none"; remove it',
    "--model.local-rope-theta=100": "local_rope_theta applies only with rotary positions and a window; remove it",
    "--model.norm=layer --model.norm-gain=false": 'norm_gain applies only with norm = "rms"; remove it',
    "--parallel.tensor-parallel=2 --model.num-kv-heads=1": "tensor_parallel must divide num_kv_heads, which is 1",
    "--parallel.tensor-parallel=2 --model.query-key-norm=width": "does not support tensor parallelism; set",
    "--objective.z-loss=0.1 --objective.recurrence-weights": "z_loss does not support recurrence_weights; remove one",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_one_line_for_a_mistake(words: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe("demo", ["--model.family=decoder", *TINY.split(), *words.split()])
    (problem,) = caught.value.problems
    assert MISTAKES[words] in problem


def test_odd_heads_of_a_modernbert() -> None:
    with pytest.raises(RecipeError, match=r"need an even size of a head, not 15; change one of them$"):
        load_recipe("modernbert-mini", ["--data.synthetic", "--model.vocab-size=70", "--model.hidden-size=60"])


def test_windows_count_in_the_operations() -> None:
    """Of 512 tokens, two layers of three see 128: 12 · 4 heads of 8 columns · (128 + 128 + 512)."""
    sizes = {"num_layers": 3, "hidden_size": 32, "num_heads": 4, "vocab_size": 70}
    plain = DecoderConfig(**sizes).flops_per_token(0)
    windowed = DecoderConfig(**sizes, window=128, window_pattern="LLG")
    assert windowed.flops_per_token(512) - plain == 12 * 32 * (128 + 128 + 512)


def test_grouped_heads_have_fewer_weights() -> None:
    sizes = {"num_layers": 1, "hidden_size": 32, "num_heads": 4, "vocab_size": 70}
    difference = DecoderConfig(**sizes).num_parameters() - DecoderConfig(**sizes, num_kv_heads=1).num_parameters()
    assert difference == 2 * 32 * (32 - 8)
