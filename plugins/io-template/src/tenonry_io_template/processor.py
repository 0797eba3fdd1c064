"""The IO processor `template`. Front end; light until it is built."""

from __future__ import annotations

import msgspec
from pydantic import BaseModel

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError, RequestError
from tenonry.interfaces.io_processor import IOProcessorContext, ProcessedPrompt, Prompt, TextPrompt
from tenonry.sampling_params import SamplingParams
from tenonry_io_template.settings import TemplateSettings
from tenonry_io_template.template import Render, load_template
from tenonry_io_text.processor import TextIOProcessor

NOT_PLAIN = {"add_special_tokens", "text_pair"}  # options of chats and of pairs to be scored


class TemplateIOProcessor(TextIOProcessor):
    """Text, with plain prompts rendered; chats have the model's template, and pairs and token ids stay as they are."""

    Settings = TemplateSettings

    def __init__(self, context: IOProcessorContext) -> None:
        self._render = _template(context.config)  # before the tokenizer, which takes longer
        super().__init__(context)

    @classmethod
    def check(cls, config: EngineConfig, options: BaseModel) -> None:
        """Refuse a file that is missing or no template."""
        super().check(config, options)
        _template(config)

    def process_prompt(
        self, prompt: Prompt, params: SamplingParams, *, add_special_tokens: bool = True
    ) -> ProcessedPrompt:
        if isinstance(prompt, TextPrompt) and not NOT_PLAIN & prompt.options.keys():
            try:
                text = self._render(prompt.text)
            except Exception as error:
                raise RequestError(
                    f"the prompt template failed ({type(error).__name__}: {error})", "prompt"
                ) from error
            prompt = msgspec.structs.replace(prompt, text=text)
        return super().process_prompt(prompt, params, add_special_tokens=add_special_tokens)


def _template(config: EngineConfig) -> Render:
    path = config.section(TemplateSettings).prompt_template
    if path is None:
        raise ConfigError("io processor 'template' needs a file: --prompt-template FILE")
    return load_template(path)
