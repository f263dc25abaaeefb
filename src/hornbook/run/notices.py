"""What may be a slip in a recipe, now that its data and its length are known; told once, before the first step.

train gpt2-small --data.train corpora/mine --training.steps 20
    -> schedule.warmup_steps is 2000, the run has 20 steps: the rate reaches 6e-06 of 0.0006; ...
    -> a batch has 512 windows, the data 120: each step learns them 4.3 times; ...
    -> the vocabulary is 50,257, that of the data 4,096: --model.vocab-size none takes that
    -> no end-of-text tokens are between the documents of corpora/old, as between the others': ...
"""

from hornbook.config import CausalLMConfig, Recipe
from hornbook.config.optimizers import ScheduleConfig
from hornbook.optim.schedules import build_schedule, warmup_steps_of
from hornbook.samples.sources import Sources
from hornbook.wording import counted

_PADDED_TO = 128
"""Rows of a table are padded to a multiple of so many at most, for the sake of speed."""


def long_warmup(recipe: Recipe, num_steps: int) -> str | None:
    """Say that the run ends before its warm-up does, and how far the learning rate comes; None where it does not."""
    schedule, peak = recipe.schedule, recipe.optimizer.learning_rate
    if not isinstance(schedule, ScheduleConfig) or warmup_steps_of(schedule, num_steps) <= num_steps:
        return None
    reached = peak * build_schedule(schedule, num_steps)(num_steps - 1)
    return (
        f"schedule.warmup_steps is {schedule.warmup_steps}, the run has {counted(num_steps, 'step')}: the rate only "
        f"reaches {reached:.2g} of {peak:g}; lower it, or use --schedule.warmup-fraction"
    )


def large_batch(recipe: Recipe, num_samples: int, noun: str) -> str | None:
    """Say that a batch goes through all samples more than once; None where it does not."""
    size = recipe.training.global_batch_size
    if size <= num_samples:
        return None
    return (
        f"a batch has {counted(size, noun)}, the data {num_samples:,}: each step repeats them {size / num_samples:.1f} "
        "times; lower training.global_batch_size"
    )


def large_vocabulary(recipe: Recipe, sources: Sources) -> str | None:
    """Say that the model has more tokens than its data, by more than padding explains; None where it has not."""
    own, theirs = recipe.model.vocab_size, sources.vocab_size
    if own is None or theirs is None or own <= -(-theirs // _PADDED_TO) * _PADDED_TO:
        return None
    return f"model.vocab_size is {own:,}, the data has {theirs:,} tokens; --model.vocab-size none uses the data's"


def differing_ends(recipe: Recipe, sources: Sources) -> str | None:
    """Say that a decoder is to learn where texts end from some of its stores only; None where that is not so."""
    if not isinstance(recipe.objective, CausalLMConfig):
        return None
    ends = {path: source.end_of_text for path, source in zip(recipe.data.train, sources.train, strict=False)}
    without = [path for path, end_of_text in ends.items() if end_of_text == "absent"]
    if len(without) in (0, len(ends)):
        return None
    return (
        f"the documents of {', '.join(without)} have no end-of-text tokens, unlike the others: "
        "rebuild the store, or convert it with --end-of-text inserted"
    )
