"""Runs an action in a child process that dies at a fault point."""

import os
import sys
import traceback
import warnings

from hornbook.storage.faults import CRASH_STATUS, inject


def crashes_in_child(action, operation, n, kind):
    """Run ``action`` with a fault in a forked child; return whether it died of that, or else came to its end."""
    with warnings.catch_warnings():  # Python 3.12 warns of other threads; the child's one thread needs none of them
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:  # leave without the parent's clean-up (buffers, exit handlers, pytest)
        status = 1
        try:
            with inject(operation, n, kind):
                action()
            status = 0
        except BaseException:
            traceback.print_exc(file=sys.stderr)
            sys.stderr.flush()
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, CRASH_STATUS), f"the child at {operation}:{n}:{kind} ended with {status}"
    return status == CRASH_STATUS
