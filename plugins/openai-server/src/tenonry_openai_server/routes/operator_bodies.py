"""Requests of operators: fields in the body, in the query as in vLLM's routes, or in both. Front end, event loop.

A request without a body needs no content type: these routes require a key, which web pages do not send by themselves.
"""

from __future__ import annotations

from typing import Any, TypeVar, get_args, get_origin

import msgspec
from pydantic import TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect, Request

from tenonry_openai_server.disconnect import Disconnected
from tenonry_openai_server.errors import bad_request
from tenonry_openai_server.ignored import ignored
from tenonry_openai_server.protocol.control import ControlBody
from tenonry_openai_server.protocol.names import top_fields
from tenonry_openai_server.protocol.parse import parse_body, rules_of_body
from tenonry_openai_server.routes.bodies import check_content_type

BodyType = TypeVar("BodyType", bound=ControlBody)


async def read_operation(request: Request, model: type[BodyType]) -> BodyType:
    """The checked fields of a POST of an operator. Raises APIError 400 or 415, and Disconnected."""
    try:
        raw = await request.body()
    except ClientDisconnect:
        raise Disconnected from None
    report = ignored(request).add
    if raw:
        check_content_type(request)
    if not request.query_params:
        return parse_body(model, raw or b"{}", report)
    return parse_body(model, _merged(model, raw or b"{}", _from_query(request, model)), report)


def _merged(model: type[ControlBody], raw: bytes, given: dict[str, Any]) -> bytes:
    """The body with the fields of the query; a faulty body stays unchanged. Raises APIError 400 if they differ."""
    try:
        fields = dict(top_fields(raw, rules_of_body(model)))
        for name, value in given.items():
            if name in fields and msgspec.json.decode(fields[name]) not in (None, value):
                raise bad_request(f"{name}: the query and the body differ; give it once", name)
            fields[name] = msgspec.Raw(msgspec.json.encode(value))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return raw
    return msgspec.json.encode(fields)


def _from_query(request: Request, model: type[ControlBody]) -> dict[str, Any]:
    """The fields in the query, as JSON would have them. Raises APIError 400."""
    rules = rules_of_body(model)
    given: dict[str, Any] = {}
    for name in request.query_params:
        if name not in rules.known:
            rules.judge(name, "")
        values = request.query_params.getlist(name)
        annotation = model.model_fields[name].annotation
        is_list = any(get_origin(kind) is list for kind in (annotation, *get_args(annotation)))
        if len(values) > 1 and not is_list:
            raise bad_request(f"{name}: the query has it {len(values)} times; give it once", name)
        try:
            given[name] = TypeAdapter(annotation).validate_python(values if is_list else values[0])
        except ValidationError as error:
            text = error.errors(include_url=False, include_context=False)[0]["msg"]
            raise bad_request(
                f"{name}: {text[:1].lower()}{text[1:]}, not {values[0]!r:.80}", name
            ) from None
    return given
