"""Options of the IO processor `text`. Front end; light."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from tenonry.config import read_list
from tenonry.interfaces.plugin import PluginOptions
from tenonry_grammars.settings import GrammarSettings


class TextSettings(GrammarSettings):
    """Settings of the IO processor `text`."""

    chat_template: str | None = None
    """Chat template, as text or file, instead of the model's own."""


class TextOptions(PluginOptions):
    """Options of the IO processor `text`."""

    max_prompt_chars: int | None = Field(
        None,
        ge=1,
        description="Longest prompt in characters; by default what cannot fit is refused: 256 per token.",
    )
    grammar_seconds: float = Field(
        2.0,
        gt=0,
        le=600,
        description="Processor time that checking one structured output may take, else its request is refused.",
    )
    text_seconds: float = Field(
        30.0,
        gt=0,
        le=600,
        description="Processor time for tokenising one text of a server's client, above which it is refused.",
    )
    image_processor: str = Field("transformers", description="Makes images ready for the model.")
    image_hosts: tuple[str, ...] = Field(
        (), description="Hosts that images are read from by https; none: data URLs only."
    )
    max_image_bytes: int = Field(
        20 << 20, ge=1, le=1 << 28, description="Largest image file, as it is sent."
    )
    max_image_pixels: int = Field(
        50_000_000, ge=1, le=1 << 30, description="Most pixels of an image, width times height."
    )
    image_seconds: float = Field(
        10.0,
        gt=0,
        le=600,
        description="Processor time that decoding one image may take, else its request is refused.",
    )

    @field_validator("image_hosts", mode="before")
    @classmethod
    def _read_hosts(cls, value: Any) -> Any:
        return read_list(value)
