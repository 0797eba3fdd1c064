"""Stand-ins for an engine in tests of the launcher. Child processes."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel

from tenonry.info import ModelInfo
from tenonry.launch.process import ProcessLauncher
from tenonry_testkit.fakes.executor import InstantExecutor
from tenonry_testkit.fakes.worker import FakeWorker

_IMPORTED: list[str] = []


class ImportingWorker(FakeWorker):
    """Names imports, which start a thread if the environment requests one."""

    @classmethod
    def preload(cls, model: ModelInfo, options: BaseModel) -> None:
        _IMPORTED.append(" forked")
        if os.environ["TENONRY_TEST"] == "thread":
            threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


class DistantExecutor(InstantExecutor):
    """Executor like one with ranks in other processes, possibly on other nodes."""

    is_local = False
    runs_elsewhere = True


class DistantLauncher(ProcessLauncher):
    """Launcher like one that starts engines on other nodes."""

    is_local = False


def sleep(payload: Mapping[str, str]) -> int:
    """Write the environment and whether this is a fork into the file named in place of a configuration, and wait for a
    signal.
    """
    spec = json.loads(payload["spec"])
    if spec["config_text"]:
        file = Path(spec["config_text"])
        file.with_suffix(".new").write_text(
            os.environ["TENONRY_TEST"] + "".join(_IMPORTED), "utf-8"
        )
        file.with_suffix(".new").rename(file)
    while True:
        time.sleep(600)
