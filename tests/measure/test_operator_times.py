"""The operators of a step."""

import torch

from hornbook.measure.module_times import operators_of


def test_operators_share_the_time_of_one_step() -> None:
    square = torch.ones(200, 200)

    def step() -> int:
        for _ in range(3):
            torch.relu(square @ square)
        return 200

    found = operators_of(step, torch.device("cpu"))
    assert {row.name: row.calls for row in found}["aten::mm"] == 3
    assert [row.seconds for row in found] == sorted((row.seconds for row in found), reverse=True)
