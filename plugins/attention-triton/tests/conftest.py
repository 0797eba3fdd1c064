from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def _load(name):
    """Load a helper next to the tests by its bare name, whatever the import mode."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


_load("programs")
_load("cases")
