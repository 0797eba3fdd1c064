"""Entry of `python -m tenonry.launch.child`: read the role from standard input, end with the parent, run the role.

The message is JSON text: name, role ("module:function"), payload (texts for the role), sys_path, lifeline (a file
descriptor that closes when the parent ends, or -1), parent (its pid, or 0), removes (a folder, or nothing), outputs
(pipes for standard output and error, or none).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import logging
import os
import pkgutil
import shutil
import signal
import sys
import threading
from typing import Any

from tenonry.launch.output import redirect

logger = logging.getLogger("tenonry.launch")
PR_SET_PDEATHSIG = 1
EXIT_PARENT_DIED = 70  # EX_SOFTWARE


def main() -> int:
    """Run one role; returns the exit status."""
    text = sys.stdin.buffer.read()
    if not text:  # the parent ended during the start
        return EXIT_PARENT_DIED
    message: dict[str, Any] = json.loads(text)
    sys.stdin.close()
    redirect(message["outputs"])
    os.closerange(0, 1)  # for the null device, see `configure_logging`
    sys.path[:] = message["sys_path"]  # modules are found in the order of the parent
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # sent to the whole group: the parent decides
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # blocked by the parent until now
    _tie_to_parent(message["lifeline"], message["parent"], message["removes"])

    from setproctitle import setproctitle

    from tenonry.logs import configure_logging

    setproctitle(f"tenonry: {message['name']}")
    configure_logging(message["name"])
    gc.disable()  # objects of modules are permanent: collecting while importing is wasted
    role = pkgutil.resolve_name(message["role"])
    gc.freeze()
    gc.enable()
    return int(role(message["payload"]))


def _tie_to_parent(lifeline: int, parent: int, removes: str) -> None:
    """End when the parent ends: by the kernel's signal where it is exact, and by the lifeline in any case."""
    if parent and sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(EXIT_PARENT_DIED)
    if lifeline >= 0:
        threading.Thread(
            target=_end_with, args=(lifeline, removes), name="lifeline", daemon=True
        ).start()


def _end_with(lifeline: int, removes: str) -> None:
    with contextlib.suppress(OSError):
        while os.read(lifeline, 1):
            pass
    if removes:
        shutil.rmtree(removes, ignore_errors=True)
    os._exit(EXIT_PARENT_DIED)


if __name__ == "__main__":
    sys.exit(main())
