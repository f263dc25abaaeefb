import json
import math
from functools import partial

import pytest
from tiny_tasks import tiny_input
from tiny_text import one_line, tiny_tokenizer

from hornbook.config.task_names import OWN_TASKS
from hornbook.errors import CheckpointError, UserError
from hornbook.evaluate import Row, register_task, run_tasks, task_names, tasks
from hornbook.evaluate.tasks import assign_data, check_tasks, find_task, higher_is_better, run_task


@pytest.fixture
def own_task(monkeypatch):
    """A task that is gone after the test; it notes the data that it is given."""
    monkeypatch.setattr(tasks, "TASKS", dict(tasks.TASKS))
    seen = []

    @register_task("own", check=lambda given: seen.append(f"check {given.data}"), lower=["odd"], higher=["good"])
    def own(given):
        assert not given.loaded.model.training
        seen.append(given.data)
        return [Row(metric="odd", value=math.nan, convention="none"), Row(metric="good", value=0.5, convention="share")]

    return seen


def test_what_there_is():
    assert task_names() == [*OWN_TASKS]


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(UserError) as caught:
        find_task("lambda")
    assert one_line(caught.value, "there is no task 'lambda'", "lambada, masked_lm", 'did you mean "lambada"?')


def test_results_are_json_even_where_a_number_is_not_finite(own_task):
    result = run_tasks(["own", "own"], tiny_input(), {"own": "x"})
    (task,) = json.loads(json.dumps(result, allow_nan=False))["tasks"]
    assert (result["step"], task["name"]) == (7, "own")
    assert [row["value"] for row in task["rows"]] == [None, 0.5]
    shared = {"convention": "share", "comparable_with": None, "compute": "fp32"}
    assert task["rows"][1] == {"metric": "good", "value": 0.5} | shared
    assert own_task == ["check x", "x"]


def test_all_names_are_checked_before_anything_is_measured(own_task):
    with pytest.raises(UserError, match="there is no task 'owm'"):
        run_tasks(["own", "owm"], tiny_input(), {})
    assert own_task == []


@pytest.mark.parametrize("training", [True, False])
def test_the_model_keeps_its_mode(own_task, training):
    given = tiny_input()
    given.loaded.model.train(training)
    run_task("own", given)
    assert given.loaded.model.training is training


@pytest.mark.parametrize("training", [True, False])
def test_the_model_keeps_its_mode_when_a_task_fails(own_task, training):
    @register_task("failing")
    def failing(given):
        raise UserError("the data are gone")

    given = tiny_input()
    given.loaded.model.train(training)
    with pytest.raises(UserError, match="the data are gone"):
        run_task("failing", given)
    assert given.loaded.model.training is training


def test_a_name_that_is_taken_is_refused(own_task):
    before = find_task("own")
    register_task("own", check=before.check)(before.measure)  # the same again is fine
    with pytest.raises(UserError) as caught:
        register_task("lambada")(lambda given: [])
    assert one_line(caught.value, "task 'lambada' is already registered by hornbook.evaluate.lambada; choose another")
    assert find_task("lambada").check is not None
    with pytest.raises(UserError) as caught:
        register_task("wikitext2")(partial(find_task, "own"))
    assert one_line(
        caught.value,
        "task 'wikitext2' is already registered by hornbook.evaluate.wikitext_perplexity; choose another",
    )


def test_a_task_that_is_defined_again_takes_its_own_place(own_task):
    """As in a notebook's cell that is run again."""

    def define(value):
        @register_task("again")
        def measure(given):
            return [Row(metric="number", value=value, convention="none")]

    define(1.0)
    define(2.0)
    assert [row.value for row in run_task("again", tiny_input())] == [2.0]


def test_which_way_is_better(own_task):
    assert higher_is_better("own", "good")
    assert not higher_is_better("own", "odd")
    assert higher_is_better("lambada", "last_word_accuracy")
    assert not higher_is_better("wikitext103", "harness_bits_per_byte")
    with pytest.raises(UserError) as caught:
        higher_is_better("own", "goood")
    assert one_line(caught.value, "'own' has no metric 'goood'", "odd, good", 'did you mean "good"?')


@pytest.mark.parametrize(
    ("words", "data"),
    [
        ([], {}),
        (["x"], {"lambada": "x", "own": "x"}),
        (["lambada=x"], {"lambada": "x"}),
        (["lambada=x", "y"], {"lambada": "x", "own": "y"}),
        (["lambada=x", "own=y=z"], {"lambada": "x", "own": "y=z"}),
        (["./a=b"], {"lambada": "./a=b", "own": "./a=b"}),
    ],
)
def test_data_of_each_task(words, data):
    assert assign_data(words, ["lambada", "own"]) == data


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lambda=x"], "`data` names 'lambda', which is not among the tasks; did you mean \"lambada\"?"),
        (["x", "y"], "two entries of `data` for all tasks"),
        (["lambada=x", "lambada=y"], "two entries of `data` for lambada"),
    ],
)
def test_data_of_no_task(words, message):
    with pytest.raises(UserError) as caught:
        assign_data(words, ["lambada", "own"])
    assert one_line(caught.value, message)


def test_windows_have_to_fit_the_model():
    assert tiny_input().window_length == 24
    assert tiny_input(window=7).overlap_or(3) == 3
    assert tiny_input(window=7, overlap=0).overlap_or(3) == 0
    with pytest.raises(UserError, match="a window of 25 tokens is longer than the model's 24 positions"):
        _ = tiny_input(window=25).window_length
    with pytest.raises(UserError, match="windows of 7 tokens cannot overlap by 7: lower `overlap` to 6"):
        tiny_input(window=7, overlap=7).overlap_or(0)


def test_a_tokenizer_that_the_model_cannot_follow_is_refused():
    given = tiny_input(vocab_size=100)
    for task in ("lambada", "wikitext2"):
        with pytest.raises(CheckpointError) as caught:
            check_tasks([task], given, {})
        assert one_line(caught.value, f"a tokenizer of {tiny_tokenizer().vocab_size} tokens, its model 100")
