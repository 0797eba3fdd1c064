"""The conformance suite of IO processors; its texts must survive a round trip, so nothing goes before them."""

from __future__ import annotations

from typing import Any, ClassVar

from tenonry.config import EngineConfig
from tenonry.info import ModelInfo
from tenonry.plugin.manager import PluginManager
from tenonry_testkit.io_processor import IOProcessorContract


class TestV1IoProcessor(IOProcessorContract):
    io_processor = "v1_io_processor.plugin:V1IoProcessor"
    options: ClassVar[dict[str, Any]] = {"beginning": ""}

    def model(self) -> ModelInfo:
        return PluginManager().resolve_model(EngineConfig(model="demo"))
