"""The options of the worker `auto`. Read in the front end to check a command line, and in the worker process."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field

from tenonry.config import read_list
from tenonry.interfaces.plugin import PluginOptions


class AutoOptions(PluginOptions):
    """`--worker-option key=value`. All keys but `candidates` are options of the worker that is chosen."""

    model_config = ConfigDict(extra="allow")

    candidates: Annotated[tuple[str, ...], BeforeValidator(read_list)] = Field(
        ("torch", "transformers", "pooling"),
        description="Workers, in the order in which they are tried.",
        min_length=1,
    )
