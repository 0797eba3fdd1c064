"""The conformance suite of IO processors, with a template that leaves texts as they are: the suite compares them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from tenonry_testkit.io_processor import IOProcessorContract


class TestTemplate(IOProcessorContract):
    io_processor = "template"
    config: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path, demo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "plain.jinja"
        path.write_text("{{ prompt }}")
        monkeypatch.setattr(type(self), "config", {"prompt_template": str(path)})
        self._model = demo

    def model(self) -> Any:
        return self._model
