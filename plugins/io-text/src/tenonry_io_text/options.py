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
        description="Maximum prompt length in characters. Defaults to 256 per token of the "
        "maximum sequence length.",
    )
    grammar_seconds: float = Field(
        2.0,
        gt=0,
        le=600,
        description="CPU seconds for checking one grammar, after which its request is rejected.",
    )
    text_seconds: float = Field(
        30.0,
        gt=0,
        le=600,
        description="CPU seconds for tokenising one text, after which its request is rejected.",
    )
    image_processor: str = Field("transformers", description="Image processor plugin.")
    image_hosts: tuple[str, ...] = Field(
        (), description="Allowed hosts of https image URLs. None allows data URLs only."
    )
    max_image_bytes: int = Field(
        20 << 20, ge=1, le=1 << 28, description="Maximum image file size in bytes."
    )
    max_image_pixels: int = Field(
        50_000_000, ge=1, le=1 << 30, description="Maximum pixels of an image."
    )
    image_seconds: float = Field(
        10.0,
        gt=0,
        le=600,
        description="CPU seconds for decoding one image, after which its request is rejected.",
    )

    @field_validator("image_hosts", mode="before")
    @classmethod
    def _read_hosts(cls, value: Any) -> Any:
        return read_list(value)
