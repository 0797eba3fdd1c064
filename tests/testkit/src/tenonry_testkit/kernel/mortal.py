"""A worker that kills its own process in a step named by a file: SIGKILL at any point of a run. Engine process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tenonry.step import ModelRunnerOutput, SchedulerOutput
from tenonry_testkit.fakes import FakeWorker
from tenonry_testkit.fakes.worker import FakeWorkerOptions


class MortalOptions(FakeWorkerOptions):
    """`fuse`: a file with a number of steps; in the following step the process removes it and kills itself."""

    fuse: str = ""


class MortalWorker(FakeWorker):
    """Dies in the step given by a file, as by `kill -9`."""

    Options = MortalOptions

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput:
        if len(output.row):
            burn_fuse(Path(self.context.options.fuse))  # type: ignore[attr-defined]
        return super().execute_model(output)


def burn_fuse(fuse: Path) -> None:
    """Decrement the counter in the file; kill this process, as by `kill -9`, at zero. No-op without the file."""
    if fuse.exists():
        left = int(fuse.read_text("utf-8"))
        if not left:
            fuse.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        set_fuse(fuse, left - 1)


def set_fuse(fuse: Path, steps: int) -> None:
    """Write the file atomically."""
    new = fuse.with_suffix(".new")
    new.write_text(str(steps), "utf-8")
    new.replace(fuse)
