from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tenonry_demo_model
from tenonry.config import EngineConfig
from tenonry.info import ModelInfo
from tenonry.interfaces.io_processor import IOProcessorContext
from tenonry_io_template.processor import TemplateIOProcessor
from tenonry_io_text.options import TextOptions
from tenonry_testkit.fakes.model import folder_model


@pytest.fixture(scope="session")
def demo() -> ModelInfo:
    """Facts of the demo model."""
    return folder_model(tenonry_demo_model.model_path())


@pytest.fixture
def make_processor(demo: ModelInfo, tmp_path: Path) -> Iterator[Callable[..., TemplateIOProcessor]]:
    """Builds processors over template files, and shuts them down."""
    made = []

    def make(source: str, name: str = "template.txt", **settings: Any) -> TemplateIOProcessor:
        path = tmp_path / name
        path.write_text(source, "utf-8")
        config = EngineConfig(model="demo", prompt_template=str(path), **settings)
        TemplateIOProcessor.check(config, TextOptions())
        made.append(TemplateIOProcessor(IOProcessorContext(config, demo, options=TextOptions())))
        return made[-1]

    yield make
    for processor in made:
        processor.shutdown()
