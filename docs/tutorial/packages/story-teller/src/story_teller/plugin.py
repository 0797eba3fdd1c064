"""IO processor `story-teller`: text, with a beginning that the operator chooses. Front end."""

from __future__ import annotations

from pydantic import Field

from tenonry.interfaces.io_processor import IOProcessorContext, ProcessedPrompt, Prompt, TextPrompt
from tenonry.sampling_params import SamplingParams
from tenonry_io_text.options import TextOptions
from tenonry_io_text.processor import TextIOProcessor


class StoryTellerOptions(TextOptions):
    """Options of `--io-processor-option`, and those of the processor `text`."""

    beginning: str = Field(default="Once upon a time, ", description="Text before each prompt.")


class StoryTeller(TextIOProcessor):
    """Puts a text before each prompt that is a text and no chat."""

    interface_version = 1
    Options = StoryTellerOptions

    def __init__(self, context: IOProcessorContext) -> None:
        super().__init__(context)
        options = context.options
        self.beginning = options.beginning if isinstance(options, StoryTellerOptions) else ""

    def process_prompt(
        self, prompt: Prompt, params: SamplingParams, *, add_special_tokens: bool = True
    ) -> ProcessedPrompt:
        if isinstance(prompt, TextPrompt) and not prompt.options:  # no chat
            prompt = TextPrompt(self.beginning + prompt.text)
        return super().process_prompt(prompt, params, add_special_tokens=add_special_tokens)
