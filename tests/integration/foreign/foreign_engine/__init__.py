"""An engine by a third party: executor, worker, scheduler, IO processor, model and HTTP server on the kernel alone."""

from __future__ import annotations

CHOICES = {
    "model": "counter",
    "executor": "solo",
    "worker": "counting",
    "scheduler": "queue",
    "io_processor": "bytes",
}
