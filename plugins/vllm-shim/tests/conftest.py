"""Makes plugins that were written for vLLM importable. They lie here as text: what they import is not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "data" / "shim_plugins.txt"


@pytest.fixture(scope="session", autouse=True)
def _importable(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("written_for_vllm")
    (folder / "shim_plugins.py").write_text(SOURCE.read_text(encoding="utf-8"), encoding="utf-8")
    sys.path.append(str(folder))
