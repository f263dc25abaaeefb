"""Whose operators compute: the option, the machine, what was measured, and what a run was computed with before."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import get_args, get_type_hints

import pytest
import torch

from hornbook.config.sections import PrecisionConfig
from hornbook.errors import UserError
from hornbook.ops.block_sparse import choose_kernel
from hornbook.ops.native import block_sparse, choice, linear_trial, trials
from hornbook.ops.native.build import ARCHITECTURES, HALVES, INSTRUCTION_SETS
from hornbook.ops.native.cache import BuildError
from hornbook.ops.native.choice import choose
from hornbook.ops.native.kernels import BLOCKS, PYTORCH, Form, Kernels, instruction_sets, using
from hornbook.ops.native.trials import Kernel, Shape, is_right, seconds

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def on_this_machine():
    """Skip where native operators cannot be built or run."""
    if len(instruction_sets()) < 2:
        pytest.skip("the machine has fewer than two native forms")


@pytest.fixture
def times(monkeypatch):
    """The time of the linear kernels, the only ones, by instruction set; tests change it."""
    monkeypatch.setattr(choice, "KERNELS", linear_trial.KERNELS)
    times = {PYTORCH: 3.0, **dict.fromkeys(instruction_sets(), 2.0), instruction_sets()[-1]: 1.0}
    monkeypatch.setattr(choice, "seconds", lambda kernel, shape: times)
    return times


@pytest.mark.parametrize(("dtype", "name"), [(torch.float32, "linear_f32"), (torch.bfloat16, "linear_bf16")])
def test_auto_takes_the_fastest_form_if_it_beats_pytorch(times, dtype, name):
    (kernel,) = (kernel for kernel in linear_trial.KERNELS if kernel.name == name)
    newest, *_, oldest = (isa for isa in kernel.instruction_sets if isa != HALVES)
    assert choose("auto", CPU, dtype).forms == {name: oldest}
    times[newest] = 0.5
    assert choose("auto", CPU, dtype).forms == {name: newest}
    times[PYTORCH] = 0.5
    assert choose("auto", CPU, dtype).forms == {}
    assert choose("native", CPU, dtype).forms == {name: newest}


def test_other_dtypes_and_devices_and_the_option_leave_pytorch(times):
    assert choose("native", CPU, torch.float16).forms == choose("auto", CPU, torch.float16).forms == {}
    for asked, device in (("torch", "cpu"), ("auto", "meta"), ("native", "meta")):
        kernels = choose(asked, torch.device(device), torch.bfloat16)
        assert kernels.forms == {}
        assert kernels.why in str(kernels)


def test_partial_sums_are_in_fp16_only_where_the_recipe_permits_it(times):
    times[HALVES] = 0.5
    oldest, earlier = {"linear_bf16": instruction_sets()[-1]}, {"linear_bf16": HALVES}
    assert choose("auto", CPU, torch.bfloat16).forms == choose("native", CPU, torch.bfloat16).forms == oldest
    assert choose("auto", CPU, torch.bfloat16, partials="fp32", earlier=earlier).forms == oldest
    if HALVES in instruction_sets():
        assert choose("auto", CPU, torch.bfloat16, partials="half").forms == earlier
        assert choose("auto", CPU, torch.bfloat16, partials="half", earlier=earlier).forms == earlier


def test_a_run_keeps_the_forms_that_it_was_computed_with(times):
    newest = next(isa for isa in instruction_sets() if isa != HALVES)
    assert choose("auto", CPU, torch.bfloat16, earlier={"linear_bf16": newest}).forms == {"linear_bf16": newest}
    assert choose("native", CPU, torch.bfloat16, earlier={"linear_bf16": newest}).forms == {"linear_bf16": newest}
    assert choose("auto", CPU, torch.bfloat16, earlier={}).forms == {}, "it was computed by PyTorch"
    oldest = {"linear_bf16": instruction_sets()[-1]}
    assert choose("auto", CPU, torch.bfloat16, earlier={"linear_bf16": "of another machine"}).forms == oldest


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_form_that_is_asked_for_computes_all_that_it_can(isa, dtype):
    if isa not in instruction_sets():
        with pytest.raises(UserError, match=f'precision.kernels = "{isa}" cannot compute here: not '):
            choose(isa, CPU, dtype, partials="half")
        pytest.skip(f"the machine has no {isa}")
    kernels = choose(isa, CPU, dtype, partials="half", earlier={}, blocks="auto")
    order = list(INSTRUCTION_SETS)
    own = {kernel.name for kernel in choice.KERNELS if kernel.dtype in (dtype, None) and isa in kernel.instruction_sets}
    assert {name for name, form in kernels.forms.items() if form == isa} == own
    assert set(kernels.forms) == {kernel.name for kernel in choice.KERNELS if kernel.dtype in (dtype, None)}
    assert all(order.index(form) <= order.index(isa) for form in (*kernels.forms.values(), kernels.blocks))
    assert kernels.why == "precision.kernels"


def test_a_form_that_cannot_compute_the_run_is_refused(monkeypatch):
    def refused(isa, device="cpu", dtype=torch.bfloat16):
        with pytest.raises(UserError) as caught:
            choose(isa, torch.device(device), dtype)
        return str(caught.value)

    foreign = "neon" if "avx2" in INSTRUCTION_SETS else "avx2"
    assert f'"{foreign}" cannot compute here: it is for another kind of processor' in refused(foreign)
    assert "native operators are for CPUs" in refused("avx2", "meta")
    assert "native operators are for fp32 and bf16" in refused("avx2", dtype=torch.float16)
    if HALVES in instruction_sets():
        assert 'requires precision.partials = "half"' in refused(HALVES)
    monkeypatch.setattr(choice, "is_right", lambda kernel, isa: False)
    assert "avx2 computes wrong results here" in refused("avx2")
    monkeypatch.setattr(choice, "load", lambda: BuildError("there is no C++ compiler"))
    assert "there is no C++ compiler" in refused("avx2")


def test_the_recipe_names_every_form():
    names = get_args(get_type_hints(PrecisionConfig)["kernels"])
    assert names == ("auto", "torch", "native", *ARCHITECTURES["x86_64"], *ARCHITECTURES["aarch64"])


def test_no_compiler_leaves_pytorch_and_says_why(monkeypatch):
    monkeypatch.setattr(choice, "load", lambda: BuildError("there is no C++ compiler"))
    kernels = choose("native", CPU, torch.bfloat16)
    assert kernels.forms == {}
    assert "there is no C++ compiler" in str(kernels)


def test_block_sparse_products_without_a_native_form_warn_once(times, monkeypatch, caplog):
    monkeypatch.setattr(block_sparse, "newest_form", lambda: "there is no C++ compiler")
    choice._warn_of_pytorch.cache_clear()
    with caplog.at_level("WARNING", logger="hornbook.ops"):
        for asked in ("torch", "auto", "native"):
            assert choose(asked, CPU, torch.float64, blocks="auto").blocks == PYTORCH
            assert len(caplog.messages) == (asked != "torch")
    assert caplog.messages[0].endswith("slower: there is no C++ compiler")


def test_a_form_that_disagrees_is_never_chosen(monkeypatch, tmp_path):
    monkeypatch.setattr(trials, "_facts_file", lambda: tmp_path / "seconds.json")
    kernel = Kernel("odd_bf16", torch.bfloat16, lambda form, _: form == Form(right), lambda form, _: None)
    wrong, *_, right = kernel.instruction_sets
    assert not is_right(kernel, wrong)
    assert not is_right(kernel, "of another machine")
    monkeypatch.setattr(choice, "KERNELS", (kernel,))
    assert choose("native", CPU, torch.bfloat16).forms == {"odd_bf16": right}
    is_right.cache_clear()  # as in another process
    unchecked = replace(kernel, check=lambda form, _: pytest.fail("forms are checked once a machine"))
    assert is_right(unchecked, right) and not is_right(unchecked, wrong)


def test_forms_are_timed_once_a_machine(monkeypatch, tmp_path):
    path = tmp_path / "seconds.json"
    monkeypatch.setattr(trials, "_facts_file", lambda: path)
    calls = []
    kernel = Kernel(
        "odd_bf16", torch.bfloat16, lambda form, _: True, lambda form, _, **sizes: calls.append((form, *sizes.values()))
    )
    first = seconds(kernel)
    num_calls = len(calls)
    assert {form for form, *_ in calls} == {None, *map(Form, kernel.instruction_sets)}
    assert seconds(kernel) == first
    assert len(calls) == num_calls
    assert seconds(replace(kernel, name="even_bf16"))
    assert num_calls < len(calls)
    (known,) = json.loads(path.read_text()).values()
    assert set(known) == {"odd_bf16", "even_bf16"}
    sized, num_calls = replace(kernel, name="sized_bf16", sizes=("tokens", "hidden_size")), len(calls)
    for tokens, width, is_new in ((100, 250, True), (120, 256, False), (129, 256, True), (129, 257, True)):
        seconds(sized, Shape(tokens=tokens, hidden_size=width, vocab_size=tokens))
        assert (len(calls) > num_calls) == is_new, "a class of shapes is timed once"
        num_calls = len(calls)
    assert calls[-1][1:] == (192, 384), "with its own sizes"
    for changed in (
        "torch.__version__",
        "hornbook.ops.native.trials.cpu_model",
        "hornbook.ops.native.trials.cpu_facts",
    ):
        num_calls = len(calls)
        with monkeypatch.context() as other:
            named = {"torch.__version__": "other", "hornbook.ops.native.trials.cpu_model": lambda: "other"}
            other.setattr(changed, named.get(changed, lambda: {"stepping": "9"}))
            trials._circumstances.cache_clear()
            seconds(kernel)
        trials._circumstances.cache_clear()
        assert len(calls) > num_calls, f"times are those of another {changed}"
    path.write_text("damaged")
    assert set(seconds(kernel)) == set(first)


def test_processes_that_start_together_use_the_times_of_one(monkeypatch, tmp_path):
    monkeypatch.setattr(trials, "_facts_file", lambda: tmp_path / "seconds.json")
    kernel = Kernel("odd_bf16", torch.bfloat16, lambda form, _: True, lambda form, _: time.sleep(0.001))
    with ThreadPoolExecutor(2) as threads:  # a lock of a file is that of an open file, not of a process
        one, other = threads.map(seconds, (kernel, kernel))
    assert one == other


def test_a_time_that_no_other_confirms_is_measured_again(monkeypatch, tmp_path):
    monkeypatch.setattr(trials, "_facts_file", lambda: tmp_path / "seconds.json")
    clock, calls = [0.0], []

    def trial(form, _):
        calls.append(form)
        of_form = calls.count(form)
        clock[0] += 1.0 if of_form in (5, 20) else 2.0 + of_form / 4

    monkeypatch.setattr("time.thread_time", lambda: clock[0])
    times = seconds(Kernel("odd_bf16", torch.bfloat16, lambda form, _: True, trial))
    assert set(times.values()) == {1.0}
    assert {calls.count(form) for form in calls} == {20}


def test_forms_that_are_far_behind_are_not_timed_further(monkeypatch, tmp_path):
    monkeypatch.setattr(trials, "_facts_file", lambda: tmp_path / "seconds.json")
    monkeypatch.setattr(trials, "instruction_sets", lambda: (HALVES, "avx512", "avx2"))
    clock, calls = [0.0], []
    of_form = {None: 1.9, Form(HALVES): 0.5, Form("avx512"): 1.0, Form("avx2"): 1.4}

    def trial(form, _):
        calls.append(form)
        clock[0] += of_form[form]

    monkeypatch.setattr("time.thread_time", lambda: clock[0])
    kernel = Kernel("odd_bf16", torch.bfloat16, lambda form, _: True, trial, special=(HALVES,))
    assert seconds(kernel) == pytest.approx({form.isa if form else PYTORCH: time for form, time in of_form.items()})
    assert {form: calls.count(form) for form in of_form} == {
        None: 3,
        Form(HALVES): 8,
        Form("avx512"): 8,
        Form("avx2"): 8,
    }


def test_block_sparse_products_follow_the_options_and_what_the_run_was_computed_with():
    newest, oldest = block_sparse.newest_form().isa, instruction_sets()[-1]

    def blocks(asked="auto", kernel="auto", device="cpu", **earlier):
        return choose(asked, torch.device(device), torch.float32, blocks=kernel, **earlier).blocks

    assert blocks() == blocks("native") == blocks("torch", "native") == newest
    assert blocks("torch") == blocks(kernel="torch") == blocks(kernel="reference") == blocks(device="meta") == PYTORCH
    assert blocks("torch", earlier={BLOCKS: oldest}) == blocks(earlier={BLOCKS: oldest}) == oldest
    assert blocks(earlier={BLOCKS: PYTORCH}) == PYTORCH
    assert blocks("native", "native", earlier={BLOCKS: PYTORCH}) == newest
    assert blocks("torch", earlier={}) == newest, "versions that did not record it computed so"
    assert choose("auto", CPU, torch.float32).blocks is None


@pytest.mark.parametrize(
    ("present", "right", "found"),
    [
        ({"amx": 1.0, "avx512bf16": 2.0, "avx512": 0.5}, {"amx", "avx512bf16", "avx512"}, "amx"),
        ({"amx": 2.0, "avx512bf16": 1.0, "avx512": 0.5}, {"amx", "avx512bf16", "avx512"}, "avx512bf16"),
        ({"amx": 1.0, "avx512bf16": 2.0}, {"amx"}, "amx"),
        ({"amx": 0.0, "avx512bf16": None, "avx512": None}, {"avx512bf16", "avx512"}, "avx512bf16"),
        ({"avx512bf16": None, "avx512": None, "avx2": None}, {"avx512bf16", "avx512", "avx2"}, "avx512bf16"),
        ({"avx512bf16": None, "avx512": None, "avx2": None}, {"avx512", "avx2"}, "avx512"),
    ],
    ids=["faster", "slower", "alone", "wrong", "no tiles", "wrong without tiles"],
)
def test_tiles_compute_blocks_where_they_are_right_and_faster(monkeypatch, present, right, found):
    """Without them, the newest form that is right computes, and none is timed."""
    monkeypatch.setattr(trials, "instruction_sets", lambda: tuple(present))
    monkeypatch.setattr(block_sparse, "is_right", lambda kernel, isa: isa in right)
    timed = {isa: seconds for isa, seconds in present.items() if isa in right and seconds is not None}
    monkeypatch.setattr(block_sparse, "seconds", lambda kernel: timed)
    assert block_sparse.newest_form.__wrapped__() == Form(found)


def test_the_choice_for_blocks_is_the_form_that_computes_them():
    newest, oldest = block_sparse.newest_form().isa, instruction_sets()[-1]
    for blocks, found in ((None, Form(newest)), (oldest, Form(oldest)), (PYTORCH, "PyTorch computes this run")):
        with using(Kernels(why="a test", blocks=blocks)):
            assert block_sparse.form() == found
            assert (choose_kernel("auto", 16, 0.1, CPU, torch.float32).kernel == "native") == (blocks != PYTORCH)
    assert Kernels(why="a test", forms={"linear_bf16": oldest}, blocks=newest).record == {
        "linear_bf16": oldest,
        BLOCKS: newest,
    }
