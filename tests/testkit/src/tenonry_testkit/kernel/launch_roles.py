"""What stands for an engine in tests of the launcher. Child processes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path


def sleep(payload: Mapping[str, str]) -> int:
    """Say what the environment holds, in the file that stands where a configuration would, and wait for a signal."""
    spec = json.loads(payload["spec"])
    if spec["config_text"]:
        Path(spec["config_text"]).write_text(os.environ["TENONRY_TEST"], "utf-8")
    while True:
        time.sleep(600)
