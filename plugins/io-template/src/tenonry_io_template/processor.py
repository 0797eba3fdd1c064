"""The IO processor `template`. Front end; light until it is built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from pydantic import BaseModel

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError, RequestError
from tenonry.interfaces.io_processor import IOProcessorContext, ProcessedPrompt, Prompt, TextPrompt
from tenonry.sampling_params import SamplingParams
from tenonry_io_template.settings import TemplateSettings
from tenonry_io_template.template import Render, load_template
from tenonry_io_text.processor import TextIOProcessor

CHAT = "is_chat"  # option that marks a rendered chat
PAIR = "text_pair"  # option of pairs to be scored


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

    def render_chat(self, messages: Sequence[dict[str, Any]], **kwargs: Any) -> dict[str, Any]:
        """As `text` does, marked as a chat."""
        return {**super().render_chat(messages, **kwargs), CHAT: True}

    def process_prompt(
        self, prompt: Prompt, params: SamplingParams, *, add_special_tokens: bool = True
    ) -> ProcessedPrompt:
        if isinstance(prompt, TextPrompt) and CHAT in prompt.options:
            options = {name: value for name, value in prompt.options.items() if name != CHAT}
            prompt = msgspec.structs.replace(prompt, options=options)
        elif isinstance(prompt, TextPrompt) and PAIR not in prompt.options:
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
