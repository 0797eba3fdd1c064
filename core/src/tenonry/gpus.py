"""GPUs of this node, found without importing or initialising a library. Any process."""

from __future__ import annotations

import os
import re
from itertools import takewhile
from pathlib import Path

VARIABLE = "CUDA_VISIBLE_DEVICES"
IS_GPU = re.compile(r"\d+|(GPU|MIG)-.+").fullmatch  # excludes -1, none, NoDevFiles


def visible_devices() -> list[str]:
    """GPUs visible to this process, by number or name. As in CUDA, the variable's list ends at the first entry that is
    no GPU.
    """
    chosen = os.environ.get(VARIABLE)
    if chosen is not None:
        return list(takewhile(IS_GPU, map(str.strip, chosen.split(","))))
    found = [path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*")]
    return sorted(found, key=int)
