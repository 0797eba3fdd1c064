"""The user's cache, whose content can be deleted at any time. Any process."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """Folder `name` in `XDG_CACHE_HOME`/tenonry; it may not exist."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tenonry" / name
