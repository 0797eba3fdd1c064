"""Bodies of the routes that load and unload adapters. Front end."""

from __future__ import annotations

import msgspec
from pydantic import Field

from tenonry_openai_server.protocol.control import ControlBody

MAX_NAME_CHARS = 128
MAX_PATH_CHARS = 4096


class UnloadAdapterRequest(ControlBody):
    """Body of POST /v1/unload_lora_adapter."""

    lora_name: str = Field(min_length=1, max_length=MAX_NAME_CHARS)


class LoadAdapterRequest(UnloadAdapterRequest):
    """Body of POST /v1/load_lora_adapter. `load_inplace` replaces one of the same name; `pinned` keeps it at hand."""

    lora_path: str = Field(min_length=1, max_length=MAX_PATH_CHARS)
    load_inplace: bool = False
    pinned: bool = False


class AdapterResponse(msgspec.Struct, kw_only=True):
    """Response of both routes; `digest`: of the adapter's files."""

    status: str
    lora_name: str
    digest: str | None = None
