"""Settings of the IO processor `template`. Front end; light."""

from __future__ import annotations

from tenonry.config import setting
from tenonry_io_text.options import TextSettings


class TemplateSettings(TextSettings):
    """Settings of the IO processor `template`: those of `text`, and the file."""

    prompt_template: str | None = setting(None, min_length=1)
    """File with the template of prompts: Jinja if it ends with .jinja or .j2, else a text with $prompt."""
