"""Tensors cut into the boxes of several ranks: saved, verified and read back, whole or in part, bit for bit."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
from crashes import crashes_in_child
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_checkpoints import one_line

from hornbook.checkpoint import Contents, Shard, list_checkpoints, load, save, save_share, temporary_of, verify
from hornbook.checkpoint.manifest import MANIFEST, Manifest, read_manifest
from hornbook.checkpoint.tensors import Box, Layout, StoredTensors, open_file
from hornbook.errors import CheckpointError

NUMBERS = torch.arange(8 * 6, dtype=torch.float32).reshape(8, 6)


def cut(tensor: torch.Tensor, num_ranks: int, dimension: int) -> list[Shard]:
    """The tensor in ``num_ranks`` shards along a dimension."""
    size = -(-tensor.shape[dimension] // num_ranks)
    parts = tensor.split(size, dimension)
    begins = [[0] * tensor.dim() for _ in parts]
    for number, begin in enumerate(begins):
        begin[dimension] = number * size
    return [
        Shard(values=part, begin=tuple(begin), shape=tuple(tensor.shape))
        for part, begin in zip(parts, begins, strict=True)
    ]


def by_rank(**shards: list[Shard]) -> list[dict[str, dict[str, Shard]]]:
    """What each of 4 ranks holds of a group ``model``."""
    return [{"model": {name: held[rank] for name, held in shards.items() if rank < len(held)}} for rank in range(4)]


@pytest.fixture
def four(tmp_path) -> Path:
    """A checkpoint of 4 ranks: one tensor in rows, one in columns, one whole on the first rank, one number."""
    ranks = by_rank(
        rows=cut(NUMBERS, 4, 0),
        columns=cut(NUMBERS.bfloat16(), 3, 1),
        stacked=cut(torch.arange(24).reshape(3, 4, 2), 4, 1),
        whole=[Shard.whole(NUMBERS[0])],
        count=[Shard.whole(torch.tensor(7))],
    )
    return save(tmp_path, Contents(step=3, tensors={}), ranks)


def test_tensors_cut_over_four_ranks_are_read_whole(four):
    assert sorted(path.name for path in four.iterdir()) == [
        "manifest.json",
        *(f"model-{rank:05d}.safetensors" for rank in range(4)),
    ]
    found = load(four).tensors["model"]
    assert list(found) == sorted(["rows", "columns", "stacked", "whole", "count"])
    assert torch.equal(found["rows"], NUMBERS)
    assert torch.equal(found["columns"], NUMBERS.bfloat16()) and found["columns"].dtype == torch.bfloat16
    assert torch.equal(found["stacked"], torch.arange(24).reshape(3, 4, 2))
    assert torch.equal(found["whole"], NUMBERS[0])
    assert found["count"].shape == () and found["count"] == 7


def test_another_topology_reads_its_own_boxes(four):
    found = load(four).tensors["model"]
    for name in ("rows", "columns"):
        for column in range(0, 6, 2):
            box = found.read(name, Box((1, column), (7, 2)))
            assert torch.equal(box.float(), NUMBERS[1:, column : column + 2])
            assert box.is_contiguous()


def test_only_files_that_hold_part_of_a_box_are_read(four):
    needed = {"model-00001.safetensors": open_file(four / "model-00001.safetensors")}
    stored = StoredTensors(four, read_manifest(four).tensors["model"], needed)
    assert torch.equal(stored.read("rows", Box((2, 1), (2, 4))), NUMBERS[2:4, 1:5])
    with pytest.raises(KeyError):
        stored.read("rows", Box((2, 0), (3, 6)))


def test_equal_boxes_give_equal_bytes(tmp_path):
    paths = [
        save(tmp_path / name, Contents(step=1, tensors={}), by_rank(rows=cut(NUMBERS, 4, 0))) for name in ("a", "b")
    ]
    for file in paths[0].iterdir():
        assert file.read_bytes() == (paths[1] / file.name).read_bytes()


def test_ranks_verify_each_file_once(four):
    (four / "model-00002.safetensors").write_bytes(b"damaged")
    found = [verify(four, share=(rank, 3)) for rank in range(3)]
    assert sorted(problem for problems in found for problem in problems) == verify(four)
    assert sum(map(bool, found)) == 1
    (four / "extra").touch()
    assert all("'extra' is not in the manifest" in verify(four, share=(rank, 3)) for rank in range(3))


@pytest.mark.parametrize(
    ("shards", "problem"),
    [
        (cut(NUMBERS, 4, 0)[:3], "its boxes have 36 elements, the tensor 48"),
        ([*cut(NUMBERS, 2, 0), cut(NUMBERS, 2, 0)[1]], "its boxes have 72 elements"),
        ([cut(NUMBERS, 2, 0)[0], cut(NUMBERS, 2, 1)[0]], r"its boxes at \[0, 0\] and \[0, 0\] overlap"),
        ([Shard(values=NUMBERS, begin=(1, 0), shape=(8, 6))], "a box at"),
        ([Shard(values=NUMBERS, begin=(0,), shape=(8, 6))], "a box at"),
        ([cut(NUMBERS, 2, 0)[0], cut(NUMBERS.bfloat16(), 2, 0)[1]], "another shape or dtype in model-00001"),
    ],
)
def test_boxes_that_do_not_make_up_their_tensor_are_refused_and_nothing_is_written(tmp_path, shards, problem):
    with pytest.raises(CheckpointError, match=problem) as caught:
        save(tmp_path / "checkpoints", Contents(step=1, tensors={}), by_rank(x=shards))
    assert one_line(caught.value)
    assert not (tmp_path / "checkpoints").exists()


def saved_by_ranks(folder: Path, ranks: list[dict[str, dict[str, Shard]]]) -> Path:
    """Save as several ranks do, each what it holds; the first one makes the checkpoint."""

    @contextmanager
    def others(temporary: Path) -> Iterator[None]:
        assert temporary == temporary_of(folder, 3, os.getpid())
        for rank, shards in enumerate(ranks[1:], 1):
            save_share(temporary, 3, rank, shards)
        yield

    return save(folder, Contents(step=3, tensors={}), ranks[:1], others)


def test_ranks_that_each_write_their_part_make_the_bytes_that_one_process_writes(tmp_path):
    ranks = by_rank(rows=cut(NUMBERS, 4, 0), columns=cut(NUMBERS.bfloat16(), 3, 1), whole=[Shard.whole(NUMBERS[0])])
    expected = save(tmp_path / "one", Contents(step=3, tensors={}), ranks)
    found = saved_by_ranks(tmp_path / "several", ranks)
    assert {path.name: path.read_bytes() for path in found.iterdir()} == {
        path.name: path.read_bytes() for path in expected.iterdir()
    }


def test_a_part_that_no_rank_wrote_leaves_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="its boxes have 36 elements, the tensor 48"):
        saved_by_ranks(tmp_path, by_rank(rows=cut(NUMBERS, 4, 0))[:3])
    assert list(tmp_path.iterdir()) == []


def forge(path: Path, **layouts: Layout) -> None:
    """Let the manifest say something else of the tensors, and be sealed anew."""
    manifest = read_manifest(path)
    forged = Manifest(step=manifest.step, files=manifest.files, tensors={"model": layouts})
    (path / MANIFEST).write_bytes(forged.to_bytes())


@pytest.mark.parametrize(
    ("layout", "problem"),
    [
        (Layout(dtype="F32", shape=(8, 6), boxes={"model-00000.safetensors": Box((0, 0), (8, 6))}), "does not have"),
        (Layout(dtype="I32", shape=(2, 6), boxes={"model-00000.safetensors": Box((0, 0), (2, 6))}), "does not have"),
        (Layout(dtype="F32", shape=(8, 6), boxes={"model-00000.safetensors": Box((0, 0), (2, 6))}), "is incomplete"),
        (Layout(dtype="F32", shape=(2, 6), boxes={"model-00000.safetensors": Box((9, 0), (2, 6))}), "is incomplete"),
        (Layout(dtype="F32", shape=(2**40, 2**40), boxes={}), "is incomplete"),
    ],
)
def test_a_manifest_that_contradicts_its_files_is_reported(four, layout, problem):
    forge(four, rows=layout)
    assert verify(four) == []
    with pytest.raises(CheckpointError, match=problem) as caught:
        load(four)
    assert one_line(caught.value)


def test_a_tensor_that_no_file_holds_is_reported(four):
    forge(four, other=Layout(dtype="F32", shape=(2, 6), boxes={"model-00000.safetensors": Box((0, 0), (2, 6))}))
    with pytest.raises(CheckpointError, match=r"model-00000\.safetensors does not have \[2, 6\] of other"):
        load(four)


@st.composite
def tilings(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box]]:
    """A shape of up to 3 dimensions and boxes that make it up, made by cutting boxes in two again and again."""
    shape = tuple(draw(st.lists(st.integers(1, 5), max_size=3)))
    boxes = [Box.whole(shape)]
    for _ in range(draw(st.integers(0, 6))):
        box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        dimension = draw(st.integers(0, max(0, len(shape) - 1)))
        size = box.shape[dimension] if shape else 1
        if size == 1:
            boxes.append(box)
            continue
        at = draw(st.integers(1, size - 1))
        for begin, length in ((0, at), (at, size - at)):
            begins, sizes = list(box.begin), list(box.shape)
            begins[dimension], sizes[dimension] = begins[dimension] + begin, length
            boxes.append(Box(tuple(begins), tuple(sizes)))
    return shape, draw(st.permutations(boxes))


@settings(max_examples=40, deadline=None)
@given(tilings(), st.data())
def test_any_cut_is_saved_and_any_box_is_read(tmp_path_factory, tiling, data):
    shape, boxes = tiling
    tensor = torch.randn(shape)
    ranks = [
        {"model": {"x": Shard(values=tensor[box.inside(Box.whole(shape))], begin=box.begin, shape=shape)}}
        for box in boxes
    ]
    path = save(tmp_path_factory.mktemp("cut"), Contents(step=1, tensors={}), ranks)
    found = load(path).tensors["model"]
    assert torch.equal(found["x"], tensor)
    begin = tuple(data.draw(st.integers(0, size - 1)) for size in shape)
    box = Box(begin, tuple(data.draw(st.integers(0, size - first)) for size, first in zip(shape, begin, strict=True)))
    part = found.read("x", box)
    assert part.shape == box.shape and torch.equal(part, tensor[box.inside(Box.whole(shape))])


@given(tilings(), st.data())
def test_a_cut_with_a_box_moved_or_left_out_is_a_problem(tiling, data):
    shape, boxes = tiling
    assert Layout(dtype="F32", shape=shape, boxes=dict(zip(map(str, range(99)), boxes, strict=False))).problem() is None
    number = data.draw(st.integers(0, len(boxes) - 1))
    rest = [box for other, box in enumerate(boxes) if other != number]
    dimension = data.draw(st.integers(0, max(0, len(shape) - 1)))
    moved = Box(tuple(first + (at == dimension) for at, first in enumerate(boxes[number].begin)), boxes[number].shape)
    for wrong in (rest, [*rest, moved] if shape else rest):
        layout = Layout(dtype="F32", shape=shape, boxes={str(at): box for at, box in enumerate(wrong)})
        assert layout.problem()


def test_a_crash_anywhere_in_a_save_of_several_ranks_leaves_all_of_it_or_nothing(tmp_path):
    contents, ranks = Contents(step=3, tensors={}), by_rank(rows=cut(NUMBERS, 4, 0))
    seen, n = set(), 1
    while crashes_in_child(partial(save, tmp_path / str(n), contents, ranks), "any", n, "crash-after"):
        found = list_checkpoints(tmp_path / str(n))
        assert [info.problems for info in found] in ([], [[]])
        assert all(torch.equal(load(info.path).tensors["model"]["rows"], NUMBERS) for info in found)
        seen.add(len(found))
        n += 1
    assert n > 15 and seen == {0, 1}
