"""What stands in for an engine in the launcher's tests: a role that does what its environment says."""

from __future__ import annotations

import os
import signal
import threading


def run(payload):
    """Write down who we are, then end as told: at once with a code, on SIGTERM with 0, or never."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda signum, frame: stopped.set())
    path = os.environ.get("ROLE_FILE")
    if path:
        with open(path, "a") as file:  # noqa: PTH123
            file.write(f"{os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES')} {os.environ.get('RAY_ADDRESS')}\n")
    if "ROLE_EXIT" in os.environ:
        return int(os.environ["ROLE_EXIT"])
    stopped.wait()
    return 0
