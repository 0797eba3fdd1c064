"""What /openapi.json says: schemas of the pydantic requests and the msgspec responses. Built once, when asked for."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from tenonry_openai_server.errors import ErrorBody

REF = "#/components/schemas/"
_requests: dict[str, type[BaseModel]] = {}
_responses: dict[str, type[msgspec.Struct]] = {"ErrorBody": ErrorBody}


def describe(
    summary: str,
    request: type[BaseModel] | None,
    response: type[msgspec.Struct] | None,
    *,
    text: str = "",
) -> dict[str, Any]:
    """Keyword arguments of a route decorator: the route parses and renders by itself, so it says what it takes.

    `text`: the media type of an answer that is no JSON.
    """
    content: dict[str, Any] = {}
    if response is not None:
        _responses[response.__name__] = response
        content["application/json"] = {"schema": {"$ref": REF + response.__name__}}
    if text:
        content[text] = {"schema": {"type": "string"}}
    error = {
        "description": "Error",
        "content": {"application/json": {"schema": {"$ref": REF + "ErrorBody"}}},
    }
    extra: dict[str, Any] = {
        "responses": {"200": {"description": "Success", "content": content}, "default": error}
    }
    if request is not None:
        _requests[request.__name__] = request
        schema = {"$ref": REF + request.__name__}
        extra["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    return {"summary": summary, "openapi_extra": extra}


def install(app: FastAPI) -> None:
    """Give the application its document."""

    def build() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            _, pydantic_part = models_json_schema(
                [(model, "validation") for model in _requests.values()],
                ref_template=REF + "{model}",
            )
            schemas.update(pydantic_part.get("$defs", {}))
            _, msgspec_part = msgspec.json.schema_components(
                _responses.values(), ref_template=REF + "{name}"
            )
            schemas.update(msgspec_part)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = build  # type: ignore[method-assign]
