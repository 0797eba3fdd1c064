"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, if the operator enabled them. Front end."""

from __future__ import annotations

import logging

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tenonry_openai_server.errors import bad_request
from tenonry_openai_server.openapi import describe
from tenonry_openai_server.protocol.adapters import (
    AdapterResponse,
    LoadAdapterRequest,
    UnloadAdapterRequest,
)
from tenonry_openai_server.routes.bodies import server_state
from tenonry_openai_server.routes.operations import answer
from tenonry_openai_server.routes.operator_bodies import read_operation

logger = logging.getLogger("tenonry.server")

router = APIRouter()


@router.post(
    "/v1/load_lora_adapter", **describe("Load an adapter", LoadAdapterRequest, AdapterResponse)
)
async def load(request: Request) -> Response:
    """Load a folder of peft into every engine; requests choose it by `model`."""
    state = server_state(request)
    engine = state.admit()
    body = await read_operation(request, LoadAdapterRequest)
    if body.lora_name in state.model_names:
        raise bad_request(f"'{body.lora_name}' is a name of the model itself", "lora_name")
    adapter = await state.adapters.load(
        engine, body.lora_name, body.lora_path, in_place=body.load_inplace, pinned=body.pinned
    )
    logger.info("loaded adapter %s", adapter.name)
    return answer(AdapterResponse(status="loaded", lora_name=adapter.name, digest=adapter.digest))


@router.post(
    "/v1/unload_lora_adapter",
    **describe("Unload an adapter", UnloadAdapterRequest, AdapterResponse),
)
async def unload(request: Request) -> Response:
    """Unload an adapter; running requests finish with it."""
    state = server_state(request)
    engine = state.admit()
    body = await read_operation(request, UnloadAdapterRequest)
    await state.adapters.unload(engine, body.lora_name)
    logger.info("unloaded adapter %s", body.lora_name)
    return answer(AdapterResponse(status="unloaded", lora_name=body.lora_name))
