"""What `dev.py` prints, without what differs from run to run."""

from __future__ import annotations

import re

ERROR = "ERROR: No matching distribution found for package-1"


def without_times(text: str) -> list[str]:
    return [re.sub(r"\d+ s$", "N s", line) for line in text.splitlines()]
