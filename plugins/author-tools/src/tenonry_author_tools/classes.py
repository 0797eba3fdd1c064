"""Plugin classes of a loose file, with the kind of each. A process of its own: the file is imported.

Run by `tenonry plugins dev` as `python -m tenonry_author_tools.classes FILE`; prints a JSON list of [kind, class].
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import json
import signal
import sys
from typing import Any

from tenonry.config import PluginChoice
from tenonry.plugin import Point
from tenonry.plugin.manager import qualified_record
from tenonry.plugin.plan import import_target
from tenonry_author_tools.suite import named_suites
from tenonry_commands.plugins import points

PR_SET_PDEATHSIG = 1


def plugin_classes(path: str) -> list[tuple[str, str]]:
    """Kind and name of each class that implements an interface with a suite. Raises PluginError."""
    record = qualified_record("plugin", PluginChoice(name=f"{path}:Plugin"))
    name = record.target.partition(":")[0]
    import_target(record.__class__("plugin", path, name, source=record.source, path=record.path))
    suites = named_suites()
    bases = {_base_name(point): point.kind for point in points() if point.kind in suites}
    return [
        (bases[found], each.__name__)
        for each in vars(sys.modules[name]).values()
        if inspect.isclass(each) and each.__module__ == name and not inspect.isabstract(each)
        for found in map(_qualified, each.__mro__[1:])
        if found in bases
    ]


def _base_name(point: Point) -> str:
    base: Any = point.base
    return _qualified(base) if inspect.isclass(base) else str(base)


def _qualified(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def end_with_parent() -> None:
    """End this process when its parent ends, where the system can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    end_with_parent()
    json.dump(plugin_classes(sys.argv[1]), sys.stdout)
