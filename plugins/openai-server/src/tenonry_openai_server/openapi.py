"""Content of /openapi.json: schemas of requests (pydantic, msgspec or written by hand) and of the msgspec responses.
Built once, on first use.
"""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from tenonry_openai_server.errors import ErrorBody

REF = "#/components/schemas/"
EVENT_STREAM = "text/event-stream"  # a schema would be one of each event
Request = type[BaseModel] | type[msgspec.Struct] | dict[str, Any]
_models: dict[str, type[BaseModel]] = {}
_structs: dict[str, type[msgspec.Struct]] = {"ErrorBody": ErrorBody}
_requests: set[str] = set()


def describe(
    summary: str,
    request: Request | None,
    response: type[msgspec.Struct] | dict[str, Any] | None,
    *,
    text: str = "",
) -> dict[str, Any]:
    """Keyword arguments of a route decorator: the route parses and renders by itself, so its types are documented here.

    `request` and `response`: a type, or a JSON schema. `text`: the media type of an answer that is no JSON.
    """
    content: dict[str, Any] = {}
    if response is not None:
        content["application/json"] = {"schema": _schema(response)}
    if text:
        content[text] = {} if text == EVENT_STREAM else {"schema": {"type": "string"}}
    error = {
        "description": "Error",
        "content": {"application/json": {"schema": {"$ref": REF + "ErrorBody"}}},
    }
    extra: dict[str, Any] = {
        "responses": {"200": {"description": "Success", "content": content}, "default": error}
    }
    if request is not None:
        if isinstance(request, type):
            _requests.add(request.__name__)
        extra["requestBody"] = {
            "required": not _may_be_empty(request),
            "content": {"application/json": {"schema": _schema(request)}},
        }
    return {"summary": summary, "openapi_extra": extra}


def _may_be_empty(request: Request) -> bool:
    """Return True if a request without a body is accepted: an operator's request with defaults for all fields."""
    if not (isinstance(request, type) and issubclass(request, BaseModel)):
        return False
    needed = any(field.is_required() for field in request.model_fields.values())
    return getattr(request, "is_strict", False) and not needed


def _schema(kind: Request) -> dict[str, Any]:
    """Return a reference to the schema of a type, added to the document, or the schema itself."""
    if isinstance(kind, dict):
        return kind
    if issubclass(kind, BaseModel):
        _models[kind.__name__] = kind
    else:
        _structs[kind.__name__] = kind
    return {"$ref": REF + kind.__name__}


def install(app: FastAPI, *, refuses_unknown: bool) -> None:
    """Install the document in the application. `refuses_unknown`: bodies with unknown fields are rejected."""

    def build() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            _, pydantic_part = models_json_schema(
                [(model, "validation") for model in _models.values()], ref_template=REF + "{model}"
            )
            schemas.update(pydantic_part.get("$defs", {}))
            if refuses_unknown:
                for name in _models:
                    schemas[name]["additionalProperties"] = False
            _, msgspec_part = msgspec.json.schema_components(
                _structs.values(), ref_template=REF + "{name}"
            )
            schemas.update(msgspec_part)
            for name in _requests:
                _allow_null(schemas[name])
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = build  # type: ignore[method-assign]


def _allow_null(schema: dict[str, Any]) -> None:
    """Allow null for each field of a body that may be absent."""
    null = {"type": "null"}
    required = schema.get("required", ())
    for name, form in schema["properties"].items():
        is_free = not form.keys() - {"description"}
        if name in required or is_free or "null" in form.get("type", ()):
            continue
        about = form if "anyOf" in form else {"anyOf": [form]}
        if null not in about["anyOf"]:
            schema["properties"][name] = {**about, "anyOf": [*about["anyOf"], null]}
