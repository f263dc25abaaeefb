"""A process that holds something while a test tries to."""

import os
import time
from contextlib import AbstractContextManager


def hold_in_child(held: AbstractContextManager) -> int:
    """Fork a child that stays within ``held`` until it is killed; return its number once it is there."""
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with held:
                os.write(tell, b"!")
                time.sleep(600)
        finally:
            os._exit(1)
    os.close(tell)
    assert os.read(ready, 1) == b"!"
    os.close(ready)
    return child
