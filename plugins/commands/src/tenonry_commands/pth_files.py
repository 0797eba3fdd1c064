"""Files of distributions that run whenever an interpreter starts. Front end, and command line."""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
from collections.abc import Iterable
from pathlib import Path

from tenonry.info import PluginRecord

logger = logging.getLogger("tenonry.plugins")


def acts_at_start(file: Path) -> bool:
    """Return True for a .pth file, but for one by which an installer links a source folder: a list of paths."""
    if file.suffix != ".pth":
        return False
    is_link = file.name.startswith(("_editable_impl_", "__editable__"))
    with contextlib.suppress(OSError):
        lines = file.read_text("utf-8", errors="replace").splitlines()
        return not is_link or any(line.startswith(("import ", "import\t")) for line in lines)
    return False


def warn_of_pth_files(records: Iterable[PluginRecord]) -> None:
    """Warn about each .pth file of the distributions of these plugins."""
    for name, version in dict.fromkeys((each.distribution, each.version) for each in records):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError, ValueError):
            dist = importlib.metadata.distribution(name)
            for file in map(Path, map(dist.locate_file, dist.files or ())):  # type: ignore[arg-type]
                if acts_at_start(file):
                    logger.warning(
                        "%s %s: %s:1: runs whenever any Python of this environment starts; remove the .pth file; "
                        "`tenonry doctor` checks all plugins",
                        name,
                        version,
                        file,
                    )
