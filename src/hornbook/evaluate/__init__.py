"""Evaluation tasks: their table, and functions that measure metrics by a stated convention."""

from functools import partial

from hornbook.evaluate import bits_per_byte, classification, lambada, masked, tasks
from hornbook.evaluate import squad_scores as squad
from hornbook.evaluate import wikitext_perplexity as wikitext
from hornbook.evaluate.evaluations import run_tasks
from hornbook.evaluate.tasks import Row, Task, TaskInput, register_task, task_names

__all__ = [
    "Row",
    "TaskInput",
    "bits_per_byte",
    "classification",
    "lambada",
    "masked",
    "register_task",
    "run_tasks",
    "squad",
    "task_names",
    "wikitext",
]

tasks.TASKS.update(
    bits_per_byte=Task(
        measure=bits_per_byte.bits_per_byte,
        check=bits_per_byte.read,
        models="decoder",
        lower=("bits_per_byte", "nats_per_token", "token_perplexity"),
        scores_held_out=True,
    ),
    classification=Task(
        measure=classification.classification,
        check=classification.read,
        models="any",
        lower=("cross_entropy",),
        higher=("accuracy", "macro_f1"),
        scores_held_out=True,
    ),
    lambada=Task(
        measure=lambada.lambada,
        check=lambada.read,
        models="decoder",
        lower=("last_word_perplexity", "last_token_perplexity"),
        higher=(
            "last_word_accuracy",
            "last_word_accuracy_filtered",
            "last_token_accuracy",
            "last_token_accuracy_filtered",
        ),
    ),
    masked_lm=Task(
        measure=masked.masked_lm,
        check=masked.read_masked,
        models="encoder",
        lower=("loss", "perplexity", "next_sentence_loss"),
        higher=("accuracy", "next_sentence_accuracy"),
        scores_held_out=True,
    ),
    pseudo_perplexity=Task(
        measure=masked.pseudo_perplexity,
        check=masked.read_copies,
        models="encoder",
        lower=("pseudo_perplexity", "nats_per_token"),
        scores_held_out=True,
    ),
    span=Task(
        measure=squad.span,
        check=squad.read,
        models="encoder",
        higher=("exact_match", "f1"),
        scores_held_out=True,
    ),
    wikitext103=Task(
        measure=partial(wikitext.measure, "wikitext103"), check=wikitext.read, models="decoder", lower=wikitext.METRICS
    ),
    wikitext2=Task(
        measure=partial(wikitext.measure, "wikitext2"), check=wikitext.read, models="decoder", lower=wikitext.METRICS
    ),
)
