"""A package of every kind, as `tenonry plugins new` writes it, installed into one folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from author_tools_packages import NewPackages, install, name_of

from tenonry.cli import main
from tenonry.plugin.discovery import EXPERIMENTAL
from tenonry_author_tools.scaffold import kinds


@pytest.fixture(scope="session")
def new_packages(tmp_path_factory: pytest.TempPathFactory) -> NewPackages:
    folder = tmp_path_factory.mktemp("new")
    sources = {kind: folder / kind for kind in kinds()}
    for kind, source in sources.items():
        assert main(["plugins", "new", kind, name_of(kind), "--into", str(source)]) == 0
    site = folder / "site"
    install(sources.values(), site)
    effort = os.environ.get("TENONRY_TESTKIT_EFFORT", "0.1")
    environment = {**os.environ, "PYTHONPATH": str(site), "TENONRY_TESTKIT_EFFORT": effort}
    environment[EXPERIMENTAL] = "1"  # the step observer is in use wherever it is installed
    return NewPackages(sources, environment)
