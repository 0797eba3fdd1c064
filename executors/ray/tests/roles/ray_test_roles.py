"""Stand-ins for engines and workers: importable in every process of the tests' cluster."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

from tenonry.launch.supervise import STOP_SIGNAL
from tenonry_testkit.fakes.worker import FakeWorker


def run(payload):
    """An engine's role: write its identity, then exit immediately with a given code, or on STOP_SIGNAL with 0."""
    stopped = threading.Event()
    signal.signal(STOP_SIGNAL, lambda signum, frame: stopped.set())
    told = json.loads(json.loads(payload["spec"])["config_text"])
    if "file" in told:
        with open(told["file"], "a") as file:  # noqa: PTH123
            file.write(
                f"{os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES')} {os.environ.get('RAY_ADDRESS')}\n"
            )
    if "exit" in told:
        return told["exit"]
    stopped.wait()
    return 0


class OddWorker(FakeWorker):
    """Ranks meet at a port that rank 0 opens; token 5 hangs all ranks, token 7 breaks rank 1 only."""

    rpc_methods = FakeWorker.rpc_methods | {"where"}

    def open_rendezvous(self, host):
        return f"tcp://{host}:12345"

    def where(self):
        """Context that this rank received."""
        context = self.context
        return [context.rank, context.local_rank, context.rendezvous, os.getpid()]

    def execute_model(self, output):
        for new in output.new:
            if 5 in new.token_ids:
                time.sleep(1000)
            if 7 in new.token_ids and self.context.rank == 1:
                raise ArithmeticError("rank 1 cannot do sevens")
        return super().execute_model(output)
