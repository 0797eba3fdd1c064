"""The conformance suite of IO processors, with an empty beginning, and a test of the beginning."""

from __future__ import annotations

from typing import Any, ClassVar

from tenonry.config import EngineConfig
from tenonry.info import ModelInfo
from tenonry.interfaces.io_processor import IOProcessorContext, TextPrompt
from tenonry.plugin.manager import PluginManager
from tenonry.sampling_params import SamplingParams
from tenonry_testkit.io_processor import IOProcessorContract

from story_teller.plugin import StoryTeller, StoryTellerOptions

CONFIG = EngineConfig(model="demo")


class TestStoryTeller(IOProcessorContract):
    io_processor = "story_teller.plugin:StoryTeller"
    options: ClassVar[dict[str, Any]] = {"beginning": ""}

    def model(self) -> ModelInfo:
        return PluginManager().resolve_model(CONFIG)


def test_a_prompt_begins_with_the_text() -> None:
    model = PluginManager().resolve_model(CONFIG)
    tokens = []
    for beginning, prompt in (("Long ago, ", "a fox"), ("", "Long ago, a fox")):
        options = StoryTellerOptions(beginning=beginning)
        processor = StoryTeller(IOProcessorContext(CONFIG, model, options=options))
        processed = processor.process_prompt(TextPrompt(prompt), SamplingParams())
        tokens.append(processed.token_ids.tolist())
    assert tokens[0] == tokens[1]
