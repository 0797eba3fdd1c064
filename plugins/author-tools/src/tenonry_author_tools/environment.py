"""Facts of an environment, and code that Python runs when it starts. Command line; imports no plugin."""

from __future__ import annotations

import os
import platform
import site
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple

import psutil

from tenonry.gpus import visible_devices
from tenonry.version import __version__

CUSTOMISATIONS = ("sitecustomize", "usercustomize")


class StartupFile(NamedTuple):
    """A line of a file that is run at the start of each interpreter."""

    file: str
    line: int
    text: str


def facts() -> dict[str, str]:
    """Versions, devices and sizes of this machine."""
    memory = psutil.virtual_memory().total / (1 << 30)
    variables = sorted(name for name in os.environ if name.startswith("TENONRY_"))
    return {
        "tenonry": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "platform": platform.platform(),
        "devices": ", ".join(f"GPU {name}" for name in visible_devices()) or "no GPU",
        "cpus": str(
            len(psutil.Process().cpu_affinity() or ())
            if sys.platform == "linux"
            else os.cpu_count()
        ),
        "memory": f"{memory:.1f} GiB",
        "variables": ", ".join(variables) or "none of TENONRY_",
    }


def startup_files() -> list[StartupFile]:
    """Lines of .pth files that run code, and the modules `sitecustomize` and `usercustomize`."""
    return [*_pth_lines(), *_customisations()]


def _pth_lines() -> Iterator[StartupFile]:
    for folder in dict.fromkeys([*site.getsitepackages(), site.getusersitepackages()]):
        for file in sorted(Path(folder).glob("*.pth")):
            lines = file.read_text("utf-8", errors="replace").splitlines()
            for number, line in enumerate(lines, 1):
                if line.startswith(("import ", "import\t")):
                    yield StartupFile(str(file), number, line[:80])


def _customisations() -> Iterator[StartupFile]:
    for name in CUSTOMISATIONS:
        spec = PathFinder.find_spec(name)
        if spec is not None and spec.origin:
            yield StartupFile(spec.origin, 1, f"the module {name}")
