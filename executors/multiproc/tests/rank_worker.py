"""A fake worker with faults of one rank, for ranks in processes of their own: its text travels in the plan."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from tenonry.errors import ConfigError
from tenonry.step import ModelRunnerOutput
from tenonry_testkit.fakes.worker import FakeWorker, FakeWorkerOptions


class RankOptions(FakeWorkerOptions):
    """Faults of rank `bad_rank` alone; the others wait for it in `load`, as a process group would."""

    bad_rank: int = 1
    fault: str = ""
    notes: str = ""
    later_s: float = 0.0
    counts_tokens: bool = False


class Later:
    """A result that takes its time."""

    def __init__(self, output, at, fails):
        self.output, self.at, self.fails = output, at, fails

    def done(self):
        return time.monotonic() >= self.at

    def result(self, timeout=None):
        time.sleep(max(0.0, self.at - time.monotonic()))
        if self.fails:
            raise RuntimeError("the launch went wrong")
        return self.output


class RankWorker(FakeWorker):
    """See `RankOptions`."""

    Options = RankOptions
    rpc_methods = FakeWorker.rpc_methods | {
        "about",
        "say",
        "pause",
        "give",
        "meet",
        "complain",
        "write",
    }

    def __init__(self, context):
        super().__init__(context)
        self.is_bad = bool(self.options.fault) and context.rank == self.options.bad_rank
        if self.is_bad and self.options.fault == "build":
            raise ConfigError("this worker cannot be had")

    def write(self, text):
        """As a C library does."""
        for fd in (1, 2):
            os.write(fd, f"{text}\n".encode())

    def load(self):
        super().load()
        if self.is_bad:
            self.go_wrong(self.options.fault)
        elif self.options.fault in {"kill", "exit", "error"}:
            time.sleep(60)

    def go_wrong(self, fault):
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "exit":
            sys.exit(3)
        if fault == "error":
            raise FileNotFoundError("model-00007.safetensors")
        if fault == "sleep":
            time.sleep(60)

    def execute_model(self, output):
        if self.options.counts_tokens:
            total = sum(int(new.token_ids.sum()) for new in output.new)
            return ModelRunnerOutput(
                step_id=output.step_id, token_ids=np.array([total % 2**31], np.int32)
            )
        result = super().execute_model(output)
        if self.options.later_s:
            return Later(result, time.monotonic() + self.options.later_s, self.is_bad)
        return result

    def shutdown(self):
        super().shutdown()
        if self.options.notes:
            (Path(self.options.notes) / f"stopped-{self.context.rank}").write_text("yes")

    # ------------------------------------------------------------------ calls
    def about(self):
        return [
            os.getpid(),
            os.environ.get("OMP_NUM_THREADS"),
            self.context.local_rank,
            self.context.rendezvous,
        ]

    def say(self, text):
        sys.stdout.write(text)

    def pause(self, seconds, rank):
        if rank == self.context.rank:
            time.sleep(seconds)
        return seconds

    def give(self):
        return object()

    def complain(self, rank):
        if rank == self.context.rank:
            raise KeyError("it")
        time.sleep(60)

    def meet(self):
        """Both ranks write into the rendezvous file, and each sees the other."""
        path = Path(self.context.rendezvous.removeprefix("file://"))
        with path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0, os.SEEK_END)
            file.write(bytes([65 + self.context.rank]))
        deadline = time.monotonic() + 10
        while (size := path.stat().st_size) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        return size
