"""What the board reads in threads of its own."""

import threading
import time

import pytest

from hornbook.track.watched import Background


def test_others_may_wait_while_a_thread_is_being_started(monkeypatch: pytest.MonkeyPatch) -> None:
    start, begun, go_on = threading.Thread.start, threading.Event(), threading.Event()

    def slow_start(thread: threading.Thread) -> None:
        if thread.daemon:
            begun.set()
            assert go_on.wait(60)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", slow_start)
    task, done = Background(), threading.Event()
    starter = threading.Thread(target=task.start, args=(done.set,))
    starter.start()
    assert begun.wait(60)
    task.wait(60.0)
    go_on.set()
    starter.join()
    task.wait(60.0)
    assert done.is_set()


def test_an_action_that_takes_too_long_is_not_started_again() -> None:
    task, go_on, runs = Background(), threading.Event(), []
    task.start(lambda: (runs.append(1), go_on.wait(60)))  # type: ignore[func-returns-value]
    task.wait(0.01)
    assert task.waiting
    task.start(lambda: runs.append(2))
    go_on.set()
    task.wait(60.0)
    assert runs == [1]
    while task.waiting is not None:
        time.sleep(0.01)
    task.start(lambda: runs.append(3))
    task.wait(60.0)
    assert runs == [1, 3]
