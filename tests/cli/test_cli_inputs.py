import argparse

from hornbook.cli import inputs
from hornbook.storage import system


def test_reading_takes_the_cores_that_a_container_lets_it_use(monkeypatch):
    monkeypatch.setattr(system, "usable_cores", lambda: 3)
    parser = argparse.ArgumentParser()
    inputs.add_input_arguments(parser)
    assert inputs.read_options(parser.parse_args(["texts"])).processes == 3
    parser.add_argument("--threads", type=int)
    assert inputs.read_options(parser.parse_args(["texts", "--threads", "2"])).processes == 2
