"""Import targets one after the other in this interpreter, and say what each of them loaded; run as a script.

`python import_probe.py TARGET …`, a target being `module`, `module:attribute` or `package.*` (the package
and all its modules). Prints a JSON object, target to `{"error": text or null, "loaded": [top-level names]}`:
the modules that came with the target and are not of the standard library.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
import traceback


def load(target: str) -> None:
    """Import one target; a missing attribute is an error."""
    module_name, _, attribute = target.partition(":")
    if not module_name.endswith(".*"):
        module = importlib.import_module(module_name)
        if attribute:
            getattr(module, attribute)
        return
    package = importlib.import_module(module_name.removesuffix(".*"))
    for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not info.name.endswith(".__main__"):
            importlib.import_module(info.name)


def outside_the_standard_library() -> set[str]:
    """Return the top-level names of the loaded modules that do not come with Python."""
    names = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
    return {
        name for name in names if not name.startswith("_sysconfigdata")
    }  # named after the platform


def main(targets: list[str]) -> None:
    """Probe every target, whatever became of those before it."""
    report = {}
    for target in targets:
        before = outside_the_standard_library()
        error = None
        try:
            load(target)
        except BaseException:
            error = traceback.format_exc(limit=-3)
        report[target] = {"error": error, "loaded": sorted(outside_the_standard_library() - before)}
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1:])
