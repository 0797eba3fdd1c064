"""The conformance suite of stat loggers, with small and with large files (SL-1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from tenonry_testkit.stat_logger import StatLoggerContract


class TestJsonl(StatLoggerContract):
    stat_logger = "jsonl"

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)


class TestJsonlThatRotates(TestJsonl):
    options: ClassVar[dict[str, Any]] = {"max_bytes": 400, "backups": 1}
