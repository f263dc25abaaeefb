"""The first signal is noted, the second ends the process, and handlers are put back."""

import os
import signal
import sys
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest

from hornbook.errors import StoppedBySignal
from hornbook.parallel.launched import leave_cleanly, listen
from hornbook.track.console import Console

NAMES = ["SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("quiet", [False, True])
def test_first_signal_is_recorded_by_name_and_reported_at_once(capfd, name, quiet):
    """Ranks but the first are quiet."""
    with listen(Console(quiet=quiet).interject) as received:
        assert received.name is None
        os.kill(os.getpid(), getattr(signal, name))
        assert received.name == name
    message = f"\nhornbook: {name}: saving and stopping; send it again to exit at once\n"
    assert capfd.readouterr().err == message * (not quiet)


def silent(text: str) -> None:
    """Say nothing."""


@pytest.mark.parametrize("second", NAMES)
def test_second_signal_interrupts_and_the_first_stays_noted(second):
    with pytest.raises(KeyboardInterrupt), listen(silent) as received:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), getattr(signal, second))
    assert received.name == "SIGTERM"


def test_handlers_are_put_back_also_after_an_error():
    before = {name: signal.getsignal(getattr(signal, name)) for name in NAMES}
    with pytest.raises(RuntimeError), listen(silent):
        assert signal.getsignal(signal.SIGTERM) is not before["SIGTERM"]
        raise RuntimeError
    assert {name: signal.getsignal(getattr(signal, name)) for name in NAMES} == before


@pytest.mark.parametrize("name", NAMES[1:])
def test_a_signal_before_the_loop_listens_is_one_line_and_its_code(name):
    """Nor does who continues after an error continue after a signal."""
    before = signal.getsignal(getattr(signal, name))
    with (
        pytest.raises(StoppedBySignal, match=f"stopped by {name}; run the same command again") as caught,
        leave_cleanly(),
        suppress(Exception),
    ):
        os.kill(os.getpid(), getattr(signal, name))
    assert caught.value.exit_code == 75 and signal.getsignal(getattr(signal, name)) == before


@pytest.mark.parametrize(("name", "error"), [("SIGINT", KeyboardInterrupt), ("SIGTERM", StoppedBySignal)])
def test_a_signal_waits_until_torch_is_imported(name, error, monkeypatch):
    """Its C++ ignores exceptions."""
    torch = SimpleNamespace(__spec__=SimpleNamespace(_initializing=True))
    monkeypatch.setitem(sys.modules, "torch", torch)
    waited = False
    with pytest.raises(error), leave_cleanly():
        os.kill(os.getpid(), getattr(signal, name))
        time.sleep(0.1)
        waited, torch.__spec__._initializing = True, False
        time.sleep(60)
    assert waited


def test_a_second_signal_does_not_wait(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__spec__=SimpleNamespace(_initializing=True)))
    with pytest.raises(KeyboardInterrupt), leave_cleanly():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("block", [lambda: listen(silent), leave_cleanly], ids=["listen", "leave_cleanly"])
def test_ignored_signals_stay_ignored(block, name):
    """As by nohup, and of a script's jobs in the background."""
    number = getattr(signal, name)
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with block():
            os.kill(os.getpid(), number)
            assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)
